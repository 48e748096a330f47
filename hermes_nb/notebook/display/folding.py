"""What a finished turn folds away: its calls, one line each, the latest of which open in turn.

A notebook keeps what its cells show, in every copy and every commit. So the size is bounded, not
the number of calls: of a turn with 1,500 of them, the last few are whole, some hundred more have a
line, and the first ones are counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes_nb.core.text import head_tail, number_of
from hermes_nb.notebook.display.callview import CallView
from hermes_nb.safety.markup import escape, safe_markdown
from hermes_nb.safety.redact import redact

KEPT_IN_FULL = 30
"""The latest calls that keep arguments and results, as long as there is room."""
WHOLE = 50_000
"""Bytes for calls with all of theirs."""
LISTED = 25_000
"""Bytes for calls that are one line, and for what was said between the calls."""
SAID = 2_000
"""Characters of a text between calls."""
REASONING = 6_000
"""Characters of what was thought."""


@dataclass(slots=True)
class Step:
    """One request's text and the calls it led to."""

    text: str = ""
    calls: list[CallView] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Block:
    """A piece of what is folded away; `line` says that it is a call without anything in it."""

    text: str
    line: bool = False


def fold(steps: Sequence[Step]) -> str:
    """Return the calls of all steps as one folded block; "" without any.

    The text of the last step is not in it: it is the answer.
    """
    calls = [call for step in steps for call in step.calls]
    if not calls:
        return ""
    summary = number_of(len(calls), "tool call") + _troubled(calls)
    kept, left_out = _latest(steps)
    if left_out:
        kept.insert(0, _Block(_counted(left_out)))
    return folded(summary, _joined(kept))


def folded(summary: str, body: str) -> str:
    """Return a Markdown text that opens by a click; `summary` is plain text."""
    return f"<details><summary>{escape(summary)}</summary>\n\n{body}\n\n</details>"


def thought(pieces: Sequence[str]) -> str:
    """Return the reasoning of a turn, folded; "" without any."""
    text = "".join(pieces).strip()
    if not text:
        return ""
    return folded("reasoning", fitted(head_tail(redact(text), REASONING), 2 * REASONING))


def fitted(text: str, room: int) -> str:
    """Return a text as safe Markdown in about `room` bytes; what is too long loses its middle."""
    limit = room
    while True:
        shown = safe_markdown(head_tail(text, limit))
        size = len(shown.encode(errors="replace"))
        if size <= room + 100 or limit < 100:  # noqa: PLR2004 - 100: the marker's length
            return shown
        limit = limit * room // size


def _joined(blocks: Sequence[_Block]) -> str:
    """Return blocks as one text; calls that are mere lines stand right below one another."""
    out: list[str] = []
    above = _Block("")
    for block in blocks:
        if out:
            out.append("  \n" if block.line and above.line else "\n\n")
        out.append(block.text)
        above = block
    return "".join(out)


def _latest(steps: Sequence[Step]) -> tuple[list[_Block], list[CallView]]:
    """Return the blocks that there is room for, and the calls that there is none for."""
    blocks: list[_Block] = []
    whole, listed = WHOLE, LISTED
    number = 0
    queue = [(step, call) for step in steps for call in step.calls]
    while queue:
        step, call = queue[-1]
        line = call.line()
        said = step.text if step.calls[0] is call and step is not steps[-1] else ""
        told = fitted(redact(said), SAID) if said else ""
        listed -= _size(told) + _size(line)
        if listed < 0:
            break
        block = call.block() if number < KEPT_IN_FULL else line
        if block != line:
            whole -= _size(block) - _size(line)
            number = KEPT_IN_FULL if whole < 0 else number + 1
            block = block if whole >= 0 else line
        blocks.append(_Block(block, line=block == line))
        blocks += [_Block(told)] if told else []
        queue.pop()
    return blocks[::-1], [call for _, call in queue]


def _counted(calls: Sequence[CallView]) -> str:
    """Return calls as numbers, by name."""
    names = Counter(call.call.name for call in calls).most_common()
    shown = [f"{count} × {escape(name[:80])}" for name, count in names[:10]]
    shown += [f"{len(names) - 10} other tools"] if len(names) > 10 else []  # noqa: PLR2004
    return f"… {len(calls)} earlier calls: {', '.join(shown)}{_troubled(calls)}"


def _troubled(calls: Sequence[CallView]) -> str:
    """Return how many calls did not go well, "" if all did."""
    counts = Counter(call.status for call in calls)
    told = (("error", "failed"), ("denied", "denied"))
    return "".join(f", {counts[status]} {word}" for status, word in told if counts[status])


def _size(block: str) -> int:
    return len(block.encode(errors="replace")) + 2 if block else 0
