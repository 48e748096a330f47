"""Collect a turn's events, and render it as Markdown or plain text.

While a turn runs, the view shows the latest text and one line per call. Afterwards it shows the
answer, the calls in one folded `<details>`, and a status line. It is plain Markdown that renders
well in JupyterLab, Notebook, VS Code and on GitHub. Text from models and tools is sanitised.

Command output has the same style: small tables, relative times, bars made of characters.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence

from hermes_nb.agent.session.turn import MARKS, mark_of
from hermes_nb.agent.undo.changes import Change
from hermes_nb.core.budget import dollars
from hermes_nb.core.conversation import UNVERIFIED
from hermes_nb.core.escapes import readable, visible
from hermes_nb.core.events import (
    ApprovalAsked,
    ApprovalGiven,
    CallDelta,
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
from hermes_nb.core.steering import added_by
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
    written,
)
from hermes_nb.notebook.display.tables import plain_text
from hermes_nb.safety.markup import code_block, escape, safe_markdown
from hermes_nb.safety.redact import redact
from hermes_nb.tools.plan import State, progress_line, steps

EARLIER = 4_000
"""Characters of calls and earlier text shown while a turn is running. Once it has finished, all of
them are shown, folded."""
QUIET = 30.0
"""Seconds without data from the model after which the status line mentions it."""
ANSWER = 45_000
"""Maximum bytes of an answer in a cell, once as Markdown and once as plain text: about the longest
model reply. `%hermes last` shows longer answers completely."""
MOST_STEPS = 30
"""Maximum number of plan steps to display."""
STEPS: Mapping[State, str] = {"done": "☑", "now": "◐", "open": "☐"}
TODO = "todo"
"""The tool whose calls contain the plan."""
NAMED = 2
"""Maximum number of denied calls that the status line names."""
GIST = 60
"""Maximum characters of each."""
PLAIN_CALLS = 60
"""Maximum number of call lines in the plain text."""


class Transcript:
    """Everything displayed about a turn; call the object with each event.

    Attributes:
        model: the model's name.
        describe: returns a description of a call, or "" to use its arguments.
        loading: returns whether the model is still being loaded.
        live: returns the end of running code's output in this kernel, or None if none is running.
        beside: true if the turn runs next to the user's cells.
        state: returns what a running turn waits for, such as "waiting for [3]"; "" for its model.
        drew: true if images are displayed below the view; the status line is then below them.
        spelled: command prefix in this front end, such as `%hermes `.
        usage: the requests and tokens used so far.
        ending: the event that ended the turn; None while it runs.
        notes: lines that do not come from the model, as Markdown.
        changes: the turn's changes that have not been undone.
        variables: the variables that the turn changed, each as a short text.
        what_if: the variables that a turn with `--what-if` changed in the copy, or None if there is
            nothing to keep.
        stale: the names of the cells that the turn made stale.
        learned: number of notes saved to memory by the turn.
        buttons: true if the page has buttons to undo the turn, so that its text needs no command.
        session: id of the turn's session.
        plan_lines: the turn's plan, one line of plain text per step.
    """

    def __init__(self, *, model: str = "") -> None:
        self.model = model
        self.describe: Callable[[ToolCall], str] = lambda _: ""
        self.loading: Callable[[], bool] = bool
        self.live: Callable[[], str | None] = lambda: None
        self.beside = False
        self.state: Callable[[], str] = str
        self.drew = self.buttons = False
        self.spelled = "%hermes "
        self.usage = Usage()
        self.ending: TurnEnded | None = None
        self.notes: list[str] = []
        self.changes: Sequence[Change] = ()
        self.variables: Sequence[str] = ()
        self.what_if: Sequence[str] | None = None
        self.stale: Sequence[str] = ()
        self.learned = 0
        self.session = ""
        self.plan_lines: list[str] = []
        self._turn = 0
        self._plan: list[tuple[State, str]] = []
        self._steps: list[TurnStep] = []
        self._draft: list[str] = []
        self._reasoning: list[str] = []
        self._writing: tuple[int, str] = 0, ""  # number and name of the call being written
        self._arguments: list[str] = []
        self._calls: dict[str, CallView] = {}
        self._shown = 0  # number of calls with a line, which excludes calls for the plan
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
        """Whether there is anything to display: a turn that has started, or an earlier note."""
        return self._began or bool(self.notes)

    @property
    def answer(self) -> str:
        """The assistant's last text, as received so far."""
        if len(self._draft) > 1:  # read at each update, so the joined text is stored
            self._draft[:] = ["".join(self._draft)]
        if self._draft or not self._steps:
            return self._draft[0] if self._draft else ""
        return self._steps[-1].text

    @property
    def calls(self) -> list[CallView]:
        return [call for step in self._steps for call in step.calls]

    @property
    def refused(self) -> list[str]:
        """The denied calls, one line each."""
        return [f"{c.call.name} {c.gist}".strip() for c in self.calls if c.status == "denied"]

    @property
    def metadata(self) -> dict[str, object]:
        """A finished turn's output metadata: the denied calls, and the turn if it has changes."""
        told: dict[str, object] = {"refused": self.refused} if self.refused else {}
        if self.session and (self.variables or self.changes):
            told["turn"] = f"{self._turn} of {self.session}"  # what the page's buttons undo
        if self.session and self.what_if is not None:
            told["what_if"] = f"{self._turn} of {self.session}"  # what its buttons keep or drop
        return {"hermes": told} if told else {}

    def call(self, call_id: str) -> CallView:
        return self._calls[call_id]

    @property
    def running_call(self) -> bool:
        """Whether a call is running."""
        return bool(self._open)

    @property
    def seconds(self) -> float:
        """Duration of the turn, excluding time spent waiting for the user."""
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
            case CallDelta(number, name, text):
                if self._writing[0] != number:
                    self._arguments.clear()
                self._writing = number, name
                self._arguments.append(text)
                self._retried = None
            case RequestRetried():
                self._draft.clear()
                self._arguments.clear()
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

    def update_live_output(self) -> None:
        """Update the output of the call that is currently running code in this kernel."""
        if self._open and (text := self.live()) is not None:
            self._steps[-1].calls[-1].show(text)

    def running(self) -> str:
        """Return the view of a running turn, as Markdown."""
        self.update_live_output()
        blocks = [*self.notes[: self._before]]
        blocks.append("\n".join(f"{escape(line)}  " for line in self.plan_lines))
        blocks += self._so_far()
        if self._draft:
            said = self.answer
            more = "" if said.rstrip().endswith(("…", "...")) else " …"
            blocks.append(safe_markdown(redact(said)) + more)
        blocks += self.notes[self._before :]
        if lines := self._written()[1]:
            blocks.append(code_block("\n".join(lines), "text"))
        if self._reasoning and not self._draft and not self._calls:
            blocks.append("> " + escape(one_line("".join(self._reasoning)[-400:], 200)))
        blocks.append(f"<sub>{self._running_status()}</sub>")
        return "\n\n".join(block for block in blocks if block.strip())

    def _written(self) -> tuple[str, list[str]]:
        """Describe the call that the model is writing, and return its last lines.

        Returns `("", [])` if it is not writing a call.
        """
        if not self._arguments or self._writing[1] == TODO:
            return "", []
        self._arguments[:] = ["".join(self._arguments)]
        count, lines = written(self._arguments[0])
        text = f"writing {one_line(visible(self._writing[1]), 80)}"
        return (f"{text} · {number_of(count, 'line')}", lines) if count > 1 else (text, [])

    def _so_far(self) -> list[str]:
        """Return the latest text and calls that fit in `EARLIER`, in their order."""
        blocks: list[str] = []  # in reverse order, as are the lines
        lines: list[str] = []  # calls without text between them
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
            text = step.markdown()
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

        Args:
            failure: include a failed turn's error.
            room: maximum bytes of the answer; None for no limit.
            page: allow HTML beyond Markdown, for display in a notebook page.
            status: include the status line.
        """
        shown = failure or (self.ending is not None and self.ending.reason != "failed")
        outcome = self._outcome() if shown else ""
        blocks = [*self.notes, _render_within(redact(self.answer), room, safe_markdown), outcome]
        turn = self._turn, self.session
        if named := escape(changes.variables_line(self.variables)):
            undo = changes.clickable(*turn) if page and self.session and not self.buttons else ""
            blocks.append(named if self.changes or not undo else f"{named} · {undo}")
        if self.what_if is not None:
            ways = [] if page and self.buttons else [f"`{each}`" for each in changes.DECIDE]
            blocks.append(" · ".join([escape(changes.what_if_line(self.what_if)), *ways]))
        if named := escape(changes.stale_line(self.stale)):
            blocks.append(named)
        if self.changes or self.learned:
            parts = self.changes, self.learned, *turn
            blocks.append(changes.folded(*parts, page=page, buttons=page and self.buttons))
        if plan := self.plan_lines:
            listed = "  \n".join(map(escape, plan))
            blocks.append(folded(f"plan: {progress_line(self._plan)}", listed))
        blocks += [thought(self._reasoning), fold(self._steps)]
        if self._began and status:
            blocks.append(self.footer())
        return "\n\n".join(block for block in blocks if block.strip())

    def footer(self) -> str:
        """Return the status line of a finished turn, as Markdown."""
        return f"<sub>{self._status(self._mark())}</sub>"

    def plain(self, *, room: int | None = None, status: bool = True) -> str:
        """Return the finished turn as plain text; `room` limits the bytes of the answer."""
        lines = [
            *map(plain_text, self.notes),
            _render_within(readable(redact(self.answer)), room, str),
        ]
        calls = self.calls
        if len(calls) > PLAIN_CALLS:
            lines.append(f"  … {len(calls) - PLAIN_CALLS} earlier calls")
        told = (line for call in calls[-PLAIN_CALLS:] for line in call.lines())
        lines += [f"  {plain_text(line)}" for line in told]
        lines += self.ending_lines() if status else self.ending_lines()[:-1]
        return "\n".join(line for line in lines if line.strip())

    def status_line(self) -> str:
        """Return the status of a running turn as a line of plain text."""
        return plain_text(self._running_status())

    def ending_lines(self) -> list[str]:
        """Return the turn's result and usage as lines of plain text; [] before it starts."""
        if not self._began:
            return []
        lines = [plain_text(self._outcome()), plain_text(self._status(self._mark()))]
        if self.stale:
            lines.insert(1, changes.stale_line(self.stale))
        if self.what_if is not None:
            lines.insert(1, " · ".join([changes.what_if_line(self.what_if), *changes.DECIDE]))
        if self.variables:
            lines.insert(1, changes.variables_line(self.variables))
        if (self.changes or self.learned) and (told := changes.line(self.changes, self.learned)):
            back = changes.ways_back(self.changes, self.learned, self._turn)
            lines.insert(-1, " · ".join([told, *back]))
        return [line for line in lines if line]

    def _message(self, message: Message) -> None:
        if message.role == "assistant":
            self._steps.append(TurnStep(text=message.text))
            self._draft.clear()
            self._arguments.clear()
            self._retried = None
            if self._reasoning:
                self._reasoning.append("\n\n")
        elif (added := added_by(message)) is not None:
            self.notes.append(f"*You added:* {escape(one_line(redact(added), 200))}")
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
                    self.plan_lines = _plan_lines(self._plan)
            case _:  # an event for an unknown call, which is not part of this turn
                pass

    def _settle(self, call_id: str) -> None:
        """Record that a question was answered; the turn's clock resumes after the last one."""
        if call_id in self._asked:
            self._asked.discard(call_id)
            self._waited += 0.0 if self._asked else time.monotonic() - self._asked_since

    def _outcome(self) -> str:
        if self.ending is None:
            return ""
        match self.ending.reason:
            case "answered":
                note = self.ending.note
                if note == UNVERIFIED:
                    return ""
                return (
                    f"**Cut off:** {escape(note)}. Send another prompt to continue." if note else ""
                )
            case "interrupted":
                return "Stopped. The work so far is kept; send another prompt to continue."
            case "failed":
                return f"**Failed:** {escape(redact(self.ending.error))}"
            case _ if self.ending.note:
                return f"**Out of budget:** {escape(self.ending.note)}."
            case _:
                return (
                    "**Out of requests for this turn.** Send another prompt to continue; "
                    "`--max-requests N` allows more per turn."
                )

    def _mark(self) -> str:
        if self.ending is None:
            return f"{MARKS['budget']} {self._seconds:.1f} s"
        reason, note = self.ending.reason, self.ending.note
        text = f" · {note}" if note == UNVERIFIED else ""
        trouble = self._trouble() if reason == "answered" else ""
        mark = f"! {trouble} ·" if trouble else mark_of(reason, note)
        return f"{mark} {self._seconds:.1f} s{text}"

    def _trouble(self) -> str:
        """Return which calls were denied, and how many failed, as Markdown; "" if none."""
        denied = [call for call in self.calls if call.status == "denied"]
        pieces = [
            f"{escape(one_line(each.gist or each.call.name, GIST))} (denied)" for each in denied
        ]
        pieces[NAMED:] = [f"{len(pieces) - NAMED} more"] if pieces[NAMED:] else []
        failed = sum(call.status == "error" for call in self.calls)
        parts = [f"Not run: {', '.join(pieces)}"] if pieces else []
        parts += [f"{number_of(failed, 'call')} failed"] if failed else []
        return " · ".join(parts)

    def _running_status(self) -> str:
        if self._asked:
            return self._status(f"{WAITING} waiting for you")
        return self._status(f"◌ {escape(self.state() or self._written()[0] or 'running')}")

    def _pending(self) -> list[str]:
        """Return the reason the model is sending nothing: a retry, loading, or no data."""
        if self._asked or self._open:
            return []
        silent = time.monotonic() - self._heard
        parts = []
        if (retried := self._retried) is not None:
            which = f"retry {retried.attempt + 1} of {retried.tries}" if retried.tries else "again"
            left = retried.delay - silent
            silent = -left if retried.delay else silent
            wait = f" in {left:.0f} s" if left >= 1 else ""
            parts.append(f"{which}{wait}: {redact(retried.reason)}")
        if self.loading():
            parts.append(f"loading the model · {silent:.0f} s")
        elif silent >= QUIET:
            parts.append(f"no data for {silent:.0f} s")
        return parts

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
    "summarised": "older messages were replaced by a summary",
    "extracted": "older messages were replaced by a record of key facts, extracted without a model",
    "referenced": "older messages were replaced by references that can be expanded",
    "restored": "the conversation before the compression is back",
}
"""Descriptions of the phases of context compression."""


def told_compression(event: ContextCompressed) -> str:
    """Describe a compression of the conversation, in Markdown."""
    restored = event.phase == "restored"
    line = (
        f"{'Restored' if restored else 'Compressed'} from about {amount(event.tokens_before)} to "
        f"{amount(event.tokens_after)} tokens: {PHASES.get(event.phase, event.phase)}."
    )
    if not restored:
        line += " Undo it with `%hermes compress --undo`."
    return f"{line} {escape(event.warning)}" if event.warning else line


def _render_within(text: str, room: int | None, show: Callable[[str], str]) -> str:
    """Render text with `show`, truncated to `room` bytes with a note if necessary."""
    shown = show(text)
    limit = len(text)
    while room is not None and (size := len(shown.encode(errors="replace"))) > room and limit:
        limit = min(limit * room // size, limit - 1)
        cut = text[:limit]
        shown = show(cut[: cut.rfind("\n") + 1] or cut)
    if limit == len(text):
        return shown
    return f"{shown}\n\n… of {len(text):,} characters; `%hermes last` shows all of them."


def _plan_lines(plan: Sequence[tuple[State, str]]) -> list[str]:
    shown = plan[:MOST_STEPS]
    lines = [f"{STEPS[state]} {one_line(visible(redact(text)), 120)}" for state, text in shown]
    more = len(plan) - len(shown)
    return [*lines, f"… {more} more"] if more else lines


def _quoted(lines: Iterable[str]) -> str:
    return "\n".join(f"> {line}  " for line in lines)
