"""The SQLite session store: every message is stored as a row immediately.

With WAL and `synchronous=FULL`, a row survives a killed process or a power failure as soon as
`append` returns. Damage is repaired automatically. Remaining errors are raised as `StoreError`, so
that a turn can continue without the store.
"""

from __future__ import annotations

import logging
import secrets
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from hermes_nb.core.claims import Claim, ClaimState, Ending
from hermes_nb.core.errors import SessionTakenError, StoreError
from hermes_nb.core.messages import Message, Role, Usage
from hermes_nb.core.protocols import Hit, StoredMessage, StoredSession
from hermes_nb.memory import rows as table
from hermes_nb.memory.rows import SessionRow, encode, storable
from hermes_nb.memory.schema import SCHEMA
from hermes_nb.memory.search import index
from hermes_nb.storage.database import Action, Database

SEARCH_SECONDS = 0.5
"""Seconds that a search waits for another process's transaction before updating the index."""

APPEND_SECONDS = 0.1
"""The same limit for an append; if it has to give up, the next one or a search updates the
index."""

KEPT = 20_000
"""Number of latest claims from other runs to keep. This is not an age, because clocks may jump."""
TIDIED = 256
"""Number of claims between two removals of old ones."""

_OURS = " WHERE run = ? AND task = ? AND owner = ? AND state = 'running'"

log = logging.getLogger(__name__)


def new_session_id(now: float | None = None) -> str:
    """Return an id that sorts by time, such as `20261121-220751-3f9a1c`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stamp}-{secrets.token_hex(3)}"


@dataclass(eq=False)
class _Write:
    """A change that is waiting for its transaction, and its result."""

    action: Action[object]
    done: bool = False
    result: object = None
    error: StoreError | None = None


class GroupedWrites:
    """Groups changes from several threads into one transaction, which costs one disk flush.

    The thread that gets the lock writes all changes that accumulated during the previous write.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._turn = threading.Lock()
        self._gathered: deque[_Write] = deque()

    def write(self, action: Action[object]) -> object:
        """Return the result of `action` once it is durable; raise StoreError."""
        mine = _Write(action)
        self._gathered.append(mine)
        with self._turn:
            if not mine.done:
                self._write([self._gathered.popleft() for _ in range(len(self._gathered))])
        if mine.error is not None:
            raise mine.error
        return mine.result

    def _write(self, writes: Sequence[_Write]) -> None:
        for write in writes:
            write.done, write.error = (
                True,
                StoreError("it was not written: another write in the same batch failed"),
            )
        try:
            results = self._database.write(lambda c: [write.action(c) for write in writes])
        except StoreError as error:
            for write in writes:
                write.error = error
            return
        for write, write.result in zip(writes, results, strict=True):
            write.error = None


class Ledger:
    """The claims in the store's file: each task is claimed only once (see `core.claims`)."""

    _claimed: GroupedWrites
    database: Database

    def claim(
        self, run: str, task: str, *, owner: str, again: Collection[ClaimState] = ()
    ) -> Claim:
        wanted = Claim(run=run, task=task, state="running", owner=storable(owner), at=time.time())

        def claim(connection: sqlite3.Connection) -> Claim:
            row = connection.execute(
                "SELECT * FROM claims WHERE run = ? AND task = ?", (run, task)
            ).fetchone()
            if row is not None and row["state"] not in again:
                return Claim(**row)
            made = connection.execute(
                "INSERT OR REPLACE INTO claims (run, task, state, owner, result, at)"
                " VALUES (?, ?, ?, ?, '', ?)",
                (run, task, wanted.state, wanted.owner, wanted.at),
            )
            last = made.lastrowid or 0
            if last % TIDIED == 0:
                connection.execute(
                    "DELETE FROM claims WHERE rowid <= ? AND run <> ?", (last - KEPT, run)
                )
            return wanted

        return cast("Claim", self._claimed.write(claim))

    def settle(self, run: str, task: str, *, owner: str, state: Ending, result: str = "") -> bool:
        values = state, storable(result), time.time(), run, task, storable(owner)
        query = "UPDATE claims SET state = ?, result = ?, at = ?" + _OURS  # noqa: S608 - constant
        return bool(self._claimed.write(lambda c: c.execute(query, values).rowcount > 0))

    def release(self, run: str, task: str, *, owner: str) -> bool:
        values = run, task, storable(owner)
        query = "DELETE FROM claims" + _OURS  # noqa: S608 - constant
        return bool(self._claimed.write(lambda c: c.execute(query, values).rowcount > 0))

    def claims(self, run: str) -> list[Claim]:
        query = "SELECT * FROM claims WHERE run = ? ORDER BY task"
        return self.database.read(lambda c: [Claim(**row) for row in c.execute(query, (run,))])


class SqliteStore(Ledger):
    """A `SessionStore` in one file; with `:memory:`, it stores nothing on disk.

    The first call that needs the file creates it, with mode 0600, in a directory with mode 0700.
    For `warn` and `warnings`, see `Database`.
    """

    def __init__(self, path: str | Path, *, warn: Callable[[str], None] | None = None) -> None:
        self.database = Database(path, SCHEMA, warn=warn)
        self._claimed = GroupedWrites(self.database)
        self.path = self.database.path
        self.warnings = self.database.warnings
        self._begun: dict[str, SessionRow] = {}
        self._ends: dict[str, int] = {}
        self._last = "", 0, 0  # last session appended to, the edition after that, next position
        self._unreadable = False
        self._indexing: threading.Thread | None = None

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

        Args:
            title: the title
            source: the kind of caller
            started: the start in seconds since the epoch (default: now)
            notebook: the notebook's path, or "" for none
            model: the model's name
            system_prompt: the system prompt
            session_id: the id, or "" for a new one
            parent: the id of the session that it is created from, or "" if there is none
        """
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
        self.database.write(lambda c: table.insert(c, row))
        self._begun[row.id] = row
        return row.id

    def append(self, session_id: str, message: Message, *, usage: Usage | None = None) -> None:
        body = encode(message)  # outside the transaction, which blocks others

        def add(connection: sqlite3.Connection) -> tuple[int, int, int]:
            values = session_id, message.role, body, time.time()
            if session_id not in self._begun:
                self._begin(connection, session_id)
            edition = self.database.edition
            known = self._last[2] if self._last[:2] == (session_id, edition) else None
            try:
                row, position = table.append(connection, *values, known)
            except sqlite3.IntegrityError:  # the session was deleted or lost
                self._begin(connection, session_id)
                row, position = table.append(connection, *values)
            self._check_end(session_id, position)
            if usage is not None:
                table.count(connection, session_id, usage)
            return row, edition + 1, position + 1

        row, edition, end = self.database.write(add)
        self._last = session_id, edition, end
        if session_id in self._ends:
            self._ends[session_id] = end
        # Row numbers have no gaps, so this counts messages without reading the index.
        if row % index.TOGETHER == 0 or len(body) > index.LARGE:
            self._index()

    def follow(self, session_id: str) -> None:
        self._ends[session_id] = self.database.read(lambda c: table.next_position(c, session_id))

    def messages(self, session_id: str) -> list[Message]:
        rows = self.database.read(lambda c: table.active(c, session_id))
        return [row.message for row in self._readable(rows)]

    def rows(
        self, session_id: str, *, first: int = 0, last: int | None = None
    ) -> list[StoredMessage]:
        rows = self.database.read(lambda c: table.between(c, session_id, first, last))
        return self._readable(rows)

    def replace(
        self, session_id: str, messages: Sequence[Message], *, system_prompt: str | None = None
    ) -> None:
        prompt = None if system_prompt is None else storable(system_prompt)

        def replaced(connection: sqlite3.Connection) -> int:
            self._begin(connection, session_id)
            self._check_end(session_id, table.next_position(connection, session_id))
            table.replace(connection, session_id, messages, system_prompt=prompt, at=time.time())
            return table.next_position(connection, session_id)

        end = self.database.write(replaced)
        if session_id in self._ends:
            self._ends[session_id] = end
        self._index()

    def restore(self, session_id: str) -> list[Message] | None:
        undone = self.database.write(lambda c: table.restore(c, session_id))
        return self.messages(session_id) if undone else None

    def rewind(self, session_id: str, length: int) -> None:
        self.database.write(lambda c: table.rewind(c, session_id, length))

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
        from hermes_nb.memory.search import finding
        from hermes_nb.memory.search.postings import Filter

        only = Filter(session_id=session_id, exclude=exclude, since=since, until=until, roles=roles)
        self._catch_up(SEARCH_SECONDS)
        return self.database.read(lambda c: finding.find(c, query, only, limit=limit))

    def get(self, session_id: str) -> StoredSession | None:
        return self.database.read(lambda c: table.get(c, storable(session_id)))

    def sessions(self, *, notebook: str | None = None, limit: int = 20) -> list[StoredSession]:
        path = None if notebook is None else storable(notebook)
        return self.database.read(lambda c: table.listed(c, path, limit))

    def usage(
        self, *, session_id: str = "", notebook: str = "", since: float = 0.0
    ) -> dict[tuple[str, str], Usage]:
        values = storable(session_id), storable(notebook), since
        return self.database.read(lambda c: table.usage(c, *values))

    def lineage(self, session_id: str) -> list[str]:
        return self.database.read(lambda c: table.lineage(c, storable(session_id)))

    def rename(self, session_id: str, title: str) -> None:
        values = storable(title), storable(session_id)
        self.database.write(
            lambda c: c.execute("UPDATE sessions SET title = ? WHERE id = ?", values)
        )
        if session_id in self._begun:
            self._begun[session_id] = replace(self._begun[session_id], title=storable(title))

    def relocate(self, notebook: str, to: str) -> None:
        old, new = storable(notebook), storable(to)
        query = "UPDATE sessions SET notebook = ? WHERE notebook = ?"
        self.database.write(lambda c: c.execute(query, (new, old)))
        for row in [row for row in self._begun.values() if row.notebook == old]:
            self._begun[row.id] = replace(row, notebook=new)

    def delete(self, session_id: str) -> None:
        self.database.write(lambda c: table.delete(c, storable(session_id)))
        self._begun.pop(session_id, None)
        self._ends.pop(session_id, None)

    def purge(self, *, before: float = 0.0) -> None:
        """Erase all traces of deleted data, and the claims made before a point in time."""

        def prune(connection: sqlite3.Connection) -> None:
            connection.execute("DELETE FROM claims WHERE at < ?", (before,))
            index.prune(connection)

        self.database.write(prune)
        self.database.vacuum()

    def count(self, session_id: str, usage: Usage) -> None:
        def add(connection: sqlite3.Connection) -> None:
            self._begin(connection, session_id)
            table.count(connection, session_id, usage)

        self.database.write(add)

    def incidents(self) -> int:
        return self.database.incidents()

    def close(self) -> None:
        if self._indexing is not None:
            self._indexing.join()
        self.database.close()

    def end(self, session_id: str) -> None:
        # Not before its start, even if the clock was set back.
        query = "UPDATE sessions SET ended = max(started, ?) WHERE id = ?"
        values = time.time(), storable(session_id)
        self.database.write(lambda c: c.execute(query, values))

    def _check_end(self, session_id: str, end: int) -> None:
        if end > self._ends.get(session_id, end):
            raise SessionTakenError(f"session {session_id}: another process has added to it")

    def _index(self) -> None:
        """Update the index in a thread while the turn continues; the messages are stored."""
        if self._indexing is None or not self._indexing.is_alive():
            indexing = threading.Thread(target=self._index_now, name="hermes-index", daemon=True)
            indexing.start()
            self._indexing = indexing  # only after start(), because close() joins it

    def _index_now(self) -> None:
        try:
            self._catch_up(APPEND_SECONDS)
        except StoreError as error:
            log.info("not searchable yet: %s", error)

    def _catch_up(self, patience: float) -> None:
        """Add all messages to the index; if it cannot be written, a search reads the rest directly.

        The documents are made before taking the lock, so that other processes wait less.
        """
        if self.database.read(index.is_current):
            return
        made = index.made_of(self.database.read(index.waiting))
        try:
            self.database.write(partial(index.catch_up, made=made), patience=patience)
        except StoreError as error:
            log.debug("the search index could not be updated: %s", error)

    def _begin(self, connection: sqlite3.Connection, session_id: str) -> None:
        """Ensure inside a transaction that the session's row exists, and cache its data."""
        begun = (
            self._begun.get(session_id)
            or table.find(connection, session_id)
            or SessionRow(id=session_id, started=time.time())
        )
        table.insert(connection, begun)
        self._begun[session_id] = begun

    def _readable(self, rows: Sequence[sqlite3.Row]) -> list[StoredMessage]:
        session = rows[0]["session"] if rows else ""
        out = table.readable(session, map(dict, rows))
        if len(out) < len(rows) and not self._unreadable:
            self._unreadable = True
            self.database.tell(table.unreadable(session, len(rows) - len(out)))
        return out
