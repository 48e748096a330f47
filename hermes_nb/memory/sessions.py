"""The session store on SQLite: every message is a row the moment it happens.

WAL and `synchronous=FULL` make a returned `append` survive a killed process and a lost power
supply. One connection a process, guarded by a lock and never used across a fork. Any fault of the
database comes out as `StoreError`, so that a turn can go on without it.
"""

from __future__ import annotations

import functools
import json
import os
import random
import secrets
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar, cast

from hermes_nb.core.errors import StoreError
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import StoredSession

Method = TypeVar("Method", bound=Callable[..., Any])

BUSY_SECONDS = 5.0
"""How long a write waits for another process's transaction before it gives up; the turn that waits
keeps what it could not write and tries again later."""
JITTER = (0.020, 0.150)
"""Pause between two attempts, in seconds: random, so that waiting kernels do not march in step."""

MIGRATIONS = (
    """
    CREATE TABLE sessions (
        id TEXT PRIMARY KEY,
        parent TEXT REFERENCES sessions(id),
        title TEXT NOT NULL,
        source TEXT NOT NULL,
        notebook TEXT NOT NULL,
        model TEXT NOT NULL,
        system_prompt TEXT NOT NULL,
        started REAL NOT NULL,
        ended REAL,
        written REAL NOT NULL,
        tokens_in INTEGER NOT NULL DEFAULT 0,
        tokens_out INTEGER NOT NULL DEFAULT 0,
        tokens_cached INTEGER NOT NULL DEFAULT 0,
        tokens_written INTEGER NOT NULL DEFAULT 0,
        tokens_reasoning INTEGER NOT NULL DEFAULT 0,
        requests INTEGER NOT NULL DEFAULT 0,
        cost REAL
    );
    CREATE TABLE messages (
        id INTEGER PRIMARY KEY,
        session TEXT NOT NULL REFERENCES sessions(id),
        position INTEGER NOT NULL,
        role TEXT NOT NULL,
        body TEXT NOT NULL,
        at REAL NOT NULL,
        state TEXT NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'compressed', 'undone')),
        UNIQUE (session, position)
    );
    CREATE INDEX sessions_of_a_notebook ON sessions (notebook, written);
    """,
)
"""The n-th script takes the schema from `user_version` n to n + 1."""


def _guarded(method: Method) -> Method:
    """Turn every database fault into `StoreError`."""

    @functools.wraps(method)
    def wrapper(self: SqliteStore, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        try:
            return method(self, *args, **kwargs)
        except (sqlite3.Error, OSError, UnicodeError) as error:
            message = f"session store {self.path}: {error}"
            raise StoreError(message) from error

    return cast("Method", wrapper)


def new_session_id(now: float | None = None) -> str:
    """Return an id that sorts by time, such as `20261121-220751-3f9a1c`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stamp}-{secrets.token_hex(3)}"


class SqliteStore:
    """A `SessionStore` in one file; `:memory:` keeps nothing.

    The file is created, with mode 0600 in a directory of mode 0700, by the first call that needs
    it. A file whose schema is newer than this code is read, never written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = str(path)
        self._lock = threading.RLock()
        self._connection: sqlite3.Connection | None = None
        self._pid = 0

    @_guarded
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
        """Create a session and return its id: `session_id`, or else a new one.

        `started` is in seconds since the epoch, now by default; `notebook` an absolute path.
        """
        now = time.time() if started is None else started
        session_id = session_id or new_session_id(now)
        row = (session_id, title, source, notebook, model, system_prompt, now, now)
        with self._write() as connection:
            connection.execute(
                "INSERT INTO sessions (id, title, source, notebook, model, system_prompt, started,"
                " written) VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                tuple(_storable(value) for value in row),
            )
        return session_id

    @_guarded
    def append(self, session_id: str, message: Message) -> None:
        """Add a message; it is durable when this returns."""
        # ASCII JSON: lone surrogates and NUL are escaped, so nothing a model says breaks a write.
        body = json.dumps(message.to_dict(), default=str)
        now = time.time()
        with self._write() as connection:
            connection.execute(
                "INSERT INTO messages (session, position, role, body, at) VALUES (?1,"
                " (SELECT coalesce(max(position) + 1, 0) FROM messages WHERE session = ?1),"
                " ?2, ?3, ?4)",
                (session_id, message.role, body, now),
            )
            connection.execute("UPDATE sessions SET written = ? WHERE id = ?", (now, session_id))

    @_guarded
    def messages(self, session_id: str) -> list[Message]:
        """Return a session's active messages in order, as they were written."""
        rows = self._read(
            "SELECT body FROM messages WHERE session = ? AND state = 'active' ORDER BY position",
            (session_id,),
        )
        return [Message.from_dict(json.loads(row["body"])) for row in rows]

    @_guarded
    def get(self, session_id: str) -> StoredSession | None:
        """Return a session's row, or None."""
        rows = self._read(_SELECT_SESSIONS + " WHERE id = ?", (session_id,))
        return _session(rows[0]) if rows else None

    @_guarded
    def sessions(self, *, notebook: str | None = None, limit: int = 20) -> list[StoredSession]:
        """Return sessions, the one written to last first; `notebook` keeps those of one file."""
        rows = self._read(
            _SELECT_SESSIONS
            + " WHERE ?1 IS NULL OR notebook = ?1 ORDER BY written DESC, rowid DESC"
            " LIMIT ?2",
            (_storable(notebook), limit),
        )
        return [_session(row) for row in rows]

    @_guarded
    def count(self, session_id: str, usage: Usage) -> None:
        """Add to a session's token counters; an unknown cost leaves the known part as it is."""
        with self._write() as connection:
            connection.execute(
                "UPDATE sessions SET tokens_in = tokens_in + ?, tokens_out = tokens_out + ?,"
                " tokens_cached = tokens_cached + ?, tokens_written = tokens_written + ?,"
                " tokens_reasoning = tokens_reasoning + ?, requests = requests + ?,"
                " cost = CASE WHEN ?7 IS NULL THEN cost ELSE coalesce(cost, 0) + ?7 END"
                " WHERE id = ?8",
                (
                    usage.input,
                    usage.output,
                    usage.cached,
                    usage.written,
                    usage.reasoning,
                    usage.requests,
                    usage.cost,
                    session_id,
                ),
            )

    @_guarded
    def end(self, session_id: str) -> None:
        """Mark a session as ended; it is not resumed on its own again."""
        with self._write() as connection:
            connection.execute(
                "UPDATE sessions SET ended = ? WHERE id = ?", (time.time(), session_id)
            )

    def close(self) -> None:
        """Close the connection; a later call opens it again."""
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                self._connection.close()
            self._connection = None

    def _read(self, query: str, values: tuple[Any, ...]) -> list[sqlite3.Row]:
        with self._lock:
            return self._open().execute(query, values).fetchall()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        """Hold the write lock for a transaction, waiting for other processes with jitter."""
        with self._lock:
            connection = self._open()
            deadline = time.monotonic() + BUSY_SECONDS
            while True:
                try:
                    connection.execute("BEGIN IMMEDIATE")
                    break
                except sqlite3.OperationalError as error:
                    if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                        raise
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(random.uniform(*JITTER))  # noqa: S311 - jitter, not a secret
            try:
                yield connection
            except BaseException:
                connection.rollback()
                raise
            connection.commit()

    def _open(self) -> sqlite3.Connection:
        """Return this process's connection; one inherited over a fork is dropped, not closed.

        Closing it would release the parent's locks.
        """
        if self._connection is None or self._pid != os.getpid():
            self._connection = _connect(self.path)
            self._pid = os.getpid()
            _migrate(self._connection)
        return self._connection


_SELECT_SESSIONS = (
    "SELECT *, (SELECT count(*) FROM messages m WHERE m.session = sessions.id"
    " AND m.state = 'active') AS messages FROM sessions"
)


def _connect(path: str) -> sqlite3.Connection:
    if path != ":memory:":
        file = Path(path)
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Made by us first: SQLite would make it with the process's umask.
        os.close(os.open(file, os.O_RDWR | os.O_CREAT, 0o600))
    connection = sqlite3.connect(
        path, timeout=0.1, isolation_level=None, check_same_thread=False, cached_statements=64
    )
    connection.row_factory = sqlite3.Row
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def _migrate(connection: sqlite3.Connection) -> None:
    """Bring the schema up to date, or lock a newer one against writing."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > len(MIGRATIONS):
        connection.execute("PRAGMA query_only = ON")
        return
    if version == len(MIGRATIONS):
        return
    connection.execute("PRAGMA busy_timeout = 30000")
    connection.execute("BEGIN IMMEDIATE")
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()  # another may be faster
        for script in MIGRATIONS[version:]:
            for statement in script.split(";"):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS)}")
        connection.commit()
    except BaseException:
        connection.rollback()
        raise
    connection.execute("PRAGMA busy_timeout = 100")


def _storable(value: Any) -> Any:  # noqa: ANN401 - a column's value
    """Return text that UTF-8 can hold: a lone surrogate becomes a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    return value


def _session(row: sqlite3.Row) -> StoredSession:
    usage = Usage(
        input=row["tokens_in"],
        output=row["tokens_out"],
        cached=row["tokens_cached"],
        written=row["tokens_written"],
        reasoning=row["tokens_reasoning"],
        requests=row["requests"],
        cost=row["cost"],
    )
    return StoredSession(
        id=row["id"],
        title=row["title"],
        source=row["source"],
        notebook=row["notebook"],
        model=row["model"],
        system_prompt=row["system_prompt"],
        started=row["started"],
        written=row["written"],
        ended=row["ended"],
        messages=row["messages"],
        usage=usage,
    )
