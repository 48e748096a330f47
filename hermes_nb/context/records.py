"""The record that takes the place of what was summarised: how it begins, how it is read back."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_nb.context.facts import Fact
from hermes_nb.context.ledger import read_ledger
from hermes_nb.context.marks import SUMMARY, is_references, is_summary
from hermes_nb.core.messages import Message

HEADER = (
    f"{SUMMARY}\nThe messages that stood here were replaced by this record of them. It asks for "
    "nothing by itself; what follows is newer. The user's last message stands word for word."
)
NO_MODEL = "(No model summarised this; what counts was taken from the messages by rule.)"
"""Why there are only facts, for the model that reads on."""


def read_summary(messages: Sequence[Message]) -> tuple[str, list[Fact]]:
    """Return what earlier summaries among messages say, and the facts that they list."""
    bodies: list[str] = []
    facts: list[Fact] = []
    for message in messages:
        if is_summary(message):
            body, known = read_ledger(message.text.removeprefix(HEADER))
            bodies.append(body.replace(NO_MODEL, "").strip())
            facts += known
        elif is_references(message):
            facts += read_ledger(message.text)[1]
    return "\n\n".join(body for body in bodies if body), facts
