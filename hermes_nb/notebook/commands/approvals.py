"""`%hermes memory` and `%hermes skills` `pending`, `approve`, `reject`: what waits for the user."""

from __future__ import annotations

from pathlib import Path

from hermes_nb.app.approvals import Approvals, Decided
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import head_tail
from hermes_nb.learning.proposals import Kind, Proposal
from hermes_nb.notebook.display.wording import ago
from hermes_nb.safety.markup import code_block, escape
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

LISTED = 1_500
"""Characters of each thing in the list; on its own it is shown whole."""
WHOLE = 100_000


def pending(approvals: Approvals, kind: Kind, words: str) -> str:
    """Show what waits, or one thing of it whole."""
    waiting = approvals.waiting(kind)
    if words:
        wanted = _number(words, kind)
        waiting = [each for each in waiting if each.number == wanted]
        if not waiting:
            message = f"nothing waits under {wanted}; `%hermes {kind} pending` lists what does"
            raise ConfigError(message)
    if not waiting:
        return "Nothing waits for your approval."
    limit = WHOLE if words else LISTED
    blocks = [_block(each, approvals.shown(each), limit) for each in waiting]
    ways = f"`%hermes {kind} approve N`, `%hermes {kind} reject N`, or `all` for N"
    if kind == "memory":
        ways += ", and `%hermes memory approve N TEXT` in other words"
    return "\n\n".join([*blocks, ways])


def approve(approvals: Approvals, kind: Kind, words: str) -> str:
    """Save what waits under some numbers or all, or under one of them in other words."""
    words = _spelt(approvals, kind, words)
    first, _, rest = words.strip().partition(" ")
    if rest and not all(map(str.isdecimal, rest.split())):
        numbers, text = [_number(first, kind)], rest.strip()
    else:
        numbers, text = _numbers(words, kind), None
    _refuse_others(approvals, kind, numbers)
    outcomes = [approvals.approve(number, text=text) for number in numbers]
    saved = [_told(outcome) for outcome in outcomes if outcome.done]
    left = [f"{o.proposal.number} still waits: {o.message}" for o in outcomes if not o.done]
    if left and not saved:
        raise ConfigError("; ".join(left))
    if saved:
        undo = " NAME" if kind == "skills" else ""
        saved.append(f"`%hermes {kind} undo{undo}` takes the last back.")
    return "\n\n".join([*saved, *map(escape, left)])


def reject(approvals: Approvals, kind: Kind, words: str) -> str:
    """Drop what waits under some numbers, or all of a kind."""
    numbers = _numbers(_spelt(approvals, kind, words), kind)
    _refuse_others(approvals, kind, numbers)
    return "\n\n".join(_told(approvals.reject(number)) for number in numbers)


def _block(proposal: Proposal, shown: str, limit: int) -> str:
    origin = proposal.origin
    notebook = f" in {Path(origin.notebook).name}" if origin.notebook else ""
    came = f"a {origin.source}{notebook}, {ago(proposal.at)}"
    lines = [f"**{proposal.number}** {escape(proposal.gist)} · {escape(came)}"]
    if proposal.begun:
        lines.append("The process that was saving it died: it may be there already.")
    if proposal.problem:
        lines.append(f"It could not be saved: {escape(redact(visible(proposal.problem)))}")
    text = head_tail(redact(visible(shown, lines=True)), limit)
    return "\n\n".join([*lines, code_block(text, "diff")])


def _told(outcome: Decided) -> str:
    return escape(outcome.message[:1].upper() + outcome.message[1:]) + "."


def _refuse_others(approvals: Approvals, kind: Kind, numbers: list[int]) -> None:
    """Raise ConfigError for a number under which something of the other kind waits.

    Whoever decides on it should have seen it, in the list of its own kind.
    """
    for each in approvals.waiting():
        if each.number in numbers and each.kind != kind:
            message = f"{each.number} is about {each.kind}: `%hermes {each.kind} pending`"
            raise ConfigError(message)


def _spelt(approvals: Approvals, kind: Kind, words: str) -> str:
    """Return `words` with the numbers of what waits in the place of "all"."""
    if words.strip().casefold() != "all":
        return words
    numbers = [str(each.number) for each in approvals.waiting(kind)]
    if not numbers:
        message = "nothing waits for your approval"
        raise ConfigError(message)
    return " ".join(numbers)


def _numbers(words: str, kind: Kind) -> list[int]:
    found = [_number(word, kind) for word in words.replace(",", " ").split()]
    if not found:
        raise ConfigError(_which(kind))
    return list(dict.fromkeys(found))


def _number(word: str, kind: Kind) -> int:
    if word.isdecimal() and len(word) < 10:  # noqa: PLR2004 - more is no number of ours
        return int(word)
    raise ConfigError(_which(kind))


def _which(kind: Kind) -> str:
    return f"which one? give its number; `%hermes {kind} pending` shows them"
