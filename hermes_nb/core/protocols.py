"""Interfaces of the agent: model, context engine, store, memory provider, approver, event sink."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
from typing import Literal, Protocol, overload, runtime_checkable

from hermes_nb.core.events import Answer, Delta, Event, UsageReported
from hermes_nb.core.messages import Message, Reply, Role, ToolCall, Usage
from hermes_nb.core.tools import Tool, Toolset

STORES = "hermes_nb.stores"
"""Entry point group for stores, named by their URL scheme; see `StoreSetup`."""
MessageState = Literal["active", "compressed", "undone"]
"""State of a stored message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session as stored, without its messages."""

    id: str
    """Session id."""
    parent: str = ""
    """Id of the session that this one was created for (by a review or as a child agent), or ""."""
    title: str = ""
    """Title, or ""."""
    source: str = "notebook"
    """Kind of front end, such as `notebook`."""
    notebook: str = ""
    """Absolute path of the notebook, or ""."""
    model: str = ""
    """Name of the model, or ""."""
    system_prompt: str = ""
    """The system prompt."""
    started: float = 0.0
    """When it started, in seconds since the epoch."""
    written: float = 0.0
    """When the last active message was added, in seconds since the epoch."""
    ended: float | None = None
    """When it ended, in seconds since the epoch; None if it hasn't."""
    messages: int = 0
    """Number of active messages."""
    usage: Usage = field(default_factory=Usage)
    """Total usage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as stored."""

    session_id: str
    """Id of the session."""
    position: int
    """Number in the session, from 0. It never changes."""
    message: Message
    """The message."""
    at: float
    """When it was added, in seconds since the epoch."""
    state: MessageState = "active"
    """Active, or replaced by a compression, or undone."""
    made: bool = False
    """Whether a compression generated it, as a summary or a shortened form of other messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A search result."""

    session_id: str
    """Id of the session."""
    position: int
    """Number of the message in the session, from 0."""
    role: Role
    """Who wrote the message."""
    snippet: str
    """The text around the matching words."""
    score: float
    """Relevance; higher is better."""
    when: float
    """When the message was added, in seconds since the epoch."""


OUTBOXES = "hermes_nb.outboxes"
"""Entry point group for outboxes. An entry is a function that takes the Hermes directory and a
callback for warnings, and returns an `Outbox`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """A message to a chat that isn't an answer, such as the result of a scheduled job."""

    id: str
    """A stable id, so that the message is sent only once."""
    adapter: str
    """Name of the chat service's adapter."""
    chat: str
    """Id of the chat in that service."""
    text: str
    """The text."""
    at: float
    """When it was generated, in seconds since the epoch. Old notices are not sent."""


class Outbox(Protocol):
    """A source of notices, which the gateway polls every few seconds in a thread."""

    def notices(self) -> Sequence[Notice]:
        """Return the notices to send, oldest first, including those already returned."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSetup:
    """The arguments for an entry point in the group `hermes_nb.stores`.

    An entry point is a function that takes this and returns a `SessionStore`. Its name is the URL
    scheme that it handles, such as `postgresql`.
    """

    url: str
    """The URL in the setting `session_store`, without a password."""
    claims: Path
    """Path of the local database in the Hermes directory, only for data about this machine."""
    password: str = field(default="", repr=False)
    """Value of the environment variable that the setting `store.key_env` names."""
    warn: Callable[[str], None] | None = None
    """Receives warnings about damage, repaired or not."""


class SessionStore(Protocol):
    """Storage for conversations that outlives the kernel. All methods may raise `StoreError`."""

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
        parent: str = "",
    ) -> str:
        """Create a session and return its id.

        An existing session is left unchanged. An unknown `parent` is ignored.

        Args:
            title: Title of the session.
            source: Kind of front end, such as `notebook`.
            started: Start time in seconds since the epoch (default: now).
            notebook: Absolute path of the notebook, or "".
            model: Name of the model.
            system_prompt: The system prompt.
            session_id: The id to use; "" generates one.
            parent: Id of the session that this one is created for, or "".
        """
        ...

    def append(self, session_id: str, message: Message, *, usage: Usage | None = None) -> None:
        """Add a message durably, and add the `usage` of its request.

        A session that is missing from the store is created first.

        Raises:
            SessionTakenError: Another writer has added messages to a session that this store
                follows. Also raised by `replace`.
        """
        ...

    def follow(self, session_id: str) -> None:
        """From now on, refuse to write to this session once another writer has added messages."""
        ...

    def incidents(self) -> int:
        """Return the number of events that may have lost durable messages."""
        ...

    def messages(self, session_id: str) -> list[Message]:
        """Return a session's active messages, in order."""
        ...

    def rows(
        self, session_id: str, *, first: int = 0, last: int | None = None
    ) -> list[StoredMessage]:
        """Return the messages at positions `first` to `last` (inclusive), in any state."""
        ...

    def replace(
        self, session_id: str, messages: Sequence[Message], *, system_prompt: str | None = None
    ) -> None:
        """Make `messages` the active conversation in one transaction, as a compression does.

        Active messages among them keep their rows. The others stay in the store as `compressed`,
        and searches can still find them. If the new messages only extend the active conversation,
        they are appended, and there is nothing to restore.

        Args:
            session_id: Id of the session.
            messages: The new conversation.
            system_prompt: The new system prompt; None keeps the stored one.
        """
        ...

    def restore(self, session_id: str) -> list[Message] | None:
        """Undo the last `replace`; return the active messages, or None if there was no `replace`.

        Messages added since then stay at the end.
        """
        ...

    def rewind(self, session_id: str, length: int) -> None:
        """Keep the first `length` active messages; mark the others `undone`, hidden from search."""
        ...

    def search(
        self,
        query: str,
        *,
        limit: int = 20,
        session_id: str = "",
        exclude: Collection[str] = (),
        since: float | None = None,
        until: float | None = None,
        roles: Collection[Role] = (),
    ) -> list[Hit]:
        """Return the best matches for a query, best first. Invalid queries don't raise.

        Args:
            query: The words to search for.
            limit: Maximum number of results.
            session_id: Search only this session; "" for all.
            exclude: Ids of sessions to skip.
            since: Earliest time, in seconds since the epoch.
            until: Latest time, in seconds since the epoch.
            roles: Return only messages with these roles; empty for all.
        """
        ...

    def get(self, session_id: str) -> StoredSession | None:
        """Return a session's row, or None."""
        ...

    def sessions(self, *, notebook: str | None = None, limit: int = 20) -> list[StoredSession]:
        """Return sessions except those of child agents, most recently written first.

        `notebook` limits them to a notebook's path.
        """
        ...

    def usage(
        self, *, session_id: str = "", notebook: str = "", since: float = 0.0
    ) -> dict[tuple[str, str], Usage]:
        """Return the total usage, grouped by the sessions' `source` and model.

        Unknown costs are left out of the sum, which is None if all costs are unknown.

        Args:
            session_id: only this session's family, see `lineage`
            notebook: only the families of this notebook's sessions
            since: only sessions started at this time (epoch seconds) or later; used if neither
                of the other two is given
        """
        ...

    def lineage(self, session_id: str) -> list[str]:
        """Return the ids of a session's family, oldest first; always includes its own.

        The family consists of the session's ancestors and all their descendants.
        """
        ...

    def rename(self, session_id: str, title: str) -> None:
        """Set a session's title."""
        ...

    def relocate(self, notebook: str, to: str) -> None:
        """Change a notebook's path in all its sessions after a rename."""
        ...

    def delete(self, session_id: str) -> None:
        """Delete a session and its messages, including in the search index."""
        ...

    def purge(self, *, before: float = 0.0) -> None:
        """Erase deleted data from the disk, and drop fan-out results older than `before`."""
        ...

    def count(self, session_id: str, usage: Usage) -> None:
        """Add usage to a session."""
        ...

    def end(self, session_id: str) -> None:
        """Mark a session as ended; it is no longer resumed automatically."""
        ...

    def close(self) -> None:
        """Close the store; further calls do nothing."""
        ...


__all__ = [
    "Approval",
    "ApprovalRequest",
    "Approver",
    "ChatModel",
    "Compression",
    "ContextEngine",
    "EventSink",
    "Hit",
    "MemoryProvider",
    "MessageState",
    "Preparing",
    "Request",
    "Serialising",
    "SessionStore",
    "StoredMessage",
    "StoredSession",
    "Traits",
    "Variable",
    "body_of",
]


Effort = Literal["", "low", "medium", "high"]
"""How much the model should reason; "" for the model's default."""
MOST_WAITED = 60
"""Maximum time per turn spent waiting for providers that request a delay, in seconds."""


@dataclass(slots=True)
class Waited:
    """The time that the requests of one turn have waited for providers."""

    seconds: float = 0.0
    """Total in seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request to a model."""

    messages: tuple[Message, ...]
    """The whole conversation, with the system message first."""
    tools: Toolset = field(default_factory=Toolset)
    """Tools that the model may call."""
    tool_choice: Literal["auto", "none"] = "auto"
    """`none` forbids calls. The tool schemas are still sent, so that the provider's prompt cache
    matches."""
    effort: Effort = ""
    """How much to reason; "" for the model's default."""
    waited: Waited | None = field(default=None, compare=False, repr=False)
    """Waiting time, shared by a turn's requests; None outside turns."""


@runtime_checkable
class ChatModel(Protocol):
    """A chat model."""

    @property
    def name(self) -> str:
        """The model's name, as the user wrote it."""
        ...

    @property
    def window(self) -> int | None:
        """The context window in tokens; None if unknown."""
        ...

    def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Send a request; yield deltas as they arrive and finally the reply, whose calls have ids.

        A consumer that stops early (with `aclose` or by cancellation) stops the generation: the
        connection is closed before `aclose` returns. Raises `ModelError` if the request failed
        permanently.
        """
        ...

    async def aclose(self) -> None:
        """Release resources such as connections or a child process."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Special properties of a model, from its `traits` attribute.

    The defaults apply to all other models.
    """

    small: bool = False
    """Uses its own short prompt, without instructions, memory, skills or fallbacks."""
    learns: bool = True
    """Background reviews of its turns are worthwhile."""
    local: bool = False
    """Runs on this machine: it is free and answers one request at a time."""
    notice: str = ""
    """Text that is displayed once, before its first answer."""
    offered: Callable[[Toolset], Toolset] = lambda tools: tools
    """Returns the tools that are actually sent to the model."""
    loading: Callable[[], bool] = bool
    """Returns whether the model is currently being loaded into memory."""


@runtime_checkable
class Preparing(Protocol):
    """A model that must be prepared before use, for example by a download."""

    async def prepare(
        self, agreed: Callable[[str], bool], progress: Callable[[int, int], None]
    ) -> None:
        """Make the model ready to answer; raise `ConfigError` with possible solutions.

        `agreed` asks the user a question and returns False if no one can answer. `progress` is
        called from any thread with the received and the total number of bytes.
        """
        ...


@runtime_checkable
class Serialising(Protocol):
    """A model that can return the body of a request without sending it."""

    def body(self, request: Request) -> bytes:
        """Return a request's JSON body, or b"" if the model doesn't send JSON."""
        ...


def body_of(model: ChatModel, request: Request) -> bytes:
    """Return the JSON body that a model would send, or b"" if it can't tell."""
    return model.body(request) if isinstance(model, Serialising) else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression(Sequence[Message]):
    """The result of a compression; as a sequence, its messages."""

    messages: tuple[Message, ...]
    """The shorter conversation."""
    note: str = ""
    """Text to append to the system prompt from now on, or ""."""
    phase: str = ""
    """As in `ContextCompressed`."""
    shortened: int = 0
    """Number of shortened messages."""
    dropped: int = 0
    """Number of messages that the summary replaces."""
    summary: str = ""
    """The summary, or ""."""
    warning: str = ""
    """Warning for the user, or ""."""
    requests: tuple[UsageReported, ...] = ()
    """Usage of the engine's own model requests."""

    def __len__(self) -> int:
        """Return the number of messages."""
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        """Return the message at `index`, or those of a slice."""
        return self.messages[index]


class ContextEngine(Protocol):
    """Keeps the prompt within the context window. One engine is active at a time.

    Subclass it to inherit the optional methods: tools, and the start and end of a session.
    """

    def observe(self, usage: Usage) -> None:
        """Receive a request's actual usage."""
        ...

    def should_compress(self, prompt_tokens: int) -> bool:
        """Return whether to compress a prompt of that size before sending it."""
        ...

    async def compress(self, messages: Sequence[Message], focus: str = "") -> Sequence[Message]:
        """Return a shorter conversation, preferably as a `Compression`; never change the input.

        `messages` is valid, has no system message and may end with a user message or a tool result.
        `focus` is the topic to preserve first.
        """
        ...

    def tools(self) -> Toolset:
        """Return the tools that the engine offers to the model."""
        return Toolset()

    def session_started(self, session_id: str, live: Callable[[], Request]) -> None:
        """Start a session; `live()` returns the agent's next request."""
        return

    def session_ended(self) -> None:
        """Release the session's resources."""
        return


@runtime_checkable
class MemoryProvider(Protocol):
    """External memory in addition to the curated one: a service, vector store or notes folder.

    Methods are plain functions and may block. They are called one at a time, from a single thread.
    Their errors show one line to the user and never fail a turn. A turn waits 0.3 s for text; text
    that arrives later is sent with the next message. Returned texts are untrusted: they are cleaned
    and shortened before a model sees them. Subclass it to inherit the optional methods.
    """

    @property
    def name(self) -> str:
        """The name that selects the provider."""
        ...

    def static_block(self) -> str:
        """Return text for the system prompt, or ""; called once per session."""
        return ""

    def prefetch(self, query: str) -> str:
        """Return information relevant to the user's message, or ""."""
        return ""

    def turn_ended(self, messages: Sequence[Message]) -> None:
        """Receive a turn's messages, starting with the prompt."""
        return

    def on_memory_write(self, target: str, action: str, before: str, after: str) -> None:
        """Receive a change to the curated memory `target`.

        `before` is "" for a new entry, and `after` is "" for a removed one.
        """
        return

    def before_compress(self, messages: Sequence[Message]) -> None:
        """Receive a conversation that is about to be compressed, to save important facts."""
        return

    def on_delegation(self, task: str, result: str) -> None:
        """Receive a child agent's task and result."""
        return

    def session_ended(self, messages: Sequence[Message]) -> None:
        """Receive the messages of a session that is ending; no calls follow."""
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call that requires approval. `Question` describes the fields `why` to `calls`.

    Possible answers are "once" and "deny", "always" with a `shape`, and "run", "turn" and "outside"
    if offered.
    """

    call: ToolCall
    """The call."""
    tool: Tool
    """Its tool."""
    why: str
    """Why approval is required."""
    shown: str
    """The complete content that would run or change."""
    shape: str
    """Key under which "always" is remembered; "" if that is not offered."""
    lasting: str = ""
    """Description of what "always" would cover."""
    outside: bool = False
    """Whether to offer running it without the sandbox."""
    yes: str = ""
    """Label for the approval button; "" for the tool's default."""
    choices: tuple[str, ...] | None = None
    """Options for a multiple-choice question; None for an approval."""
    in_every_mode: bool = False
    """Whether to ask even if the approval mode would allow the call."""
    turn: bool = False
    """Whether to offer allowing this tool's calls until the turn ends."""
    runs: bool = False
    """Whether to offer running the cell that the call writes, too."""
    calls: tuple[ToolCall, ...] = ()
    """All calls of a question about several calls, which the answer covers; () for one call."""
    nonce: str = field(default_factory=lambda: token_hex(16))
    """32 random hexadecimal digits, unique to this question. An answer that arrives as a message
    must contain them; an answer to another question is ignored."""


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer to an approval request."""

    answer: Answer
    """Allow or deny."""
    reason: str = ""
    """Text for the model: the reason for a denial, or the answer to a question with choices."""
    denied: frozenset[str] = frozenset()
    """Ids of the calls that the user rejected, of a question about several calls."""
    seen: frozenset[str] = frozenset()
    """Names of the content that the question showed as it was when the user answered."""


class Approver(Protocol):
    """Asks the user for approval."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Return the user's answer or, in a headless run, the policy's."""
        ...


EventSink = Callable[[Event], None]
"""Receives the events of a turn before the consumer does. It must be fast; its errors are only
logged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variable:
    """A variable in the kernel's namespace, as described in a prompt."""

    name: str
    """Name of the variable."""
    type: str
    """Name of its type."""
    shape: str = ""
    """Size, such as "344 x 7" or "12 items"; "" if it has none."""
    columns: Mapping[str, str] | None = None
    """A table's column names and their dtypes; None for other types."""
    values: Callable[[], Mapping[str, Sequence[str]]] = field(
        default=dict, compare=False, repr=False
    )
    """Returns the different texts in each of a table's columns that has only a few."""
