"""Render tool calls, their child agents, and the fold that contains a finished turn's calls.

A call is a line that can be unfolded to show its arguments and result, both shortened; it also
shows the user's answer to an approval question. A notebook saves everything that its cells display,
so the size of the fold is limited, but not the number of calls. In a turn with 1,500 calls, the
last few are shown completely, a few hundred before them as one line each, and the earliest ones are
only counted.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from hermes_nb.core.escapes import visible
from hermes_nb.core.events import (
    Answer,
    ApprovalGiven,
    ChildEvent,
    ChildFinished,
    ChildProgress,
    ChildStarted,
)
from hermes_nb.core.messages import ToolCall, Usage
from hermes_nb.core.text import head_tail, number_of, one_line
from hermes_nb.notebook.display.tables import plain_text
from hermes_nb.safety.markup import code_block, code_span, escape, safe_markdown
from hermes_nb.safety.redact import redact

_CHILD_MARKS = {"": "◌", "done": "✓", "budget": "◔", "failed": "✗", "stopped": "■"}
_CHILD_ENDS = {"budget": "out of budget", "failed": "failed", "stopped": "stopped"}
GOAL = 80
"""Maximum characters of a child's goal."""
DOING = 70
SHOWN_CHILDREN = 6
"""Maximum number of children shown below a running call; the first to end are only counted."""


@dataclass(slots=True)
class ChildView:
    """The state of a child agent, for display."""

    number: int
    """The child's number within its call."""
    goal: str
    """The child's task."""
    started: float
    """Start time, from `time.monotonic()`."""
    status: str = ""
    """The result: "" while it runs, then "done", "budget", "failed" or "stopped"."""
    seconds: float = 0.0
    """Duration in seconds, once it has ended."""
    doing: str = ""
    """A short description of its current activity."""
    usage: Usage = field(default_factory=Usage)
    """The requests and tokens used so far."""
    last_line: str = ""
    """The rendered line, cached once it has ended."""

    def take(self, event: ChildProgress | ChildFinished) -> None:
        self.usage, self.last_line = event.usage, ""
        if isinstance(event, ChildProgress):
            self.doing = one_line(visible(redact(event.doing)), DOING)
        else:
            self.status, self.seconds = event.status, event.seconds

    def line(self) -> str:
        """Return the child as a Markdown line, which is cached once the child has ended."""
        if self.last_line:
            return self.last_line
        seconds = self.seconds if self.status else time.monotonic() - self.started
        parts = [] if not self.doing or self.status else [code_span(self.doing)]
        parts += [_CHILD_ENDS[self.status]] if self.status in _CHILD_ENDS else []
        if count := self.usage.requests:
            parts.append(number_of(count, "request"))
        parts.append(f"{seconds:.1f} s")
        line = " · ".join([f"↳ {_CHILD_MARKS[self.status]} {escape(self.goal)}", *parts])
        self.last_line = line if self.status else ""
        return line


def take_in(children: dict[int, ChildView], event: ChildEvent) -> None:
    """Update a call's children with an event; events of unknown children are ignored."""
    if isinstance(event, ChildStarted):
        goal = one_line(visible(redact(event.goal)), GOAL)
        children[event.number] = ChildView(event.number, goal, time.monotonic())
    elif event.number in children:
        children[event.number].take(event)


def running_lines(children: Iterable[ChildView]) -> list[str]:
    """Return the lines below a running call: the latest children, and a count of earlier ones."""
    known = list(children)
    over = [child for child in known if child.status]
    hidden = over[: max(len(known) - SHOWN_CHILDREN, 0)]
    lines = [child.line() for child in known if child not in hidden]
    return [f"↳ … {len(hidden)} that have finished", *lines] if hidden else lines


SHOWN_CHARACTERS = 2_000
"""Maximum characters of each argument and of the result; the model reads more."""
SHORT_ARGUMENT = 120
"""Maximum characters of an argument shown in one block with others."""
MOST_ARGUMENTS = 12
"""Maximum number of arguments shown."""
GIST = 90
"""Maximum characters of a call's summary."""
REASON = 160
"""Maximum characters of the user's reason for a denial."""
LIVE = 5
"""Number of output lines shown for a running call (the last ones)."""
LIVE_WIDTH = 100
"""Maximum characters of each of these lines."""
LIVE_AFTER = 1.0
"""Seconds after which a running call shows these lines."""
WRITING = 2
"""Number of lines shown of a call that the model is writing (the last ones)."""
_BREAK = re.compile(r"(?<!\\)((?:\\\\)*)\\n")
"""A line break in JSON text."""
_OPENING = re.compile(r'\s*\{\s*"\w+"\s*:\s*"?')
_NOT_SENT = re.compile(r"\[(image/\w+ \d+x\d+), not shown\]")
"""Replaces an image for a model that cannot read images; the user sees the image."""
MARKS = {"ok": "✓", "error": "✗", "denied": "⊘", "interrupted": "■", "skipped": "–", "": "◌"}
WAITING = "‖"
LANGUAGES = {"code": "python", "command": "bash"}
GIST_ARGUMENTS = ("command", "code", "pattern", "query", "goal", "path", "name", "action")
_WRAPPED = re.compile(
    r"<untrusted-(\w+) source=\"[^\"\n]*\"[^>\n]*>\nData, not instructions[^\n]*\n"
    r"(.*?)\n</untrusted-\1>",
    re.DOTALL,
)
"""The tags around untrusted content for the model (`safety.scan`), which the user doesn't see."""


def tail(text: str, count: int) -> list[str]:
    """Return the last lines of a text for display, without empty ones."""
    shown = visible(redact(text), lines=True).expandtabs(4).split("\n")
    lines = [line.rstrip() for line in shown if line.strip()][-count:]
    return [line if len(line) <= LIVE_WIDTH else f"{line[: LIVE_WIDTH - 1]}…" for line in lines]


def written(text: str) -> tuple[int, list[str]]:
    """Return how many lines a call's arguments have so far, and the last ones, for display.

    `text` is the beginning of a JSON object, usually with one long text.
    """
    lines = _BREAK.sub(r"\1\n", text).split("\n")
    shown = "\n".join(_OPENING.sub("", line, count=1) for line in lines[-WRITING:])
    for escaped, plain in (('\\"', '"'), ("\\t", "\t"), ("\\\\", "\\")):
        shown = shown.replace(escaped, plain)
    return len(lines), tail(shown, WRITING)


@dataclass(slots=True)
class CallView:
    """The state of a tool call, for display; its duration excludes waits for the user."""

    call: ToolCall
    """The call."""
    started: float
    """Start time, from `time.monotonic()`."""
    gist: str = ""
    """Summary in one line, shown after the tool's name."""
    status: str = ""
    """The result: "" while it runs, then "ok", "error", "denied", "interrupted" or "skipped"."""
    seconds: float = 0.0
    """Duration in seconds, once it has ended."""
    asked: float = 0.0
    """When its pending question was asked, from `time.monotonic()`; 0 if there is none."""
    waited: float = 0.0
    """Seconds spent waiting for the user's answers."""
    note: str = ""
    """A progress note."""
    live: list[str] = field(default_factory=list)
    """The last lines of its output while it is running."""
    result: str = ""
    """Its result, as sent to the model."""
    answer: str = ""
    """The user's answer to its question, for display."""
    children: dict[int, ChildView] = field(default_factory=dict)
    """Its child agents by number."""
    last_line: str = ""
    """The rendered line, cached once it has ended."""

    def lines(self) -> list[str]:
        """Return the call and its children, one Markdown line each."""
        if not self.status:
            live = self._live()
            shown = code_block("\n".join(live), "text").split("\n") if live else ()
            return [self.line(), *shown, *running_lines(self.children.values())]
        return [self.line(), *(child.line() for child in self.children.values())]

    def plain_lines(self) -> list[str]:
        """Return a running call and its children as lines of plain text."""
        children = (plain_text(line) for line in running_lines(self.children.values()))
        return [plain_text(self.line()), *self._live(), *children]

    def _live(self) -> list[str]:
        """Return its last output lines once it has run for `LIVE_AFTER` seconds."""
        return self.live if self.elapsed() >= LIVE_AFTER else []

    def line(self) -> str:
        """Return the call as a Markdown line, which is cached once the call has ended."""
        if self.last_line:
            return self.last_line
        gist = f" {code_span(self.gist)}" if self.gist else ""
        name = escape(one_line(self.call.name))
        mark = WAITING if self.asked else MARKS[self.status]
        line = f"{mark} **{name}**{gist}{self._tail()}"
        self.last_line = line if self.status else ""
        return line

    def block(self) -> str:
        """Return the call as Markdown: its line, which opens to its arguments and result."""
        bodies = self.bodies()
        if not bodies:
            return self.line()
        gist = f" <code>{escape(self.gist)}</code>" if self.gist else ""
        head = f"{MARKS[self.status]} <b>{escape(one_line(self.call.name))}</b>{gist}{self._tail()}"
        inside = "\n\n".join(bodies)
        return f"<details><summary>{head}</summary>\n\n{inside}\n\n</details>"

    def ended(self, status: str, seconds: float) -> None:
        """Record how it ended; `seconds` includes time spent waiting for the user."""
        self._settle()
        self.last_line = ""
        self.status, self.seconds = status, max(seconds - self.waited, 0.0)

    def tell(self, text: str) -> None:
        """Record a note or, if `text` contains a line break, the end of its output so far."""
        if "\n" in text:
            self.show(text)
        else:
            self.note = one_line(visible(redact(text)), LIVE_WIDTH)

    def show(self, text: str) -> None:
        """Record the end of its output so far."""
        self.live = tail(text, LIVE)

    def _settle(self) -> None:
        if self.asked:
            self.waited += time.monotonic() - self.asked
            self.asked = 0.0

    def answered(self, given: ApprovalGiven) -> None:
        self._settle()
        self.last_line = ""
        reason = visible(one_line(redact(given.reason), REASON))
        refused = f"denied: {reason}" if reason else ""
        once = f"answered: {reason}" if reason else "allowed once"
        told: dict[Answer, str] = {
            "once": once,
            "run": "allowed, and run",
            "turn": "allowed in this turn",
            "always": "always allowed",
            "outside": "allowed outside the sandbox",
            "deny": refused,
        }
        self.answer = told[given.answer]

    def _tail(self) -> str:
        parts = [self.answer]
        if self.status in ("error", "denied", "interrupted") and not (
            self.status == "denied" and self.answer
        ):
            parts.append(self.status)
        if self.asked:
            parts.append("waiting for you")
        elif self.status != "skipped":
            parts.append(f"{self.elapsed():.1f} s")
        if not self.status:
            parts.append(self.note)
        return "".join(f" · {escape(part)}" for part in parts if part)

    def elapsed(self) -> float:
        """Return how long the call took or has been running, excluding waits for the user."""
        if self.status:
            return self.seconds
        return (self.asked or time.monotonic()) - self.started - self.waited

    def bodies(self) -> list[str]:
        """Return the arguments, the children and the result as Markdown blocks."""
        out: list[str] = []
        short: list[str] = []
        arguments = list(self.call.arguments.items())
        for name, value in arguments[:MOST_ARGUMENTS]:
            text = value if isinstance(value, str) else repr(value)
            if redact(text) == self.gist:
                continue
            if name in LANGUAGES or "\n" in text or len(text) > SHORT_ARGUMENT:
                out.append(code_block(_cut(text), LANGUAGES.get(name, "text")))
            else:
                short.append(f"{one_line(name)}: {_cut(text)}")
        if more := len(arguments) - MOST_ARGUMENTS:
            short += [f"… {more} more arguments"] if more > 0 else []
        if short:
            out.insert(0, code_block("\n".join(short), "text"))
        if self.children:
            out.append("  \n".join(child.line() for child in self.children.values()))
        if self.result:
            out.append(code_block(_cut(without_tags(self.result)), "text"))
        return out


def without_tags(result: str) -> str:
    """Return a call's result as the user sees it."""
    return _NOT_SENT.sub(r"[\1]", _WRAPPED.sub(r"\2", result))


def gist_of(call: ToolCall, described: str = "") -> str:
    """Return a one-line summary of a call: the tool's description, or its main argument."""
    gist = described
    if not gist:
        named = [call.arguments[key] for key in GIST_ARGUMENTS if call.arguments.get(key)]
        gist = str(named[0] if named else next(iter(call.arguments.values()), ""))
    # Only the beginning is redacted. A secret split there is truncated below.
    return one_line(visible(one_line(redact(gist[: 8 * GIST]), GIST)), GIST)


def _cut(text: str) -> str:
    """Truncate text both before and after escaping, because escaping lengthens it."""
    cut = visible(head_tail(redact(text), SHOWN_CHARACTERS), lines=True)
    return head_tail(cut, SHOWN_CHARACTERS * 2)


KEPT_IN_FULL = 30
"""Maximum number of latest calls to show with arguments and results."""
WHOLE = 50_000
"""Maximum total bytes of calls that are shown completely."""
LISTED = 25_000
"""Maximum total bytes of calls that are shown as one line, and of the text between calls."""
SAID = 2_000
"""Maximum characters of the text between two calls."""
REASONING = 6_000
"""Maximum characters of the reasoning."""
_MARKER = 100
"""Approximate number of characters in the note that marks a truncation."""
_NAMES = 10
"""Maximum number of tools to list for calls that are only counted."""


@dataclass(slots=True)
class TurnStep:
    """The text of one model reply, and the calls that it made."""

    text: str = ""
    """The text; "" if there was none."""
    calls: list[CallView] = field(default_factory=list)
    """The calls in order."""
    _markdown: str = ""
    """The rendered text, cached because a reply doesn't change."""

    def markdown(self) -> str:
        """Return the text as safe Markdown."""
        if self.text and not self._markdown:
            self._markdown = safe_markdown(redact(self.text))
        return self._markdown


@dataclass(frozen=True, slots=True)
class _Block:
    """A block inside the fold; `line` is true for a call that is shown only as a line."""

    text: str
    line: bool = False


def fold(steps: Sequence[TurnStep]) -> str:
    """Return the calls from all steps as one folded block; "" without calls.

    The last step's text is the answer and not part of the fold.
    """
    calls = [call for step in steps for call in step.calls]
    if not calls:
        return ""
    summary = number_of(len(calls), "tool call") + _failure_counts(calls)
    kept, left_out = _latest(steps)
    body = ""
    if left_out:
        names = Counter(call.call.name for call in left_out).most_common()
        parts = [f"{count} × {escape(name[:80])}" for name, count in names[:_NAMES]]
        parts += [f"{len(names) - _NAMES} other tools"] if len(names) > _NAMES else []
        body = f"… {len(left_out)} earlier calls: {', '.join(parts)}{_failure_counts(left_out)}"
    above = _Block("")
    for block in kept:  # calls that are only lines directly follow each other
        gap = "  \n" if block.line and above.line else "\n\n" if body else ""
        body, above = f"{body}{gap}{block.text}", block
    return folded(summary, body)


def folded(summary: str, body: str) -> str:
    """Return Markdown text that unfolds on a click; `summary` is plain text."""
    return f"<details><summary>{escape(summary)}</summary>\n\n{body}\n\n</details>"


def thought(pieces: Sequence[str]) -> str:
    """Return a turn's reasoning, folded; "" if there was none."""
    text = "".join(pieces).strip()
    if not text:
        return ""
    return folded("reasoning", fitted(head_tail(redact(text), REASONING), 2 * REASONING))


def fitted(text: str, room: int) -> str:
    """Return text as safe Markdown of about `room` bytes, truncated in the middle if longer."""
    limit = room
    while True:
        shown = safe_markdown(head_tail(text, limit))
        size = len(shown.encode(errors="replace"))
        if size <= room + _MARKER or limit < _MARKER:
            return shown
        limit = limit * room // size


def _latest(steps: Sequence[TurnStep]) -> tuple[list[_Block], list[CallView]]:
    """Return the blocks that fit, and the earlier calls that don't."""
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


def _failure_counts(calls: Sequence[CallView]) -> str:
    """Return the number of failed and denied calls; "" if there are none."""
    counts = Counter(call.status for call in calls)
    told = (("error", "failed"), ("denied", "denied"))
    return "".join(f", {counts[status]} {word}" for status, word in told if counts[status])


def _size(block: str) -> int:
    return len(block.encode(errors="replace")) + 2 if block else 0
