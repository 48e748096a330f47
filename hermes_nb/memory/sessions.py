"""The session store on SQLite: every message is a row the moment it happens.

WAL and `synchronous=FULL` make a returned `append` survive a killed process and a lost power
supply. Damage is repaired on the way; any fault that remains comes out as `StoreError`, so that a
turn can go on without the store.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from hermes_nb.core.errors import SessionTakenError, StoreError
from hermes_nb.core.messages import Message, Role, Usage
from hermes_nb.core.protocols import Hit, StoredMessage, StoredSession
from hermes_nb.memory.encoding import decode, encode, storable
from hermes_nb.memory.search import documents, finding, index, indexing
from hermes_nb.memory.store import message_rows, session_rows
from hermes_nb.memory.store.guarded import guarded
from hermes_nb.memory.store.ledger import Ledger
from hermes_nb.memory.store.session_rows import SessionRow

SEARCH_SECONDS = 0.5
"""How long a search waits for another process's transaction to bring the index up to date."""

APPEND_SECONDS = 0.1
"""The same for an append; where it does not get its turn, the next one or a search will."""

log = logging.getLogger(__name__)

T = TypeVar("T")


def new_session_id(now: float | None = None) -> str:
    """Return an id that sorts by time, such as `20261121-220751-3f9a1c`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stamp}-{secrets.token_hex(3)}"


class SqliteStore(Ledger):
    """A `SessionStore` in one file; `:memory:` keeps nothing.

    The file is created, with mode 0600 in a directory of mode 0700, by the first call that needs
    it. A file whose schema is newer than this code is read, never written. `warn` and `warnings`:
    see `Guarded`.
    """

    def __init__(self, path: str | Path, *, warn: Callable[[str], None] | None = None) -> None:
        super().__init__(path, warn=warn)
        self._begun: dict[str, SessionRow] = {}
        self._ends: dict[str, int] = {}
        self._unreadable = False

    @guarded
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
        """Create a session and return its id; `started` is in seconds since the epoch."""
        now = time.time() if started is None else started
        session_id = session_id or new_session_id(now)
        row = SessionRow(
            id=storable(session_id),
            title=storable(title),
            source=storable(source),
            notebook=storable(notebook),
            model=storable(model),
            system_prompt=storable(system_prompt),
            parent=storable(parent),
            started=now,
        )
        self.database.write(lambda c: session_rows.insert(c, row))
        self._begun[row.id] = row
        return row.id

    def append(self, session_id: str, message: Message) -> None:
        """Add a message; it is durable when this returns."""
        if self._append(session_id, message):
            self._index()

    @guarded
    def follow(self, session_id: str) -> None:
        """Follow a session: write behind the messages that are there now, and only there."""
        self._ends[session_id] = self.database.read(
            lambda c: message_rows.next_position(c, session_id)
        )

    @guarded
    def messages(self, session_id: str) -> list[Message]:
        """Return a session's active messages in order, as they were written."""
        rows = self.database.read(lambda c: message_rows.active(c, session_id))
        return [row.message for row in self._readable(rows)]

    @guarded
    def rows(
        self, session_id: str, *, first: int = 0, last: int | None = None
    ) -> list[StoredMessage]:
        """Return the messages at positions `first` to `last` (inclusive), whatever their state."""
        rows = self.database.read(lambda c: message_rows.between(c, session_id, first, last))
        return self._readable(rows)

    def replace(
        self, session_id: str, messages: Sequence[Message], *, system_prompt: str | None = None
    ) -> None:
        """Make `messages` the active conversation, as a compression does, in one transaction."""
        self._replace(session_id, messages, system_prompt)
        self._index()

    @guarded
    def restore(self, session_id: str) -> list[Message] | None:
        """Undo the last `replace` and return the active messages; None when there was none."""
        undone = self.database.write(lambda c: message_rows.restore(c, session_id))
        return self.messages(session_id) if undone else None

    @guarded
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
        """Return the messages that fit best, best first; no query ever raises."""

        def find(connection: sqlite3.Connection) -> list[Hit]:
            with indexing.at_work():
                return finding.find(
                    connection,
                    query,
                    limit=limit,
                    session_id=session_id,
                    exclude=exclude,
                    since=since,
                    until=until,
                    roles=roles,
                )

        self._catch_up(SEARCH_SECONDS)
        return self.database.read(find)

    @guarded
    def get(self, session_id: str) -> StoredSession | None:
        """Return a session's row, or None."""
        return self.database.read(lambda c: session_rows.get(c, storable(session_id)))

    @guarded
    def sessions(self, *, notebook: str | None = None, limit: int = 20) -> list[StoredSession]:
        """Return sessions, the one written to last first; `notebook` keeps those of one file.

        Children of a fan-out (source `child`) are left out.
        """
        path = None if notebook is None else storable(notebook)
        return self.database.read(lambda c: session_rows.listed(c, path, limit))

    @guarded
    def lineage(self, session_id: str) -> list[str]:
        """Return the ids of a session's whole family, the eldest first; its own in any case."""
        return self.database.read(lambda c: session_rows.lineage(c, storable(session_id)))

    @guarded
    def rename(self, session_id: str, title: str) -> None:
        """Give a session another title."""
        row = storable(session_id), storable(title)
        self.database.write(lambda c: session_rows.rename(c, *row))
        if session_id in self._begun:
            self._begun[session_id] = replace(self._begun[session_id], title=storable(title))

    @guarded
    def relocate(self, notebook: str, to: str) -> None:
        """Let the sessions of a notebook be those of another absolute path: it was renamed."""
        old, new = storable(notebook), storable(to)
        self.database.write(lambda c: session_rows.relocate(c, old, new))
        for row in [row for row in self._begun.values() if row.notebook == old]:
            self._begun[row.id] = replace(row, notebook=new)

    @guarded
    def delete(self, session_id: str) -> None:
        """Remove a session and all its messages, so that no search finds them again."""
        self.database.write(lambda c: session_rows.delete(c, storable(session_id)))
        self._begun.pop(session_id, None)
        self._ends.pop(session_id, None)

    @guarded
    def purge(self, *, before: float = 0.0) -> None:
        """Leave no trace of what was deleted in the file, and no claim from before a moment."""

        def prune(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM claims WHERE at < ?", (before,))
            with indexing.at_work():
                index.prune(connection)

        self.database.write(prune)
        self.database.vacuum()

    @guarded
    def count(self, session_id: str, usage: Usage) -> None:
        """Add to a session's token counters; an unknown cost leaves the known part as it is."""
        self._in_session(session_id, lambda c: session_rows.count(c, session_id, usage))

    @guarded
    def end(self, session_id: str) -> None:
        """Mark a session as ended; it is not resumed on its own again."""
        self.database.write(lambda c: session_rows.end(c, storable(session_id), time.time()))

    @guarded
    def _append(self, session_id: str, message: Message) -> bool:
        """Add a message; say whether it is time to index."""
        body = encode(message)  # not while others wait

        def add(connection: sqlite3.Connection) -> tuple[int, int]:
            row, position = message_rows.append(
                connection, session_id, message.role, body, time.time()
            )
            self._check_end(session_id, position)
            return row, position + 1

        if session_id not in self._begun:
            row, end = self._in_session(session_id, add)
        else:
            try:
                row, end = self.database.write(add)
            except sqlite3.IntegrityError:  # it was there once
                row, end = self._in_session(session_id, add)
        if session_id in self._ends:
            self._ends[session_id] = end
        if index.is_time(row, size=len(body)):
            return True
        documents.expect(body, message)
        return False

    @guarded
    def _replace(
        self, session_id: str, messages: Sequence[Message], system_prompt: str | None
    ) -> None:
        prompt = None if system_prompt is None else storable(system_prompt)

        def replaced(connection: sqlite3.Connection) -> int:
            self._check_end(session_id, message_rows.next_position(connection, session_id))
            message_rows.replace(
                connection, session_id, messages, system_prompt=prompt, at=time.time()
            )
            return message_rows.next_position(connection, session_id)

        end = self._in_session(session_id, replaced)
        if session_id in self._ends:
            self._ends[session_id] = end

    def _check_end(self, session_id: str, end: int) -> None:
        """Raise `SessionTakenError` if a followed session ends later than this store left it."""
        if end > self._ends.get(session_id, end):
            message = f"session {session_id}: somebody else has added to it"
            raise SessionTakenError(message)

    def _index(self) -> None:
        """Let the index know of the messages, which are safe already, whatever becomes of this."""
        try:
            self._catch_up(APPEND_SECONDS)
        except StoreError as error:
            log.info("not searchable yet: %s", error)

    @guarded
    def _catch_up(self, patience: float) -> None:
        """Let the index know of all messages, unless it cannot be written: a search reads them.

        The documents are made before the lock is taken, so that other processes need not wait.
        """
        if self.database.read(index.is_current):
            return
        prepared = self.database.read(index.prepare)

        def catch_up(connection: sqlite3.Connection) -> None:
            with indexing.at_work():
                index.catch_up(connection, prepared)

        try:
            self.database.write(catch_up, patience=patience)
        except (StoreError, OSError, sqlite3.OperationalError) as error:
            log.debug("the index is left behind: %s", error)

    def _in_session(self, session_id: str, action: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `action` does in a transaction within which the session exists."""

        def within(connection: sqlite3.Connection) -> tuple[SessionRow, T]:
            begun = (
                self._begun.get(session_id)
                or session_rows.find(connection, session_id)
                or SessionRow(id=session_id, started=time.time())
            )
            session_rows.insert(connection, begun)
            return begun, action(connection)

        self._begun[session_id], result = self.database.write(within)
        return result

    def _readable(self, rows: Sequence[sqlite3.Row]) -> list[StoredMessage]:
        """Return the messages of rows, without those whose content is lost."""
        out = []
        for row in rows:
            message = decode(row["body"])
            if message is None:
                continue
            out.append(
                StoredMessage(
                    session_id=row["session"],
                    position=row["position"],
                    message=message,
                    at=row["at"],
                    state=row["state"],
                )
            )
        if len(out) < len(rows) and not self._unreadable:
            self._unreadable = True
            self.warnings.append(
                f"{len(rows) - len(out)} stored messages of session {rows[0]['session']} cannot be "
                "read any more and are left out"
            )
        return out
