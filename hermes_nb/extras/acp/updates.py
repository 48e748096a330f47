"""Converts the events of a turn to the protocol's updates, with secrets redacted."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import TypeAlias

from acp import (
    image_block,
    plan_entry,
    schema,
    start_tool_call,
    text_block,
    tool_content,
    tool_diff_content,
    update_agent_message_text,
    update_agent_thought_text,
    update_plan,
    update_tool_call,
    update_user_message,
    update_user_message_text,
)

from hermes_nb.context.boundaries import is_ours
from hermes_nb.core.escapes import visible
from hermes_nb.core.events import (
    ChildProgress,
    Event,
    MessageAdded,
    ReasoningDelta,
    RequestRetried,
    TextDelta,
    ToolFinished,
    ToolProgress,
    ToolStarted,
    UsageReported,
)
from hermes_nb.core.loop import is_prompt
from hermes_nb.core.messages import Message, ToolCall, Usage
from hermes_nb.core.regular_files import Refused, read_regular
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Risk, Tool, Toolset
from hermes_nb.notebook.display.calls import without_tags
from hermes_nb.safety.markup import code_block
from hermes_nb.safety.redact import redact
from hermes_nb.tools.plan import steps

Update: TypeAlias = (
    schema.AgentMessageChunk
    | schema.AgentPlanUpdate
    | schema.AgentThoughtChunk
    | schema.AvailableCommandsUpdate
    | schema.SessionInfoUpdate
    | schema.ToolCallProgress
    | schema.ToolCallStart
    | schema.UsageUpdate
    | schema.UserMessageChunk
)
Content: TypeAlias = schema.ContentToolCallContent | schema.FileEditToolCallContent
KINDS: dict[Risk, schema.ToolKind] = {
    Risk.READ: "read",
    Risk.REMEMBER: "other",
    Risk.WRITE: "edit",
    Risk.LATER: "other",
    Risk.EXECUTE: "execute",
    Risk.NETWORK: "fetch",
}
STATES: dict[str, schema.PlanEntryStatus] = {
    "done": "completed",
    "now": "in_progress",
    "open": "pending",
}
TITLE = 120
"""Maximum characters of a call's title."""
DIFFED = 1_000_000
"""Maximum bytes of a file whose earlier text is part of a diff."""
WINDOW = 2_000
"""Maximum characters of a streamed paragraph that are searched for secrets together."""


class Streamed:
    """Text that arrives in pieces and is sent in whole words, so that secrets are recognised."""

    def __init__(self) -> None:
        self.begun = False
        self._text = self._sent = ""  # the current paragraph, and its part that has been sent

    def add(self, piece: str) -> str:
        """Return the text that can be sent now."""
        self.begun = True
        self._text += piece
        words = max(map(self._text.rfind, " \n")) + 1
        ready, held = self._text[:words], self._text[words:]
        new = self._new(ready)
        if (start := max(ready.rfind("\n\n"), ready.rfind("\n", 0, max(words - WINDOW, 0)))) >= 0:
            ready = ready[start:]
            self._sent = redact(ready)
        self._text = ready + held
        return new

    def rest(self) -> str:
        """Return the text that has not been sent, and start again."""
        new = self._new(self._text)
        self.begun, self._text, self._sent = False, "", ""
        return new

    def _new(self, ready: str) -> str:
        shown = redact(ready)
        pairs = zip(shown, self._sent, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        self._sent = shown
        return shown[same:]


class Updates:
    """Folds events into updates.

    Args:
        tools: the session's tools
        window: the model's context window in tokens, or 0 if unknown
        live: whether a turn is running; if not, the events are the history of a session
    """

    def __init__(self, tools: Toolset, *, window: int = 0, live: bool = True) -> None:
        self.usage = Usage()
        self._tools, self._window, self._live = tools, window, live
        self._answer, self._thought = Streamed(), Streamed()
        self._edits: dict[str, schema.FileEditToolCallContent] = {}
        self._ended: dict[str, schema.ToolCallStatus] = {}
        self._plans: set[str] = set()

    def __call__(self, event: Event) -> list[Update]:
        """Return the updates for an event."""
        match event:
            case TextDelta(text):
                return _said(update_agent_message_text, self._answer.add(text))
            case ReasoningDelta(text) | RequestRetried(reason=text):
                if isinstance(event, RequestRetried):
                    self._answer.rest()  # that text is void
                    text = f"\n{text}; asking again\n"
                return _said(update_agent_thought_text, self._thought.add(text))
            case MessageAdded(message):
                return self._message(message)
            case ToolStarted(call):
                return [self._started(call)]
            case ToolProgress(call_id, text) | ChildProgress(call_id=call_id, doing=text):
                return self._call(call_id, content=[_block(text)])
            case ToolFinished(call, status):
                self._ended[call.id] = "completed" if status == "ok" else "failed"
            case UsageReported(usage, purpose=purpose):
                self.usage += usage
                return [] if purpose else self._used(usage)
            case _:
                pass
        return []

    def edit(self, call: ToolCall) -> schema.FileEditToolCallContent | None:
        """Return the diff of a running call, or None if it edits no file."""
        return self._edits.get(call.id)

    def _message(self, message: Message) -> list[Update]:
        if message.role == "tool":
            edit = self._edits.get(message.call_id)
            shown: list[Content] = [edit] if edit and not message.failed else []
            shown += [_block(message.text)] if message.text else []
            shown += [tool_content(image_block(i.data, i.mime)) for i in message.images]
            ended = self._ended.get(message.call_id)
            return self._call(message.call_id, status=ended, content=shown)
        if message.role == "assistant":
            thought = self._thought.rest() if self._live else redact(message.reasoning)
            begun = self._answer.begun
            text = self._answer.rest() if begun else redact(message.text)
            said = _said(update_agent_thought_text, thought)
            return said + _said(update_agent_message_text, text)
        if self._live or not is_prompt(message) or is_ours(message):
            return []
        images = [update_user_message(image_block(i.data, i.mime)) for i in message.images]
        return [*_said(update_user_message_text, redact(message.text)), *images]

    def _started(self, call: ToolCall) -> Update:
        tool = self._tools.get(call.name)
        if call.name == "todo":
            self._plans.add(call.id)
            return update_plan(
                plan_entry(redact(text), status=STATES[state])
                for state, text in steps(call.arguments)
            )
        if tool is not None and (edit := self._edit(tool, call)) is not None:
            self._edits[call.id] = edit
        return start_tool_call(
            call.id,
            title_of(self._tools, call),
            kind=kind_of(tool),
            status="in_progress",
            content=[self._edits[call.id]] if call.id in self._edits else [],
            locations=[schema.ToolCallLocation(path=path) for path in _paths(tool, call)],
        )

    def _call(
        self,
        call_id: str,
        *,
        content: Sequence[Content],
        status: schema.ToolCallStatus | None = None,
    ) -> list[Update]:
        if call_id in self._plans:
            return []
        return [update_tool_call(call_id, status=status, content=content)]

    def _edit(self, tool: Tool, call: ToolCall) -> schema.FileEditToolCallContent | None:
        """Return what a call to a file tool would change; for `patch`, only the passage."""
        path = next(_paths(tool, call), "")
        names = {"write_file": ("content", ""), "patch": ("new", "old")}.get(tool.name)
        if names is None or not path:
            return None
        new, old = (call.arguments.get(name) for name in names)
        if names[1] == "" and self._live:
            old = _current(path)
        old = redact(old) if isinstance(old, str) else None
        return tool_diff_content(path, redact(str(new)), old)

    def _used(self, usage: Usage) -> list[Update]:
        if not self._window:
            return []
        used = usage.input + usage.output
        cost = (
            None if self.usage.cost is None else schema.Cost(amount=self.usage.cost, currency="USD")
        )
        return [
            schema.UsageUpdate(
                session_update="usage_update", used=used, size=self._window, cost=cost
            )
        ]


def history(messages: Sequence[Message], tools: Toolset) -> Iterator[Update]:
    """Yield the updates that show a stored conversation."""
    fold = Updates(tools, live=False)
    calls: dict[str, ToolCall] = {}
    for message in messages:
        if message.role == "tool" and (call := calls.get(message.call_id)):
            yield from fold(ToolFinished(call, "error" if message.failed else "ok", 0.0))
        yield from fold(MessageAdded(message))
        for call in message.calls:
            calls[call.id] = call
            yield from fold(ToolStarted(call))


def title_of(tools: Toolset, call: ToolCall) -> str:
    """Return a call's title in one line."""
    return one_line(visible(redact(f"{call.name} {tools.describe(call)}")), TITLE)


def kind_of(tool: Tool | None) -> schema.ToolKind:
    """Return a tool's kind, which determines its icon."""
    if tool is None:
        return "other"
    return "search" if "search" in tool.name else KINDS[tool.risk]


def _said(update: Callable[[str], Update], text: str) -> list[Update]:
    return [update(text)] if text else []


def _block(text: str) -> Content:
    return tool_content(text_block(code_block(redact(without_tags(text)))))


def _paths(tool: Tool | None, call: ToolCall) -> Iterator[str]:
    if tool is None or tool.root is None:
        return
    for name in tool.paths:
        given = call.arguments.get(name)
        if isinstance(given, str) and "\0" not in given:
            yield str((tool.root / given).absolute())


def _current(path: str) -> str | None:
    """Return a file's text before a write, or None if it is missing, binary or large."""
    try:
        data, size = read_regular(path, DIFFED)
        return data.decode("utf-8") if size <= DIFFED else None
    except (OSError, Refused, UnicodeDecodeError):
        return None
