"""Hermes Agent's own store, `state.db`, as a source of recall: read, never written, never in doubt.

Facts about the format (its session storage guide, schema versions 1 to 30): tables `sessions`
(`id`, `source`, `model`, `title`, `parent_session_id`, `started_at`, `ended_at`, …) and `messages`
(`id`, `session_id`, `role`, `content`, `tool_calls` as JSON, `tool_name`, `tool_call_id`,
`timestamp`; `active` and `compacted` in later ones), times in seconds since the epoch, and an FTS5
table `messages_fts` whose row ids are those of `messages`. Columns that a version does not have
count as empty, those it has besides are ignored.

Whatever is wrong with the file means no results and one note. A call ends within a second.
"""

# ruff: noqa: S608 - what is put into a statement are names and marks from this file alone

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from hermes_nb.core.messages import Role
from hermes_nb.core.protocols import Hit, StoredMessage, StoredSession
from hermes_nb.memory.foreign import Changed, Unreadable, connect
from hermes_nb.memory.hermes_rows import ROLES, message_of, text_of
from hermes_nb.memory.search.excerpts import excerpt, matcher, query_words, word_start

CALL_SECONDS = 0.8
SNIPPET = 300
MOST_ROWS = 20_000
"""Messages read of one session."""

Result = TypeVar("Result")

_SESSION = {
    "parent_session_id": "''",
    "title": "''",
    "source": "''",
    "model": "''",
    "started_at": "0",
    "ended_at": "NULL",
}
_MESSAGE = {"content": "''", "tool_calls": "''", "tool_name": "''", "tool_call_id": "''"}


class HermesDatabase:
    """The read half of a `SessionStore` over `state.db`; `note` hears once of what is wrong."""

    def __init__(self, path: Path | str, *, note: Callable[[str], None] = lambda _: None) -> None:
        self.path = Path(path)
        self._note = note
        self._noted = False

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
        """Return the messages that fit best, best first; the words of a query are alternatives."""
        words = query_words(query)
        if not words or limit < 1:
            return []
        wanted = _Filter(session_id, tuple(exclude)[:500], since, until, tuple(roles) or ROLES)

        def read(connection: sqlite3.Connection) -> list[Hit]:
            columns = _columns(connection, "messages")
            rows = _ranked(connection, columns, words, wanted, limit)
            return [self._hit(connection, columns, row, query) for row in rows]

        return self._reading(read, [])

    def rows(
        self, session_id: str, *, first: int = 0, last: int | None = None
    ) -> list[StoredMessage]:
        """Return the messages at positions `first` to `last` (inclusive) of a session."""

        def read(connection: sqlite3.Connection) -> list[StoredMessage]:
            columns = _columns(connection, "messages")
            count = MOST_ROWS if last is None else min(MOST_ROWS, last - first + 1)
            rows = connection.execute(
                f"SELECT role, timestamp AS at, {_picked(columns, _MESSAGE)} FROM messages"
                f" WHERE session_id = ? AND {_kept(columns)} ORDER BY id LIMIT ? OFFSET ?",
                (session_id, max(0, count), max(0, first)),
            )
            return [
                StoredMessage(
                    session_id=session_id,
                    position=max(0, first) + number,
                    message=message_of(row),
                    at=_seconds(row["at"]),
                )
                for number, row in enumerate(rows)
            ]

        return self._reading(read, [])

    def get(self, session_id: str) -> StoredSession | None:
        """Return a session's row, or None."""

        def read(connection: sqlite3.Connection) -> StoredSession | None:
            found = list(_sessions(connection, "WHERE s.id = ?", (session_id,)))
            return found[0] if found else None

        return self._reading(read, None)

    def sessions(self, *, notebook: str | None = None, limit: int = 20) -> list[StoredSession]:
        """Return sessions, the last one first; none of them has a notebook."""
        if notebook:
            return []

        def read(connection: sqlite3.Connection) -> list[StoredSession]:
            order = "ORDER BY started_at DESC, s.rowid DESC LIMIT ?"
            return list(_sessions(connection, order, (max(0, limit),)))

        return self._reading(read, [])

    def _hit(
        self, connection: sqlite3.Connection, columns: frozenset[str], row: sqlite3.Row, query: str
    ) -> Hit:
        (position,) = connection.execute(
            f"SELECT count(*) FROM messages WHERE session_id = ? AND id < ? AND {_kept(columns)}",
            (row["session_id"], row["id"]),
        ).fetchone()
        snippet = excerpt(" ".join(text_of(row).split()), matcher(query), SNIPPET)
        return Hit(
            session_id=row["session_id"],
            position=position,
            role=row["role"],
            snippet=snippet,
            score=row["score"],
            when=_seconds(row["at"]),
        )

    def _reading(self, read: Callable[[sqlite3.Connection], Result], default: Result) -> Result:
        """Return what `read` returns, the default where the file does not allow it."""
        try:
            try:
                return self._read(read)
            except Changed:
                return self._read(read)
        except FileNotFoundError:
            return default
        except (sqlite3.Error, OSError, Unreadable, ValueError, TypeError) as error:
            if not self._noted:
                self._noted = True
                self._note(f"Hermes Agent's {self.path.name} is not searched: {error}")
            return default

    def _read(self, read: Callable[[sqlite3.Connection], Result]) -> Result:
        with connect(self.path) as connection, _in_time(connection):
            return read(connection)


class _Filter:
    """What a hit has to be, as SQL over `messages m`."""

    def __init__(
        self,
        session_id: str,
        exclude: Sequence[str],
        since: float | None,
        until: float | None,
        roles: Sequence[str],
    ) -> None:
        self.values: list[Any] = [*roles]
        parts = [f"m.role IN ({_marks(roles)})"]
        if session_id:
            parts.append("m.session_id = ?")
            self.values.append(session_id)
        if exclude:
            parts.append(f"m.session_id NOT IN ({_marks(exclude)})")
            self.values += exclude
        for value, test in ((since, ">="), (until, "<")):
            if value is not None:
                parts.append(f"m.timestamp {test} ?")
                self.values.append(value)
        self.sql = " AND ".join(parts)


def _ranked(
    connection: sqlite3.Connection,
    columns: frozenset[str],
    words: Sequence[str],
    wanted: _Filter,
    limit: int,
) -> list[sqlite3.Row]:
    """Return the best rows: by FTS5, else, where there is no such index, by plain comparison."""
    picked = f"m.id, m.session_id, m.role, m.timestamp AS at, {_picked(columns, _MESSAGE, 'm.')}"
    kept = _kept(columns, "m.")
    if _columns(connection, "messages_fts"):
        starts = dict.fromkeys(f'"{word_start(word)}"*' for word in words)
        query = (
            f"SELECT {picked}, -bm25(messages_fts) AS score FROM messages_fts"
            f" JOIN messages m ON m.id = messages_fts.rowid"
            f" WHERE messages_fts MATCH ? AND {wanted.sql} AND {kept}"
            " ORDER BY bm25(messages_fts) LIMIT ?"
        )
        try:
            values = (" OR ".join(starts), *wanted.values, limit)
            return connection.execute(query, values).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise  # locked, out of time, damaged: not a matter of the index
    content = "coalesce(m.content, '')" if "content" in columns else "''"
    terms = " + ".join([f"({content} LIKE ? ESCAPE '\\')"] * len(words))
    query = (
        f"SELECT {picked}, {terms} AS score FROM messages m WHERE {wanted.sql} AND {kept}"
        " AND score > 0 ORDER BY score DESC, m.id DESC LIMIT ?"
    )
    likes = [_like(word_start(word)) for word in words]
    return connection.execute(query, (*likes, *wanted.values, limit)).fetchall()


def _sessions(
    connection: sqlite3.Connection, rest: str, values: Sequence[Any]
) -> Iterator[StoredSession]:
    columns = _columns(connection, "sessions")
    kept = _kept(_columns(connection, "messages"), "m.")
    rows = connection.execute(
        f"SELECT s.id, {_picked(columns, _SESSION, 's.')},"
        f" (SELECT count(*) FROM messages m WHERE m.session_id = s.id AND {kept}) AS messages,"
        " (SELECT max(m.timestamp) FROM messages m WHERE m.session_id = s.id) AS written"
        f" FROM sessions s {rest}",
        values,
    ).fetchall()
    for row in rows:
        started = _seconds(row["started_at"])
        yield StoredSession(
            id=str(row["id"]),
            parent=str(row["parent_session_id"] or ""),
            title=str(row["title"] or ""),
            source=str(row["source"] or "hermes"),
            model=str(row["model"] or ""),
            started=started,
            written=_seconds(row["written"]) or started,
            ended=_seconds(row["ended_at"]) or None,
            messages=row["messages"],
        )


def _columns(connection: sqlite3.Connection, table: str) -> frozenset[str]:
    """Return a table's columns, none where there is no such table or it cannot be opened."""
    try:
        rows = connection.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return frozenset()  # an index whose module or tokenizer is not there
    return frozenset(row[0] for row in rows)


def _picked(columns: Collection[str], wanted: dict[str, str], prefix: str = "") -> str:
    """Return a select list in which a missing column is its default."""
    return ", ".join(
        f"{prefix}{name} AS {name}" if name in columns else f"{default} AS {name}"
        for name, default in wanted.items()
    )


def _kept(columns: Collection[str], prefix: str = "") -> str:
    """Return the test for messages that count: not undone, and of a role that we know."""
    roles = ", ".join(f"'{role}'" for role in ROLES)
    test = f"{prefix}role IN ({roles})"
    if "active" in columns and "compacted" in columns:
        test += f" AND (coalesce({prefix}active, 1) <> 0 OR {prefix}compacted = 1)"
    return test


@contextmanager
def _in_time(connection: sqlite3.Connection) -> Iterator[None]:
    """Stop every statement of a call when its time is over."""
    end = time.monotonic() + CALL_SECONDS
    connection.set_progress_handler(lambda: time.monotonic() > end, 2_000)
    yield


def _marks(values: Sequence[Any]) -> str:
    return ", ".join("?" * len(values))


def _like(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
    return f"%{escaped}%"


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
