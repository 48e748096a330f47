"""`%hermes cassette`: recording and replaying model replies."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import one_line
from hermes_nb.models.cassette import Mode, mode_named
from hermes_nb.notebook.display.tables import facts
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.safety.markup import code_block, code_span, escape

if TYPE_CHECKING:
    from hermes_nb.models.cassette_file import Tape
    from hermes_nb.models.recording import Recording


DOES: dict[Mode, str] = {
    "record": "every request is sent to the model and recorded",
    "replay": "recorded replies are used, and nothing is sent",
    "auto": "recorded replies are used, and other requests are sent and recorded",
    "off": "nothing is recorded or replayed",
}
"""What each mode does."""
LISTED_RECORDINGS = 10
"""Maximum recordings and damaged lines to list."""


def cassette(agent: KernelAgent, given: Namespace) -> str:
    """Show the status, switch the mode, prune unused recordings, or accept edited ones."""
    match given.action:
        case "" | "status":
            return _status(agent)
        case "prune":
            return _prune(agent)
        case "accept":
            tape = agent.deck.tape
            return f"{tape.accept()} edited answers in {code_span(str(tape.path))} are now used."
        case mode:
            return _switch(agent, mode_named(mode))


def _switch(agent: KernelAgent, mode: Mode) -> str:
    agent.switch_cassette(mode)
    text = f"Cassette: **{mode}**: {DOES[mode]}."
    if mode == "off":
        return text
    lines = [f"{text} The file is {code_span(str(agent.deck.tape.path))}."]
    if agent.models.given:
        lines.append("The model in use was passed as an object, so its replies are not recorded.")
    if agent.session is not None:
        lines.append("To replay from the start, restart the kernel and run all cells.")
    return " ".join(lines)


def _status(agent: KernelAgent) -> str:
    deck = agent.deck
    if not deck.on:
        return "Cassette: **off**. `%hermes cassette auto` records and replays this notebook."
    tape = deck.tape
    recordings, unused = tape.recordings, tape.unused()
    models = dict.fromkeys(each.model for each in recordings if each.model)
    rows = [
        ("mode", f"{deck.mode}: {DOES[deck.mode]}"),
        ("file", str(tape.path)),
        ("recordings", f"{len(recordings)}, of {', '.join(models) or 'no model'}"),
        ("this run", f"{tape.used} used, {len(unused)} not"),
    ]
    blocks = [facts(rows)]
    if tape.used and unused:
        blocks.append(_listed("Not used in this run", tape, unused))
    if problems := tape.problems:
        lines = [escape(one_line(problem, 160)) for problem in problems[:LISTED_RECORDINGS]]
        blocks.append("\n".join(["Damaged lines:", "", *(f"- {line}" for line in lines)]))
    if deck.last_miss is not None:
        blocks.append(f"The last miss:\n\n{code_block(str(deck.last_miss))}")
    return "\n\n".join(blocks)


def _prune(agent: KernelAgent) -> str:
    deck = agent.deck
    if not deck.on or not deck.tape.used:
        raise ConfigError(
            "nothing was recorded or replayed in this run, so everything would be removed; "
            "restart the kernel, run all cells, then prune"
        )
    gone = deck.tape.unused()
    listed = _listed("Removed", deck.tape, gone) if gone else ""
    count = deck.tape.prune()
    text = f"{count} recordings that this run did not use were removed, {deck.tape.used} are left."
    return "\n\n".join(filter(None, [text, listed]))


def _listed(title: str, tape: Tape, recordings: Sequence[Recording]) -> str:
    lines = [f"- {escape(_gist(tape, each))}" for each in recordings[:LISTED_RECORDINGS]]
    if (more := len(recordings) - LISTED_RECORDINGS) > 0:
        lines.append(f"- and {more} more")
    return "\n".join([f"{title}:", "", *lines])


def _gist(tape: Tape, recording: Recording) -> str:
    message = recording.reply.message
    said = message.text or ", ".join(f"{call.name}(…)" for call in message.calls)
    asked = ""
    for link in tape.conversation(recording):
        parts = link.said.get("parts")
        if link.said.get("role") == "user" and isinstance(parts, list) and parts:
            asked = str(parts[0])
    return f"“{one_line(asked, 60)}” → {one_line(said, 60)}"
