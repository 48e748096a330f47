"""What a turn looks like: a fold over its events, rendered as Markdown or as plain text.

The running view shows the latest text and a line a call; the finished one is the answer, the calls
folded away in one `<details>`, and a status line: plain Markdown that reads well in JupyterLab,
Notebook, VS Code and on GitHub. Everything a model or a tool said is cleaned on its way in.
"""

from __future__ import annotations

import html
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from hermes_nb.core.events import (
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
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.safety.markup import code_block, code_span, escape, safe_markdown
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

SHOWN_CALLS = 8
"""The running view keeps this many of the latest calls; the finished one has them all, folded."""
SHOWN_CHARACTERS = 2_000
"""Of each call's arguments and result; the model reads more."""
KEPT_IN_FULL = 30
"""A turn with more calls than this lists the older ones as one line each, to bound the cell."""
ROUNDS_UP = 0.99995
"""999,950 tokens are 1.0M, not 1000.0k."""
MARKS = {"ok": "✓", "error": "✗", "denied": "⊘", "interrupted": "■", "skipped": "–", "": "◌"}
LANGUAGES = {"code": "python", "command": "bash"}
SHORT_ARGUMENT = 120
"""Characters up to which an argument shares a block with the others, by name."""
GIST_ARGUMENTS = ("command", "code", "path", "name", "pattern", "query", "goal", "action")


@dataclass(slots=True)
class CallView:
    """A call as the user sees it."""

    call: ToolCall
    started: float
    gist: str = ""
    status: str = ""
    seconds: float = 0.0
    progress: str = ""
    result: str = ""

    def line(self) -> str:
        """Return the call as one Markdown line."""
        gist = f" {code_span(self.gist)}" if self.gist else ""
        name = escape(visible(self.call.name))
        mark = MARKS[self.status]
        if self.status in ("error", "denied", "interrupted"):
            gist += f" · {self.status}"
        if self.status != "skipped":
            gist += f" · {self.elapsed():.1f} s"
        tail = f" · {escape(self.progress)}" if self.progress and not self.status else ""
        return f"{mark} **{name}**{gist}{tail}"

    def plain_line(self) -> str:
        """Return the call as one line of plain text."""
        return plain_text(self.line())

    def elapsed(self) -> float:
        """Return how long the call took, or has been running."""
        return self.seconds if self.status else time.monotonic() - self.started


@dataclass(slots=True)
class Step:
    """One request's text and the calls it led to."""

    text: str = ""
    calls: list[CallView] = field(default_factory=list)


class Transcript:
    """Everything there is to show about a turn.

    `describe(call)` may say what a call is about, better than its arguments do.
    """

    def __init__(self, *, model: str = "") -> None:
        self.model = model
        self.describe: Callable[[ToolCall], str] = lambda _: ""
        self.usage = Usage()
        self.ending: TurnEnded | None = None
        self.notes: list[str] = []
        self._steps: list[Step] = []
        self._draft: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[str, CallView] = {}
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
        draft = "".join(self._draft)
        if draft or not self._steps:
            return draft
        return self._steps[-1].text

    @property
    def calls(self) -> list[CallView]:
        """The turn's calls so far."""
        return [call for step in self._steps for call in step.calls]

    @property
    def running_call(self) -> bool:
        """Whether a call is running now."""
        return any(not call.status for call in self._calls.values())

    def __call__(self, event: Event) -> None:
        """Take in an event."""
        match event:
            case TurnStarted():
                self._began, self._started = True, time.monotonic()
            case TextDelta(text):
                self._draft.append(text)
                self._waiting = ""
            case ReasoningDelta(text):
                self._reasoning.append(text)
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
            case ToolStarted(call):
                self._start(call)
            case ToolProgress(call_id, text) if call_id in self._calls:
                self._calls[call_id].progress = one_line(visible(text), 80)
            case ToolFinished(call, status, seconds):
                self._calls[call.id].status = status
                self._calls[call.id].seconds = seconds
            case TurnEnded():
                self.ending = event
                self._seconds = time.monotonic() - self._started
            case _:
                pass

    def running(self) -> str:
        """Return the view of a running turn, as Markdown."""
        blocks = [safe_markdown(redact(self.answer)) + (" …" if self._draft else "")]
        blocks += self.notes
        calls = self.calls
        lines = [call.line() for call in calls[-SHOWN_CALLS:]]
        if len(calls) > SHOWN_CALLS:
            lines.insert(0, f"… {len(calls) - SHOWN_CALLS} earlier calls")
        if lines:
            blocks.append("\n".join(f"> {line}  " for line in lines))
        if self._reasoning and not self._draft and not calls:
            blocks.append("> " + escape(one_line("".join(self._reasoning)[-400:], 200)))
        blocks.append(f"<sub>{self._status('◌ running')}</sub>")
        return "\n\n".join(block for block in blocks if block.strip())

    def finished(self, *, failure: bool = True) -> str:
        """Return the view of a finished turn, as Markdown; `failure` includes why one failed."""
        shown = failure or (self.ending is not None and self.ending.reason != "failed")
        outcome = self._outcome() if shown else ""
        blocks = [*self.notes, safe_markdown(redact(self.answer)), outcome]
        blocks += [self._details(), f"<sub>{self._status(self._mark())}</sub>"]
        return "\n\n".join(block for block in blocks if block.strip())

    def plain(self) -> str:
        """Return the finished turn as plain text."""
        lines = [*map(plain_text, self.notes), redact(self.answer)]
        lines += [f"  {call.plain_line()}" for call in self.calls]
        return "\n".join(line for line in [*lines, *self.ending_lines()] if line.strip())

    def ending_lines(self) -> list[str]:
        """Return how the turn ended and what it used, as lines of plain text."""
        lines = (self._outcome(), self._status(self._mark()))
        return [plain_text(line) for line in lines if line]

    def _message(self, message: Message) -> None:
        if message.role == "assistant":
            self._steps.append(Step(text=message.text))
            self._draft.clear()
            self._waiting = ""
        elif message.role == "tool" and message.call_id in self._calls:
            self._calls[message.call_id].result = message.text

    def _start(self, call: ToolCall) -> None:
        view = CallView(call, time.monotonic(), self._gist(call))
        self._calls[call.id] = view
        if not self._steps:
            self._steps.append(Step())
        self._steps[-1].calls.append(view)

    def _gist(self, call: ToolCall) -> str:
        """Return what a call is about on one line: in the tool's words, or its main argument."""
        gist = self.describe(call)
        if not gist:
            named = [call.arguments[key] for key in GIST_ARGUMENTS if call.arguments.get(key)]
            gist = str(named[0] if named else next(iter(call.arguments.values()), ""))
        return one_line(visible(redact(gist)), 90)

    def _outcome(self) -> str:
        """Return the line that says why a turn ended other than by an answer."""
        if self.ending is None or self.ending.reason == "answered":
            return ""
        match self.ending.reason:
            case "interrupted":
                return "**Stopped.** What was done so far is kept; ask on to continue."
            case "failed":
                return f"**Failed:** {escape(redact(self.ending.error))}"
            case _:
                return "**Out of requests for this turn.** Ask on to continue."

    def _mark(self) -> str:
        reason = self.ending.reason if self.ending else ""
        mark = {"answered": "✓", "interrupted": "■", "failed": "✗"}.get(reason, "◔")
        return f"{mark} {self._seconds:.1f} s"

    def _status(self, head: str) -> str:
        used = self.usage
        parts = [head, escape(self.model)]
        if used.requests:
            parts.append(f"{used.requests} request{'s' if used.requests != 1 else ''}")
        if used.input:
            share = f" ({round(100 * used.cached / used.input)} % cached)" if used.cached else ""
            parts.append(f"{amount(used.input)} in{share}")
            parts.append(f"{amount(used.output)} out")
        if used.cost is not None:
            parts.append(f"${used.cost:.3f}")
        if self.ending is None:
            parts.append(f"{time.monotonic() - self._started:.0f} s")
            parts.append(escape(self._waiting))
        return " · ".join(part for part in parts if part)

    def _details(self) -> str:
        calls = self.calls
        if not calls:
            return ""
        bad = sum(call.status in ("error", "denied") for call in calls)
        summary = f"{len(calls)} tool call{'s' if len(calls) != 1 else ''}"
        summary += f", {bad} failed" if bad else ""
        blocks: list[str] = []
        folded = len(calls) - KEPT_IN_FULL
        for index, (step, call) in enumerate((s, c) for s in self._steps for c in s.calls):
            if step.calls[0] is call and step.text and step is not self._steps[-1]:
                blocks.append(safe_markdown(redact(step.text)))
            blocks.append(call.line())
            if index >= folded:
                blocks += _bodies(call)
        body = "\n\n".join(blocks)
        return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


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


def amount(tokens: int) -> str:
    """Return a token count as a person reads it: 640, 14.7k, 1.2M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if tokens >= size * ROUNDS_UP:
            return f"{tokens / size:.1f}{unit}"
    return str(tokens)


def _bodies(call: CallView) -> list[str]:
    """Return a call's arguments and result as code blocks, cut to what a reader wants."""
    out: list[str] = []
    short: list[str] = []
    for name, value in call.call.arguments.items():
        text = value if isinstance(value, str) else repr(value)
        if text == call.gist:
            continue
        if name in LANGUAGES or "\n" in text or len(text) > SHORT_ARGUMENT:
            out.append(code_block(_shown(text), LANGUAGES.get(name, "text")))
        else:
            short.append(f"{name}: {_shown(text)}")
    if short:
        out.insert(0, code_block("\n".join(short), "text"))
    if call.result:
        out.append(code_block(_shown(call.result), "text"))
    return out


def _shown(text: str) -> str:
    return visible(head_tail(redact(text), SHOWN_CHARACTERS), lines=True)


def plain_text(markdown: str) -> str:
    """Return our own Markdown as plain text: no tags, no emphasis, no code marks."""
    return html.unescape(re.sub(r"</?\w+>|\*\*|`", "", markdown))
