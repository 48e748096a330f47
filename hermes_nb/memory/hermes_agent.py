"""Hermes Agent's own store, `state.db`, as a source of recall: read-only and optional.

The format (its session storage guide, schema versions 1 to 30) has these tables. Times are in
seconds since the epoch.

- `sessions`: `id`, `source`, `model`, `title`, `parent_session_id`, `started_at`, `ended_at`, …
- `messages`: `id`, `session_id`, `role`, `content`, `tool_calls` as JSON, `tool_name`,
  `tool_call_id`, `timestamp`; later versions have `active` and `compacted`
- `messages_fts`: an FTS5 table with the row ids of `messages`

Columns missing from a version count as empty; additional columns are ignored.

If the file cannot be read, there are no results and one warning. A call ends within a second and
leaves no files behind. A WAL database needs `-wal` and `-shm` files even for reading. SQLite
creates missing ones, but a read-only connection cannot remove them again. Therefore there are two
ways to open the file. If it has a log or a journal, because its owner is using it, the file and its
shared memory are opened read-only (`readonly_shm`). Otherwise the file is complete: it is opened as
immutable, without locks, and afterwards checked for changes. The file is never opened without
SQLite: closing a descriptor would release the POSIX advisory locks of another connection in this
process.
"""

# ruff: noqa: S608 - statements only contain names and placeholders from this file

from __future__ import annotations

import json
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from hermes_nb.core.messages import Json, Message, Role, Text, ToolCall, without_thinking
from hermes_nb.core.protocols import Hit, StoredMessage, StoredSession
from hermes_nb.storage.words import pieces, stem, stop_words

BUSY_SECONDS, CALL_SECONDS = 0.3, 0.8
SNIPPET = 300
MOST_ROWS = 20_000
"""Maximum number of messages to read from one session."""
MOST_WORDS = 40
"""Maximum number of a query's words to search for."""
ROLES: tuple[Role, ...] = ("user", "assistant", "tool")
"""Roles that are read; the system prompt is left out because it is not part of the dialogue."""
_SHORTEST_STEM = 4
_PARTS_MARK = "\0json:"
"""The start of content that is a list of parts (text, image) instead of text."""
_SESSION = {
    "parent_session_id": "''",
    "title": "''",
    "source": "''",
    "model": "''",
    "started_at": "0",
    "ended_at": "NULL",
}
"""SQL defaults for columns that a version may lack."""
_MESSAGE = {"content": "''", "tool_calls": "''", "tool_name": "''", "tool_call_id": "''"}
"""SQL defaults for columns that a version may lack."""

Result = TypeVar("Result")


class Unreadable(Exception):
    """The file exists but cannot be read; the message explains why."""


class Changed(Unreadable):
    """The file was changed while it was being read, so the result may be wrong; try again."""


class HermesDatabase:
    """The read methods of a `SessionStore` on `state.db`; `note` is called once for errors."""

    def __init__(self, path: Path | str, *, note: Callable[[str], None] = lambda _: None) -> None:
        self.path = Path(path)
        self._note = note
        self._noted = False

    def search(
        self, query: str, *, limit: int = 20, session_id: str = "", exclude: Collection[str] = ()
    ) -> list[Hit]:
        """Return the best matching messages, best first; a query's words are alternatives."""
        starts = [word_start(word) for word in query_words(query)]
        if not starts or limit < 1:
            return []
        only = session_id, session_id, json.dumps(list(exclude))

        def read(connection: sqlite3.Connection) -> list[Hit]:
            columns = _columns(connection, "messages")
            rows = _ranked(connection, columns, starts, only, limit)
            return [self._hit(connection, columns, row, query) for row in rows]

        return self._reading(read, [])

    def rows(
        self, session_id: str, *, first: int = 0, last: int | None = None
    ) -> list[StoredMessage]:
        def read(connection: sqlite3.Connection) -> list[StoredMessage]:
            columns = _columns(connection, "messages")
            count = MOST_ROWS if last is None else min(MOST_ROWS, last - first + 1)
            rows = connection.execute(
                f"SELECT role, timestamp AS at, {_picked(columns, _MESSAGE)} FROM messages"
                f" WHERE session_id = ? AND {_visible_rows(columns)} ORDER BY id LIMIT ? OFFSET ?",
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
        def read(connection: sqlite3.Connection) -> StoredSession | None:
            found = list(_sessions(connection, "WHERE s.id = ?", (session_id,)))
            return found[0] if found else None

        return self._reading(read, None)

    def sessions(self, *, notebook: str | None = None, limit: int = 20) -> list[StoredSession]:
        """Return sessions, most recent first; none of them has a notebook."""
        if notebook:
            return []

        def read(connection: sqlite3.Connection) -> list[StoredSession]:
            order = "ORDER BY started_at DESC, s.rowid DESC LIMIT ?"
            return list(_sessions(connection, order, (max(0, limit),)))

        return self._reading(read, [])

    def _hit(
        self, connection: sqlite3.Connection, columns: frozenset[str], row: sqlite3.Row, query: str
    ) -> Hit:
        from hermes_nb.memory.search.finding import excerpt, wanted

        (position,) = connection.execute(
            "SELECT count(*) FROM messages"
            f" WHERE session_id = ? AND id < ? AND {_visible_rows(columns)}",
            (row["session_id"], row["id"]),
        ).fetchone()
        snippet = excerpt(" ".join(text_of(row).split()), wanted(query), SNIPPET)
        return Hit(
            session_id=row["session_id"],
            position=position,
            role=row["role"],
            snippet=snippet,
            score=row["score"],
            when=_seconds(row["at"]),
        )

    def _reading(self, read: Callable[[sqlite3.Connection], Result], default: Result) -> Result:
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
        with connect(self.path) as connection:
            end = time.monotonic() + CALL_SECONDS
            connection.set_progress_handler(lambda: time.monotonic() > end, 2_000)
            return read(connection)


def query_words(query: str) -> list[str]:
    """Return the meaningful words in a query, in lower case, without repetitions."""
    found = list(dict.fromkeys(piece.lower() for piece in pieces(query[:8_000])))
    idle = stop_words(found)
    return [word for word in found if word not in idle][:MOST_WORDS] or found[:MOST_WORDS]


def word_start(word: str) -> str:
    """Return the common prefix of a word's forms (`paint` for `painted`); short words are kept."""
    root = stem(word)
    return root if len(root) >= _SHORTEST_STEM and word.startswith(root) else word


def _ranked(
    connection: sqlite3.Connection,
    columns: frozenset[str],
    starts: Sequence[str],
    only: tuple[str, str, str],
    limit: int,
) -> list[sqlite3.Row]:
    """Return the best rows: from FTS5 or, without that index, by substring comparison."""
    picked = f"m.id, m.session_id, m.role, m.timestamp AS at, {_picked(columns, _MESSAGE, 'm.')}"
    kept = (
        f"(? = '' OR m.session_id = ?) AND m.session_id NOT IN (SELECT value FROM json_each(?))"
        f" AND {_visible_rows(columns, 'm.')}"
    )
    if _columns(connection, "messages_fts"):
        match = " OR ".join(dict.fromkeys(f'"{start}"*' for start in starts))
        query = (
            f"SELECT {picked}, -bm25(messages_fts) AS score FROM messages_fts"
            f" JOIN messages m ON m.id = messages_fts.rowid"
            f" WHERE messages_fts MATCH ? AND {kept} ORDER BY bm25(messages_fts) LIMIT ?"
        )
        try:
            return connection.execute(query, (match, *only, limit)).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise  # locked, timed out or damaged, so not a missing index
    content = "coalesce(m.content, '')" if "content" in columns else "''"
    terms = " + ".join([f"({content} LIKE ? ESCAPE '\\')"] * len(starts))
    query = (
        f"SELECT {picked}, {terms} AS score FROM messages m WHERE {kept}"
        " AND score > 0 ORDER BY score DESC, m.id DESC LIMIT ?"
    )
    return connection.execute(query, (*map(_like, starts), *only, limit)).fetchall()


def _sessions(
    connection: sqlite3.Connection, rest: str, values: Sequence[object]
) -> Iterator[StoredSession]:
    columns = _columns(connection, "sessions")
    kept = _visible_rows(_columns(connection, "messages"), "m.")
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
    """Return a table's columns, or none if the table is missing or cannot be opened."""
    try:
        rows = connection.execute("SELECT name FROM pragma_table_info(?)", (table,)).fetchall()
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        return frozenset()  # a virtual table whose module or tokenizer is missing
    return frozenset(row[0] for row in rows)


def _picked(columns: Collection[str], wanted: dict[str, str], prefix: str = "") -> str:
    return ", ".join(
        f"{prefix}{name} AS {name}" if name in columns else f"{default} AS {name}"
        for name, default in wanted.items()
    )


def _visible_rows(columns: Collection[str], prefix: str = "") -> str:
    roles = ", ".join(f"'{role}'" for role in ROLES)
    test = f"{prefix}role IN ({roles})"
    if "active" in columns and "compacted" in columns:
        test += f" AND (coalesce({prefix}active, 1) <> 0 OR {prefix}compacted = 1)"
    return test


def _like(word: str) -> str:
    escaped = word.replace("\\", "\\\\").replace("%", r"\%").replace("_", r"\_")
    return f"%{escaped}%"


def _seconds(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0


@contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a read-only connection to `path`.

    The results are valid only if the block ends without an exception.

    Raises:
        FileNotFoundError: the file is missing or empty
        Unreadable: the file cannot be read now
        Changed: the file was changed during the block
        sqlite3.Error: SQLite cannot open it
    """
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise Unreadable(f"{path.name} is not a regular file")
    if not status.st_size:
        raise FileNotFoundError(path)
    logged = bool(_size(path, "-wal"))
    if logged and _size(path, "-shm") is None:
        message = f"{path.name} was not closed properly; Hermes Agent repairs it when it starts"
        raise Unreadable(message)
    alone = not logged and _size(path, "-journal") is None
    options = "mode=ro&readonly_shm=1" + ("&immutable=1" if alone else "")
    uri = f"file:{quote(os.fsencode(path.absolute()))}?{options}"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
            connection.row_factory = sqlite3.Row
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            connection.execute("PRAGMA query_only = ON")
            yield connection
    finally:
        if alone and _stamp(os.stat(path)) != _stamp(status):
            raise Changed(f"{path.name} is being written at the moment; try again")


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _size(path: Path, suffix: str) -> int | None:
    try:
        return path.with_name(path.name + suffix).stat().st_size
    except OSError:
        return None


def text_of(row: sqlite3.Row) -> str:
    """Return the text of a message's row, or its tool calls if it has no text."""
    message = message_of(row)
    return message.text or " ".join(f"{c.name} {c.arguments_json()}" for c in message.calls)


def message_of(row: sqlite3.Row) -> Message:
    """Return the message in a row, without unreadable parts."""
    text = _text(row["content"])
    message = Message(
        role=row["role"],
        parts=(Text(text),) if text else (),
        calls=_calls(row["tool_calls"]),
        call_id=str(row["tool_call_id"] or ""),
        name=str(row["tool_name"] or ""),
    )
    return without_thinking(message)


def _text(content: object) -> str:
    if isinstance(content, bytes):
        content = content.decode("utf-8", "replace")
    if not isinstance(content, str):
        return ""
    if not content.startswith((_PARTS_MARK, '[{"type"')):
        return content
    parts = _json(content.removeprefix(_PARTS_MARK))
    if not isinstance(parts, list):
        return content
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _calls(stored: object) -> tuple[ToolCall, ...]:
    calls = _json(stored) if isinstance(stored, str) and stored else None
    if not isinstance(calls, list):
        return ()
    return tuple(_call(call) for call in calls if isinstance(call, Mapping))


def _call(call: Mapping[str, Json]) -> ToolCall:
    function = call.get("function")
    named = function if isinstance(function, Mapping) else call
    arguments = named.get("arguments")
    if isinstance(arguments, str):
        arguments = _json(arguments)
    return ToolCall(
        id=str(call.get("id") or ""),
        name=str(named.get("name") or ""),
        arguments=arguments if isinstance(arguments, Mapping) else {},
    )


def _json(text: str) -> Json:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
