"""The seams of the agent: what it needs from a model, an engine, a store, an approver, a sink."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from hermes_nb.core.events import Answer, Delta, Event
from hermes_nb.core.messages import Message, Reply, ToolCall, Usage
from hermes_nb.core.tools import Tool, Toolset


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to a model: the whole conversation, system message first, and the tools.

    `tool_choice` `none` forbids calls but keeps the schemas, so that a cached prefix stays one.
    """

    messages: tuple[Message, ...]
    tools: Toolset = field(default_factory=Toolset)
    tool_choice: Literal["auto", "none"] = "auto"


@runtime_checkable
class ChatModel(Protocol):
    """A model that answers a conversation."""

    @property
    def name(self) -> str:
        """The model's name as the user wrote it."""
        ...

    @property
    def window(self) -> int | None:
        """The context window in tokens, None when unknown."""
        ...

    def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Yield deltas as they arrive and, last, the reply; its calls have ids of their own.

        Raises `ModelError` when the request failed for good. A consumer that stops early (`aclose`
        or cancellation) stops the generation: the connection is closed before it returns.
        """
        ...

    async def aclose(self) -> None:
        """Release what the model holds (connections, child process)."""
        ...


class ContextEngine(Protocol):
    """Keeps the prompt within the window; exactly one is active."""

    def observe(self, usage: Usage) -> None:
        """Take note of what a request really used."""
        ...

    def should_compress(self, prompt_tokens: int) -> bool:
        """Say whether a prompt of that many tokens should be compressed before it is sent."""
        ...

    async def compress(self, messages: Sequence[Message], focus: str = "") -> list[Message]:
        """Return a shorter conversation; the input is never mutated."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session's row. `notebook` is an absolute path or "", times are seconds since the epoch.

    `messages` counts the active ones; `written` is when the last of them was added.
    """

    id: str
    title: str = ""
    source: str = "notebook"
    notebook: str = ""
    model: str = ""
    system_prompt: str = ""
    started: float = 0.0
    written: float = 0.0
    ended: float | None = None
    messages: int = 0
    usage: Usage = field(default_factory=Usage)


class SessionStore(Protocol):
    """Where conversations outlive the kernel. A call raises `StoreError` or does what it says."""

    def start(
        self,
        *,
        title: str = "",
        source: str = "notebook",
        started: float | None = None,
        notebook: str = "",
        model: str = "",
        system_prompt: str = "",
        session_id: str = "",
    ) -> str:
        """Create a session and return its id: `session_id`, or else a new one."""
        ...

    def append(self, session_id: str, message: Message) -> None:
        """Add a message; it is durable when this returns."""
        ...

    def messages(self, session_id: str) -> list[Message]:
        """Return a session's active messages in order, as they were written."""
        ...

    def get(self, session_id: str) -> StoredSession | None:
        """Return a session's row, or None."""
        ...

    def sessions(self, *, notebook: str | None = None, limit: int = 20) -> list[StoredSession]:
        """Return sessions, the one written to last first."""
        ...

    def count(self, session_id: str, usage: Usage) -> None:
        """Add to a session's token counters."""
        ...

    def end(self, session_id: str) -> None:
        """Mark a session as ended; it is not resumed on its own again."""
        ...

    def close(self) -> None:
        """Release the store; a second call does nothing."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call that wants a yes: what it is, why it asks, and the exact bytes that would run."""

    call: ToolCall
    tool: Tool
    why: str
    shown: str
    shape: str


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer to an approval request; `reason` is what the model reads after a refusal."""

    answer: Answer
    reason: str = ""


class Approver(Protocol):
    """Asks whoever can answer."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the user's answer, or the policy's where nobody can be asked."""
        ...


EventSink = Callable[[Event], None]
"""A fold over a turn's events. It runs before the consumer sees the event, and must be quick; what
it raises is logged and isolated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable of the live namespace, as far as a prompt needs it.

    `shape` is e.g. "344 x 7" or "12 items"; `columns` maps a table's column names to dtypes.
    """

    name: str
    type: str
    shape: str = ""
    columns: Mapping[str, str] | None = None


class Keeper(Protocol):
    """Saves what a turn changes, so that it can be undone. It never raises, and may block."""

    def before(self, turn: int, paths: Sequence[Path]) -> None:
        """Save files, by their absolute paths without links, that a call is about to change."""
        ...

    def after(self, turn: int, paths: Sequence[Path]) -> None:
        """Note what these files have become, however the call ended."""
        ...

    def note(self, turn: int, text: str) -> None:
        """Note what a call did that cannot be undone."""
        ...
