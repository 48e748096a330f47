"""What a turn looks like: a fold over its events, rendered as Markdown or as plain text.

The running view shows the latest text and a line a call; the finished one is the answer, the calls
folded away in one `<details>`, and a status line: plain Markdown that reads well in JupyterLab,
Notebook, VS Code and on GitHub. Everything a model or a tool said is cleaned on its way in.

Commands put things the same way: small tables, times as people say them, bars of characters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from hermes_nb.agent.undo.changes import Change
from hermes_nb.core.budget import dollars
from hermes_nb.core.escapes import readable, visible
from hermes_nb.core.events import (
    ApprovalAsked,
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
from hermes_nb.core.text import amount, number_of, one_line
from hermes_nb.notebook.display import changes
from hermes_nb.notebook.display.calls import (
    WAITING,
    CallView,
    TurnStep,
    fold,
    folded,
    gist_of,
    take_in,
    thought,
)
from hermes_nb.notebook.display.tables import plain_text
from hermes_nb.safety.markup import escape, safe_markdown
from hermes_nb.safety.redact import redact
from hermes_nb.tools.plan import State, steps, told

EARLIER = 8_000
"""Characters of the running view for calls and what was said before the latest text; the finished
one has them all, folded."""
QUIET = 30.0
"""Seconds without a sign of the model after which that is said."""
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


class Transcript:
    """Everything there is to show about a turn.

    `describe(call)` may say what a call is about, better than its arguments do, `loading()`
    whether the model is still being loaded, and `live()` the end of what code in this kernel prints
    while it runs, None where none does. `changes` are what the turn of `session` left changed,
    and `learned` counts the notes it saved, as the undo knows. `drew`: pictures stand below
    the view, whose status line then stands below them. `spelled` is how a command is begun where
    this is shown.
    """

    def __init__(self, *, model: str = "") -> None:
        self.model = model
        self.describe: Callable[[ToolCall], str] = lambda _: ""
        self.loading: Callable[[], bool] = bool
        self.live: Callable[[], str | None] = lambda: None
        self.drew = False
        self.spelled = "%hermes "
        self.usage = Usage()
        self.ending: TurnEnded | None = None
        self.notes: list[str] = []
        self.changes: Sequence[Change] = ()
        self.learned = 0
        self.session = ""
        self._turn = 0
        self._plan: list[tuple[State, str]] = []
        self._steps: list[TurnStep] = []
        self._draft: list[str] = []
        self._reasoning: list[str] = []
        self._calls: dict[str, CallView] = {}
        self._shown = 0  # calls that have a line: all but those that keep the plan
        self._open: set[str] = set()
        self._asked: set[str] = set()
        self._asked_since = self._waited = 0.0
        self._retried: RequestRetried | None = None
        self._began = False
        self._before = 0
        self._started = self._heard = time.monotonic()
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

    @property
    def seconds(self) -> float:
        """How long the turn has worked: the time that its user took for answers is not in it."""
        now = self._asked_since if self._asked else time.monotonic()
        return self._seconds if self.ending else now - self._started - self._waited

    def __call__(self, event: Event) -> None:
        self._heard = time.monotonic()
        match event:
            case TurnStarted(turn):
                self._began, self._started, self._turn = True, time.monotonic(), turn
                self._before = len(self.notes)
            case TextDelta(text):
                self._draft.append(text)
                self._retried = None
            case ReasoningDelta(text, was_text):
                self._reasoning += [text] if text else []
                self._retried = None
                if was_text:
                    self._draft.clear()
            case RequestRetried():
                self._draft.clear()
                self._retried = event
            case UsageReported(usage, model, purpose):
                self.usage += usage
                self.model = self.model if purpose else model or self.model
            case ContextCompressed():
                self.notes.append(told_compression(event))
            case MessageAdded(message):
                self._message(message)
            case TurnEnded():
                self._seconds, self.ending = self.seconds, event
            case _:
                self._call(event)

    def look(self) -> None:
        """Take in what the call that runs code in this kernel has shown so far."""
        if self._open and (text := self.live()) is not None:
            self._steps[-1].calls[-1].show(text)

    def running(self) -> str:
        """Return the view of a running turn, as Markdown."""
        self.look()
        blocks = [*self.notes[: self._before]]
        blocks.append("\n".join(f"{escape(line)}  " for line in self.plan_lines()))
        blocks += self._so_far()
        if self._draft:
            said = self.answer
            more = "" if said.rstrip().endswith(("…", "...")) else " …"
            blocks.append(safe_markdown(redact(said)) + more)
        blocks += self.notes[self._before :]
        if self._reasoning and not self._draft and not self._calls:
            blocks.append("> " + escape(one_line("".join(self._reasoning)[-400:], 200)))
        blocks.append(f"<sub>{self._running_status()}</sub>")
        return "\n\n".join(block for block in blocks if block.strip())

    def _so_far(self) -> list[str]:
        """Return what was said and called, in order: what stands there stays where it is."""
        blocks: list[str] = []  # the last one first, as are lines
        lines: list[str] = []  # of calls with nothing said between them
        left, room, latest = self._shown, EARLIER, not self._draft
        for step in reversed(self._steps):
            for call in reversed(step.calls):
                if call.call.name == TODO:
                    continue
                shown = call.lines()
                room -= sum(map(len, shown))
                if room < 0:
                    break
                lines += reversed(shown)
                left -= 1
            text = safe_markdown(redact(step.text)) if step.text else ""
            room -= 0 if latest else len(text)
            if room < 0:
                break
            if text:
                blocks += [_quoted(reversed(lines)), text]
                lines, latest = [], False
        lines += [f"… {number_of(left, 'earlier call')}"] if left else []
        return [_quoted(reversed(lines)), *reversed(blocks)]

    def finished(
        self,
        *,
        failure: bool = True,
        room: int | None = None,
        page: bool = False,
        status: bool = True,
    ) -> str:
        """Return the view of a finished turn, as Markdown.

        `failure` includes why one failed; `room` bounds the answer, in bytes. `page` allows HTML
        where Markdown has no means, for what a page shows. `status` adds the status line.
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
        if self._began and status:
            blocks.append(self.footer())
        return "\n\n".join(block for block in blocks if block.strip())

    def footer(self) -> str:
        """Return the status line of a finished turn, as Markdown."""
        return f"<sub>{self._status(self._mark())}</sub>"

    def plain(self, *, room: int | None = None, status: bool = True) -> str:
        """Return the finished turn as plain text; `room` bounds the answer, in bytes."""
        lines = [*map(plain_text, self.notes), _within(readable(redact(self.answer)), room, str)]
        calls = self.calls
        if len(calls) > PLAIN_CALLS:
            lines.append(f"  … {len(calls) - PLAIN_CALLS} earlier calls")
        told = (line for call in calls[-PLAIN_CALLS:] for line in call.lines())
        lines += [f"  {plain_text(line)}" for line in told]
        lines += self.ending_lines() if status else self.ending_lines()[:-1]
        return "\n".join(line for line in lines if line.strip())

    def plan_lines(self) -> list[str]:
        """Return the turn's plan, a line of plain text for each step."""
        shown = self._plan[:MOST_STEPS]
        lines = [f"{STEPS[state]} {one_line(visible(redact(text)), 120)}" for state, text in shown]
        more = len(self._plan) - len(shown)
        return [*lines, f"… {more} more"] if more else lines

    def status_line(self) -> str:
        """Return how a running turn goes, as a line of plain text."""
        return plain_text(self._running_status())

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
            self._steps.append(TurnStep(text=message.text))
            self._draft.clear()
            self._retried = None
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
                self._shown += call.name != TODO
                if not self._steps:
                    self._steps.append(TurnStep())
                self._steps[-1].calls.append(view)
            case ApprovalAsked(call) if call.id in self._calls:
                now = self._calls[call.id].asked = time.monotonic()
                if not self._asked:
                    self._asked_since = now
                self._asked.add(call.id)
            case ApprovalGiven(call_id) if call_id in self._calls:
                self._calls[call_id].answered(event)
                self._settle(call_id)
            case ToolProgress(call_id, text) if call_id in self._calls:
                self._calls[call_id].tell(text)
            case ToolFinished(call, status, seconds):
                self._open.discard(call.id)
                self._calls[call.id].ended(status, seconds)
                self._settle(call.id)
                if call.name == TODO and status == "ok":
                    self._plan = steps(call.arguments)
            case _:  # of a call that is not known: it belongs to no turn that is shown here
                pass

    def _settle(self, call_id: str) -> None:
        """Let the turn's clock go on once nothing waits for its user."""
        if call_id in self._asked:
            self._asked.discard(call_id)
            self._waited += 0.0 if self._asked else time.monotonic() - self._asked_since

    def _outcome(self) -> str:
        if self.ending is None:
            return ""
        match self.ending.reason:
            case "answered":
                note = self.ending.note
                return f"**Cut off:** {escape(note)}; ask on to continue." if note else ""
            case "interrupted":
                return "Stopped. What was done so far is kept; ask on to continue."
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

    def _running_status(self) -> str:
        return self._status(f"{WAITING} waiting for you" if self._asked else "◌ running")

    def _pending(self) -> list[str]:
        """Return what a model is doing that says nothing just now."""
        if self._asked or self._open:
            return []
        silent = time.monotonic() - self._heard
        told = []
        if (retried := self._retried) is not None:
            which = f"retry {retried.attempt + 1} of {retried.tries}" if retried.tries else "again"
            left = retried.delay - silent
            silent = -left if retried.delay else silent
            wait = f" in {left:.0f} s" if left >= 1 else ""
            told.append(f"{which}{wait}: {redact(retried.reason)}")
        if self.loading():
            told.append("loading the model")
        elif silent >= QUIET:
            told.append(f"no data for {silent:.0f} s")
        return told

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
            worked = "worked " if self._asked else ""
            parts.append(f"{worked}{self.seconds:.0f} s")
            parts += map(escape, self._pending())
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
    restored = event.phase == "restored"
    line = (
        f"{'Restored' if restored else 'Compressed'} from about {amount(event.tokens_before)} to "
        f"{amount(event.tokens_after)} tokens: {PHASES.get(event.phase, event.phase)}."
    )
    if not restored:
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


def _quoted(lines: Iterable[str]) -> str:
    return "\n".join(f"> {line}  " for line in lines)
