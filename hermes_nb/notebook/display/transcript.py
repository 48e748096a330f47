"""What a turn looks like: a fold over its events, rendered as Markdown or as plain text.

The running view shows the latest text and a line a call; the finished one is the answer, the calls
folded away in one `<details>`, and a status line: plain Markdown that reads well in JupyterLab,
Notebook, VS Code and on GitHub. Everything a model or a tool said is cleaned on its way in.

Commands put things the same way: small tables, times as people say them, bars of characters.
"""

from __future__ import annotations

import datetime
import html
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from hermes_nb.agent.changes import Change
from hermes_nb.core.budget import dollars
from hermes_nb.core.events import (
    ApprovalGiven,
    ChildFinished,
    ChildProgress,
    ChildStarted,
    ContextCompressed,
    Event,
    MessageAdded,
    ReasoningDelta,
    RequestRetried,
    TextDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import Message, ToolCall, Usage
from hermes_nb.core.text import amount, number_of, one_line, readable, visible
from hermes_nb.notebook.display import changes
from hermes_nb.notebook.display.calls import CallView, Step, fold, folded, gist_of, take_in, thought
from hermes_nb.safety.markup import escape, safe_markdown
from hermes_nb.safety.redact import redact
from hermes_nb.tools.plan import State, steps, told

WIDTH = 60
"""Characters of a full bar: it fits a terminal and a narrow page."""
SHADES = "█▓▒░▚▀▄▌╬┄"
"""Of the parts, one each for as many as a prompt usually has."""
EMPTY = "·"
MARK = "┃"


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a Markdown table of names and values; the values are plain text."""
    lines = ["| | |", "|---|---|"]
    return "\n".join([*lines, *(f"| **{name}** | {escape(value)} |" for name, value in rows)])


def grid(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; its cells are Markdown already, on one line each."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def aligned(text: str) -> str:
    """Return a text with its Markdown tables as columns, for places that draw no tables.

    Only what `facts` and `grid` write is meant: a header, a rule, rows; other lines stay.
    """
    out: list[str] = []
    table: list[list[str]] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith("|") and line.endswith("|") and len(line) > 1:
            table.append([cell.strip() for cell in line[1:-1].split("|")])
            continue
        out += _columns(table)
        table = []
        out.append(line)
    return "\n".join(out[:-1])


def _columns(table: list[list[str]]) -> list[str]:
    rows = [row for row in table if any(row) and not all(re.fullmatch(":?-+:?", c) for c in row)]
    count = max(map(len, rows), default=0)
    wide = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(count)]
    return ["  ".join(c.ljust(w) for c, w in zip(row, wide, strict=False)).rstrip() for row in rows]


def ago(seconds: float) -> str:
    """Return how long ago a time was, as a person says it."""
    passed = max(time.time() - seconds, 0)
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = int(passed // size)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def moment(seconds: float) -> str:
    """Return a time as a date and a clock time, local, to the minute."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


def shade(index: int) -> str:
    """Return the character of the part at `index`."""
    return SHADES[index % len(SHADES)]


def widths(sizes: Sequence[float], width: int = WIDTH) -> list[int]:
    """Return whole numbers that share a width as the sizes do, and sum to it.

    Whatever is there at all gets one, as long as there is room for that; nothing but zeros shares
    nothing.
    """
    some = [max(size, 0.0) for size in sizes]
    total = sum(some)
    if not total:
        return [0] * len(some)
    exact = [size / total * width for size in some]
    room = sum(size > 0 for size in some) <= width
    found = [max(int(share), int(share > 0 and room)) for share in exact]
    for _ in range(sum(found) - width):  # what the small ones were given, the largest gives
        found[found.index(max(found))] -= 1
    short = width - sum(found)
    by_rest = sorted(range(len(found)), key=lambda i: found[i] - exact[i])
    for index in by_rest[:short]:
        found[index] += 1
    return found


def stacked(sizes: Sequence[float], width: int = WIDTH) -> str:
    """Return parts side by side, each in its shade."""
    return "".join(shade(i) * each for i, each in enumerate(widths(sizes, width)))


def gauge(used: float, whole: float, mark: float = 0.0, width: int = WIDTH) -> str:
    """Return how much of a whole is used, with a mark on it; "" for no whole."""
    if whole <= 0:
        return ""
    full = min(round(width * max(used, 0.0) / whole), width) or int(used > 0)
    bar = SHADES[0] * full + EMPTY * (width - full)
    at = min(round(width * mark / whole), width - 1)
    return f"{bar[:at]}{MARK}{bar[at + 1 :]}" if 0 < mark <= whole else bar


SHOWN_CALLS = 8
"""The running view keeps this many of the latest calls; the finished one has them all, folded."""
ANSWER = 45_000
"""Bytes of an answer that a cell keeps, twice: as Markdown and as plain text. It is about what a
model says at most at a time; `%hermes last` shows the rest of a longer one."""
MOST_STEPS = 30
"""Steps of a plan that are shown."""
STEPS: Mapping[State, str] = {"done": "☑", "now": "◐", "open": "☐"}
TODO = "todo"
"""The tool whose calls have the plan."""
PLAIN_CALLS = 60
"""Lines of calls that the plain text has."""
_FENCED = re.compile(r"^(`{3,})\S*\n(.*?)^\1$", re.DOTALL | re.MULTILINE)


class Transcript:
    """Everything there is to show about a turn.

    `describe(call)` may say what a call is about, better than its arguments do. `changes` are what
    the turn of `session` left changed, and `learned` counts the notes it saved, as the undo knows.
    """

    def __init__(self, *, model: str = "") -> None:
        self.model = model
        self.describe: Callable[[ToolCall], str] = lambda _: ""
        self.usage = Usage()
        self.ending: TurnEnded | None = None
        self.notes: list[str] = []
        self.changes: Sequence[Change] = ()
        self.learned = 0
        self.session = ""
        self._turn = 0
        self._plan: list[tuple[State, str]] = []
        self._steps: list[Step] = []
        self._draft: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[str, CallView] = {}
        self._open: set[str] = set()
        self._waiting = ""
        self._began = False
        self._started = time.monotonic()
        self._seconds = 0.0

    @property
    def started(self) -> bool:
        """Whether there is anything to show: a turn that began, or a note before it."""
        return self._began or bool(self.notes)

    @property
    def answer(self) -> str:
        """The last text of the assistant, as far as it has come."""
        if len(self._draft) > 1:  # read at each update: what was joined once stays joined
            self._draft[:] = ["".join(self._draft)]
        if self._draft or not self._steps:
            return self._draft[0] if self._draft else ""
        return self._steps[-1].text

    @property
    def calls(self) -> list[CallView]:
        return [call for step in self._steps for call in step.calls]

    @property
    def refused(self) -> list[str]:
        """The calls that were denied, each on a line."""
        return [f"{c.call.name} {c.gist}".strip() for c in self.calls if c.status == "denied"]

    @property
    def metadata(self) -> dict[str, object]:
        """What the output of a finished turn says to programs: which calls were refused."""
        return {"hermes": {"refused": self.refused}} if self.refused else {}

    def call(self, call_id: str) -> CallView:
        return self._calls[call_id]

    @property
    def running_call(self) -> bool:
        """Whether a call is running now."""
        return bool(self._open)

    def __call__(self, event: Event) -> None:
        match event:
            case TurnStarted(turn):
                self._began, self._started, self._turn = True, time.monotonic(), turn
            case TextDelta(text):
                self._draft.append(text)
                self._waiting = ""
            case ReasoningDelta(text, was_text):
                self._reasoning.append(text)
                if was_text:
                    self._draft.clear()
            case RequestRetried(reason, delay):
                self._draft.clear()
                wait = f", again in {delay:.0f} s" if delay >= 1 else ""
                self._waiting = f"{redact(reason)}{wait}"
            case UsageReported(usage, model):
                self.usage += usage
                self.model = model or self.model
            case ContextCompressed():
                self.notes.append(told_compression(event))
            case MessageAdded(message):
                self._message(message)
            case TurnEnded():
                self.ending = event
                self._seconds = time.monotonic() - self._started
            case _:
                self._call(event)

    def running(self) -> str:
        """Return the view of a running turn, as Markdown."""
        # What was said last stays in sight while the calls after it run.
        texts = (step.text for step in reversed(self._steps) if step.text)
        said = self.answer or next(texts, "")
        blocks = [safe_markdown(redact(said)) + (" …" if self._draft else ""), *self.notes]
        blocks.append("\n".join(f"{escape(line)}  " for line in self.plan_lines()))
        calls = [call for call in self.calls if call.call.name != TODO]
        lines = [line for call in calls[-SHOWN_CALLS:] for line in call.lines()]
        if len(calls) > SHOWN_CALLS:
            lines.insert(0, f"… {len(calls) - SHOWN_CALLS} earlier calls")
        if lines:
            blocks.append("\n".join(f"> {line}  " for line in lines))
        if self._reasoning and not self._draft and not calls:
            blocks.append("> " + escape(one_line("".join(self._reasoning)[-400:], 200)))
        blocks.append(f"<sub>{self._status('◌ running')}</sub>")
        return "\n\n".join(block for block in blocks if block.strip())

    def finished(self, *, failure: bool = True, room: int | None = None, page: bool = False) -> str:
        """Return the view of a finished turn, as Markdown.

        `failure` includes why one failed; `room` bounds the answer, in bytes. `page` allows HTML
        where Markdown has no means, for what a page shows.
        """
        shown = failure or (self.ending is not None and self.ending.reason != "failed")
        outcome = self._outcome() if shown else ""
        blocks = [*self.notes, _within(redact(self.answer), room, safe_markdown), outcome]
        turn = self._turn, self.session
        if self.changes or self.learned:
            blocks.append(changes.folded(self.changes, self.learned, *turn, page=page))
        if plan := self.plan_lines():
            listed = "  \n".join(map(escape, plan))
            blocks.append(folded(f"plan: {told(self._plan)}", listed))
        blocks += [thought(self._reasoning), fold(self._steps)]
        if self._began:
            blocks.append(f"<sub>{self._status(self._mark())}</sub>")
        return "\n\n".join(block for block in blocks if block.strip())

    def plain(self, *, room: int | None = None) -> str:
        """Return the finished turn as plain text; `room` bounds the answer, in bytes."""
        lines = [*map(plain_text, self.notes), _within(readable(redact(self.answer)), room, str)]
        calls = self.calls
        if len(calls) > PLAIN_CALLS:
            lines.append(f"  … {len(calls) - PLAIN_CALLS} earlier calls")
        told = (line for call in calls[-PLAIN_CALLS:] for line in call.lines())
        lines += [f"  {plain_text(line)}" for line in told]
        return "\n".join(line for line in [*lines, *self.ending_lines()] if line.strip())

    def plan_lines(self) -> list[str]:
        """Return the turn's plan, a line of plain text for each step."""
        shown = self._plan[:MOST_STEPS]
        lines = [f"{STEPS[state]} {one_line(visible(redact(text)), 120)}" for state, text in shown]
        more = len(self._plan) - len(shown)
        return [*lines, f"… {more} more"] if more else lines

    def status_line(self) -> str:
        """Return how a running turn goes, as a line of plain text."""
        return plain_text(self._status("◌ running"))

    def ending_lines(self) -> list[str]:
        """Return how the turn ended and what it used, as lines of plain text; none before it."""
        if not self._began:
            return []
        lines = [plain_text(self._outcome()), plain_text(self._status(self._mark()))]
        if (self.changes or self.learned) and (told := changes.line(self.changes, self.learned)):
            back = changes.ways_back(self.changes, self.learned, self._turn)
            lines.insert(1, " · ".join([told, *back]))
        return [line for line in lines if line]

    def _message(self, message: Message) -> None:
        if message.role == "assistant":
            self._steps.append(Step(text=message.text))
            self._draft.clear()
            self._waiting = ""
            if self._reasoning:
                self._reasoning.append("\n\n")
        elif message.role == "tool" and message.call_id in self._calls:
            self._calls[message.call_id].result = message.text

    def _call(self, event: Event) -> None:
        match event:
            case ChildStarted() | ChildProgress() | ChildFinished():
                if (view := self._calls.get(event.call_id)) is not None:
                    take_in(view.children, event)
                if isinstance(event, ChildFinished):
                    self.usage += event.usage
            case ToolStarted(call):
                view = CallView(call, time.monotonic(), gist_of(call, self.describe(call)))
                self._calls[call.id] = view
                self._open.add(call.id)
                if not self._steps:
                    self._steps.append(Step())
                self._steps[-1].calls.append(view)
            case ApprovalGiven(call_id) if call_id in self._calls:
                self._calls[call_id].answered(event)
            case ToolProgress(call_id, text) if call_id in self._calls:
                self._calls[call_id].progress = one_line(visible(text), 80)
            case ToolFinished(call, status, seconds):
                self._open.discard(call.id)
                self._calls[call.id].status = status
                self._calls[call.id].seconds = seconds
                if call.name == TODO and status == "ok":
                    self._plan = steps(call.arguments)
            case _:  # of a call that is not known: it belongs to no turn that is shown here
                pass

    def _outcome(self) -> str:
        if self.ending is None or self.ending.reason == "answered":
            return ""
        match self.ending.reason:
            case "interrupted":
                return "**Stopped.** What was done so far is kept; ask on to continue."
            case "failed":
                return f"**Failed:** {escape(redact(self.ending.error))}"
            case _ if self.ending.note:
                return f"**Out of budget:** {escape(self.ending.note)}."
            case _:
                return (
                    "**Out of requests for this turn.** Ask on to continue; "
                    "`--max-requests N` gives a turn more."
                )

    def _mark(self) -> str:
        reason = self.ending.reason if self.ending else ""
        mark = {"answered": "✓", "interrupted": "■", "failed": "✗"}.get(reason, "◔")
        return f"{mark} {self._seconds:.1f} s"

    def _status(self, head: str) -> str:
        used = self.usage
        parts = [head, escape(self.model)]
        if used.requests:
            parts.append(number_of(used.requests, "request"))
        if used.input:
            share = f" ({round(100 * used.cached / used.input)} % cached)" if used.cached else ""
            parts.append(f"{amount(used.input)} in{share}")
            parts.append(f"{amount(used.output)} out")
        if used.cost is not None:
            parts.append(escape(dollars(used.cost)))
        if self.ending is None:
            parts.append(f"{time.monotonic() - self._started:.0f} s")
            parts.append(escape(self._waiting))
        return " · ".join(part for part in parts if part)


PHASES = {
    "pruned": "long results were shortened",
    "summarised": "the middle became a summary",
    "extracted": "the middle became a record made by rule, without a model",
    "referenced": "the middle became references that can be expanded",
    "restored": "an earlier conversation was put back",
}
"""What each way of compressing does, in words."""


def told_compression(event: ContextCompressed) -> str:
    """Return what happened to the conversation, in Markdown."""
    line = (
        f"Compressed from about {amount(event.tokens_before)} to {amount(event.tokens_after)} "
        f"tokens: {PHASES.get(event.phase, event.phase)}."
    )
    if event.phase != "restored":
        line += " `%hermes compress --undo` takes it back."
    return f"{line} {escape(event.warning)}" if event.warning else line


def _within(text: str, room: int | None, show: Callable[[str], str]) -> str:
    """Return a text as it is shown, in `room` bytes: of a longer one the beginning and a note."""
    shown = show(text)
    limit = len(text)
    while room is not None and (size := len(shown.encode(errors="replace"))) > room and limit:
        limit = min(limit * room // size, limit - 1)
        cut = text[:limit]
        shown = show(cut[: cut.rfind("\n") + 1] or cut)
    if limit == len(text):
        return shown
    return f"{shown}\n\n… of {len(text):,} characters; `%hermes last` shows all of them."


def plain_text(markdown: str) -> str:
    """Return our own Markdown as plain text: no tags, emphasis or code marks, tables in columns."""
    bare = re.sub(r"</?\w+>|\*\*|`", "", markdown.replace("<br>", "\n"))
    bar = "\0"  # one that `escape` wrote is no border of a cell
    return aligned(html.unescape(bare.replace("&#124;", bar))).replace(bar, "|")


def printed(markdown: str) -> str:
    """Return our own Markdown as plain text that is read: fenced code stays, without its fences."""
    pieces, at = [], 0
    for fenced in _FENCED.finditer(markdown):
        pieces += [plain_text(markdown[at : fenced.start()]), fenced[2]]
        at = fenced.end()
    text = "".join([*pieces, plain_text(markdown[at:])])
    return re.sub(r"\n{3,}", "\n\n", text)  # where a tag had a line of its own
