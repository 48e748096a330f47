"""The seams of the agent: what it needs of a model, an engine, a store, an approver and a sink."""

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
"""Entry points of stores, by the scheme of their addresses; see `StoreSetup`."""
MessageState = Literal["active", "compressed", "undone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSession:
    """A session's row. `notebook` is an absolute path or "", times are seconds since the epoch.

    `messages` counts the active ones; `written` is when the last of them was added. `parent` is
    the session that this one was made from (a review, a child of a fan-out), or "".
    """

    id: str
    parent: str = ""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredMessage:
    """A message as it lies in the store.

    `position` counts from 0 in its session and never changes; `at` is in seconds since the epoch.
    What a compression `made` is no more than a shorter form, or a summary, of others.
    """

    session_id: str
    position: int
    message: Message
    at: float
    state: MessageState = "active"
    made: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A message that a search found.

    A higher `score` is better; `when` is in seconds since the epoch; `snippet` is the text around
    the words that matched.
    """

    session_id: str
    position: int
    role: Role
    snippet: str
    score: float
    when: float


OUTBOXES = "hermes_nb.outboxes"
"""Entry points of outboxes: functions from a home and what hears of trouble to an `Outbox`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """What is to be said in a chat though nobody asked there, such as what a scheduled job said."""

    id: str
    """The same each time, so that it is said once."""
    adapter: str
    """The name of the chat service's adapter."""
    chat: str
    """The chat's name there."""
    text: str
    at: float
    """When it came to be, in seconds since the epoch; what is old is not said any more."""


class Outbox(Protocol):
    """Where the gateway finds what is to be said; it looks every few seconds, in a thread."""

    def notices(self) -> Sequence[Notice]:
        """Return what is to be said, the oldest first, and also what was returned before."""
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreSetup:
    """What a store of a package is made for: entry points of the group `hermes_nb.stores`.

    The name of an entry is the scheme of the addresses that it takes, such as `postgresql`; it is a
    function from this to a `SessionStore`.
    """

    url: str
    """The address in the setting `session_store`; a password never stands in it."""
    claims: Path
    """The home's own file, for what is of one machine alone."""
    password: str = field(default="", repr=False)
    """What the variable holds that the setting `store.key_env` names."""
    warn: Callable[[str], None] | None = None
    """Hears of damage that was repaired, and of what could not be."""


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
        parent: str = "",
    ) -> str:
        """Create a session and return its id: `session_id`, or else a new one.

        `notebook` is an absolute path. A session that is there already stays as it is. A `parent`
        that is not there is left out.
        """
        ...

    def append(self, session_id: str, message: Message, *, usage: Usage | None = None) -> None:
        """Add a message, and count what its request used; it is durable when this returns.

        A session that the store does not have, or has lost, gets a row first. Raises
        `SessionTakenError`, as `replace` does, where this store follows the session and somebody
        else has added messages.
        """
        ...

    def follow(self, session_id: str) -> None:
        """Follow a session: write behind the messages that are there now, and only there."""
        ...

    def incidents(self) -> int:
        """Return how often something happened that may have cost messages that were durable."""
        ...

    def messages(self, session_id: str) -> list[Message]:
        """Return a session's active messages in order, as they were written."""
        ...

    def rows(
        self, session_id: str, *, first: int = 0, last: int | None = None
    ) -> list[StoredMessage]:
        """Return the messages at positions `first` to `last` (inclusive), whatever their state."""
        ...

    def replace(
        self, session_id: str, messages: Sequence[Message], *, system_prompt: str | None = None
    ) -> None:
        """Make `messages` the active conversation, as a compression does, in one transaction.

        Active messages that are still among them keep their rows; the others stay in the store as
        `compressed`, searchable. `system_prompt` replaces the stored one where given. Messages
        that only continue the active conversation are appended: there is nothing to restore.
        """
        ...

    def restore(self, session_id: str) -> list[Message] | None:
        """Undo the last `replace` and return the active messages; None when there was none.

        What was added since stays at the end.
        """
        ...

    def rewind(self, session_id: str, length: int) -> None:
        """Keep the first `length` active messages; the others stay as `undone`, not searchable."""
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
        """Return the messages that fit best, best first; no query ever raises.

        `session_id` searches one session alone, `exclude` leaves sessions out, `since` and `until`
        are in seconds since the epoch, `roles` keeps only those.
        """
        ...

    def get(self, session_id: str) -> StoredSession | None:
        """Return a session's row, or None."""
        ...

    def sessions(self, *, notebook: str | None = None, limit: int = 20) -> list[StoredSession]:
        """Return sessions, the one written to last first; those of children are left out."""
        ...

    def lineage(self, session_id: str) -> list[str]:
        """Return the ids of a session's whole family, the eldest first; its own in any case.

        The family is what the session was made from and all that was made from that.
        """
        ...

    def rename(self, session_id: str, title: str) -> None:
        """Give a session another title."""
        ...

    def relocate(self, notebook: str, to: str) -> None:
        """Let the sessions of a notebook be those of another absolute path: it was renamed."""
        ...

    def delete(self, session_id: str) -> None:
        """Remove a session and all its messages, so that no search finds them again."""
        ...

    def purge(self, *, before: float = 0.0) -> None:
        """Leave no trace of what was deleted on the disk, and no result of a map from `before`."""
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
MOST_WAITED = 60
"""Seconds of a turn that are spent at most on waiting for providers that ask for it."""


@dataclass(slots=True)
class Waited:
    """What the requests of one turn have waited for providers so far, in seconds."""

    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request to a model: the whole conversation, system message first, and the tools.

    `tool_choice` `none` forbids calls but keeps the schemas, so that a cached prefix stays one.
    `effort` is how much to reason, "" for what the model does by itself. `waited` is shared by the
    requests of a turn, None outside of one.
    """

    messages: tuple[Message, ...]
    tools: Toolset = field(default_factory=Toolset)
    tool_choice: Literal["auto", "none"] = "auto"
    effort: Effort = ""
    waited: Waited | None = field(default=None, compare=False, repr=False)


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What sets a model apart. A model may have them as `traits`; without, these are its own."""

    small: bool = False
    """It brings a short prompt of its own: no instructions, memory, skills or fallbacks."""
    learns: bool = True
    """Reviews of its turns are worth their requests."""
    local: bool = False
    """It runs on this machine: it costs no money, and answers one request at a time."""
    notice: str = ""
    """What the user reads once, before its first answer."""
    offered: Callable[[Toolset], Toolset] = lambda tools: tools
    """Returns those of the tools that it is really told of."""
    loading: Callable[[], bool] = bool
    """Says whether it is being loaded into memory."""


@runtime_checkable
class Preparing(Protocol):
    """A model that needs something first, such as a download."""

    async def prepare(
        self, agreed: Callable[[str], bool], progress: Callable[[int, int], None]
    ) -> None:
        """See to it that the model can answer; raise `ConfigError`, with the ways out.

        `agreed` puts a question to the user, and says no where nobody can answer. `progress` is
        called from any thread with the bytes that have arrived, and those of the whole.
        """
        ...


@runtime_checkable
class Serialising(Protocol):
    """A model that can say what it would send, without sending it."""

    def body(self, request: Request) -> bytes:
        """Return the JSON of a request; b"" where it is not sent as JSON."""
        ...


def body_of(model: ChatModel, request: Request) -> bytes:
    """Return the JSON that a model would send, b"" for one that cannot say."""
    return model.body(request) if isinstance(model, Serialising) else b""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression(Sequence[Message]):
    """What a compression made of a conversation; as a sequence, its messages.

    `note` belongs at the end of the system prompt from now on. `requests` is what the engine asked
    of models on the way. The other fields are those of `ContextCompressed`.
    """

    messages: tuple[Message, ...]
    note: str = ""
    phase: str = ""
    shortened: int = 0
    dropped: int = 0
    summary: str = ""
    warning: str = ""
    requests: tuple[UsageReported, ...] = ()

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
    """Keeps the prompt within the window; exactly one is active.

    Subclass it to inherit what an engine need not have: tools, and the ends of a session.
    """

    def observe(self, usage: Usage) -> None:
        """Take note of what a request really used."""
        ...

    def should_compress(self, prompt_tokens: int) -> bool:
        """Say whether a prompt of that many tokens should be compressed before it is sent."""
        ...

    async def compress(self, messages: Sequence[Message], focus: str = "") -> Sequence[Message]:
        """Return a shorter conversation, best as a `Compression`; the input is never mutated.

        `messages` has no system message, is valid, and may end with a user message or a result that
        waits for its answer. `focus` is what the user wants kept in the first place.
        """
        ...

    def tools(self) -> Toolset:
        """Return the tools that the engine offers to the model."""
        return Toolset()

    def session_started(self, session_id: str, live: Callable[[], Request]) -> None:
        """Begin with a session; `live()` is the request that its agent would send now."""
        return

    def session_ended(self) -> None:
        """Release what the session needed."""
        return


@runtime_checkable
class MemoryProvider(Protocol):
    """A memory beside the curated one: a service, a vector store, a directory of notes.

    Methods are plain functions that may block; they are called one at a time, by one thread, and
    whatever they raise costs the user a line and never a turn. A turn waits for a text for 0.3 s;
    what comes later goes with the next message. What they return is somebody else's text: it is
    cleaned and capped before a model sees it. Subclass it to inherit what a provider need not do.
    """

    @property
    def name(self) -> str:
        """The name it is chosen by."""
        ...

    def static_block(self) -> str:
        """Return what belongs into the system prompt, "" for nothing; asked once a session."""
        return ""

    def prefetch(self, query: str) -> str:
        """Return what is worth knowing about the user's message, "" for nothing."""
        return ""

    def turn_ended(self, messages: Sequence[Message]) -> None:
        """Take what was said in a turn, from the prompt on."""
        return

    def on_memory_write(self, target: str, action: str, before: str, after: str) -> None:
        """Take note of a change to the curated memory `target`; an empty side did not exist."""
        return

    def before_compress(self, messages: Sequence[Message]) -> None:
        """Take what is worth keeping from a conversation that is about to be shortened."""
        return

    def on_delegation(self, task: str, result: str) -> None:
        """Take note of what a child agent was asked and what it answered."""
        return

    def session_ended(self, messages: Sequence[Message]) -> None:
        """Take what is worth keeping; no other call follows."""
        return


@dataclass(frozen=True, slots=True, kw_only=True)
class ApprovalRequest:
    """A call that wants a yes: what it is, why it asks, and the exact bytes that would run.

    The fields are those of a `Question`. An answer may be "once", "always" where there is a
    `shape`, "outside" where `outside` offers that, or "deny".
    """

    call: ToolCall
    tool: Tool
    why: str
    shown: str
    shape: str
    lasting: str = ""
    outside: bool = False
    yes: str = ""
    choices: tuple[str, ...] | None = None
    in_every_mode: bool = False
    nonce: str = field(default_factory=lambda: token_hex(16))
    """32 random hexadecimal digits, unique to this question. An answer that arrives as a message
    must name them; one that names another question is ignored."""


@dataclass(frozen=True, slots=True)
class Approval:
    """The answer to an approval request; `reason` is what the model reads after a refusal.

    To a question with choices it is the answer itself.
    """

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
