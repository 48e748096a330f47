"""Where conversations outlive the process: what a store gives back, and what it has to do."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hermes_nb.core.messages import Message, Role, Usage

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
    """

    session_id: str
    position: int
    message: Message
    at: float
    state: MessageState = "active"


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

    def append(self, session_id: str, message: Message) -> None:
        """Add a message; it is durable when this returns.

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
