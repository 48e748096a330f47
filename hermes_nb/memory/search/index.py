"""The full-text index's tables, and how messages are added to them.

Every message is one document in a contentless FTS5 table; the row id encodes its position.

Messages are indexed in batches, in the order of their rows; one by one would take twice as long.
`search_state` holds the last indexed row, updated in the same transaction, so that messages from
killed or other processes are not missed; a search first indexes the rest. Creating the documents
takes most of that time. `made_of` does it without a connection, so that it doesn't block other
processes.

The index is created with the first messages. If SQLite lacks FTS5, there is no index, and search
reads the messages themselves.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from hermes_nb.memory.search import documents
from hermes_nb.memory.search.documents import IndexedMessage, Vocabulary, document
from hermes_nb.storage.opening import only_index

SCHEMA = """
CREATE TABLE IF NOT EXISTS search_blocks (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    session TEXT NOT NULL,
    number INTEGER NOT NULL,
    UNIQUE (session, number)
);
CREATE TABLE IF NOT EXISTS search_words (
    id INTEGER PRIMARY KEY,
    word TEXT NOT NULL UNIQUE
);
CREATE TABLE IF NOT EXISTS search_state (
    name TEXT NOT NULL,
    indexed INTEGER NOT NULL
);
"""
"""The plain tables; FTS5's own are created on first use. The state is one row, with the index's
random name and the last indexed message; without that row, there is no index."""
_FULL_TEXT = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS search_text USING fts5("
    "terms, content='', columnsize=0, tokenize='ascii')",
    # Merge eight segments instead of four: indexing takes a tenth less time, and searches take
    # 2 to 5 % longer.
    "INSERT INTO search_text (search_text, rank) VALUES ('automerge', 8)",
)
_TABLES = ("search_text", "search_words", "search_blocks", "search_state")
TOGETHER = 256
"""Number of messages indexed together: half as many cost 5 % more. A search may have to index that
many first, which takes about 40 ms for 256 messages of one kilobyte."""
LARGE = 16_384
"""Messages with more characters are indexed immediately: batching them would save little."""
_PREPARED = 2
"""Maximum number of message batches for which documents are created in advance."""
Source = tuple[str, float, float | None]
"""The input for a document: a message's stored JSON, its time, and its session's start (seconds
since the epoch)."""
Made = Mapping[Source, IndexedMessage]
"""Documents created in advance."""


@dataclass(frozen=True, slots=True)
class _MessageRow:
    """A message's row: its position, its block in the index if any, and its content."""

    id: int
    session: str
    position: int
    block: int | None
    source: Source


Blocks = dict[tuple[str, int], int]
"""The index's blocks by session and number, as created in one transaction."""


def is_current(connection: sqlite3.Connection) -> bool:
    """Return whether an index exists and contains all messages."""
    last = last_indexed(connection)
    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()
    return last is not None and last >= newest


def last_indexed(connection: sqlite3.Connection) -> int | None:
    """Return the row of the last indexed message, or None if there is no index."""
    try:
        row = connection.execute("SELECT indexed FROM search_state").fetchone()
    except sqlite3.OperationalError as error:
        if not is_missing(error):
            raise
        return None
    return row[0] if row else None


def name(connection: sqlite3.Connection) -> str:
    """Return this index's random name, or "" if there is no index."""
    row = connection.execute("SELECT name FROM search_state").fetchone()
    return row[0] if row else ""


def waiting(connection: sqlite3.Connection) -> list[Source]:
    """Return the input for the documents that `catch_up` will probably need."""
    found = islice(_rows(connection, _BY_ROW, after=last_indexed(connection) or 0), _PREPARED)
    return [row.source for rows in found for row in rows]


def made_of(sources: Sequence[Source]) -> Made:
    """Return the documents for messages; needs no connection, so it blocks no other process."""
    return {source: _document(source) for source in sources}


@only_index()
def catch_up(connection: sqlite3.Connection, made: Made | None = None) -> None:
    """Index the messages not yet indexed, inside the caller's transaction.

    Some of their documents may already be `made`. Call it once per transaction: see `Vocabulary`.
    """
    state = connection.execute("SELECT name, indexed FROM search_state").fetchone()
    if state is not None:
        try:
            _add(connection, state[0], after=state[1], made=made or {})
        except sqlite3.OperationalError as error:
            if not is_missing(error):
                raise
        else:
            return
    rebuild(connection, made)


def is_missing(error: sqlite3.OperationalError) -> bool:
    """Return whether an error means that the index or FTS5 is missing."""
    text = str(error)
    return text.startswith(("no such module", "no such tokenizer", "no such table: search_"))


@only_index()
def remove(connection: sqlite3.Connection, session_id: str) -> None:
    """Remove a session's messages from the index, before their rows are deleted."""
    catch_up(connection)  # only indexed messages can be removed
    blocks: Blocks = {}
    try:
        for rows in _rows(connection, _OF_A_SESSION, session_id=session_id):
            connection.executemany(
                "INSERT INTO search_text (search_text, rowid, terms) VALUES ('delete', ?, ?)",
                _numbered(connection, rows, blocks, {}),
            )
    except sqlite3.OperationalError as error:
        if not is_missing(error):
            raise
        connection.execute("DELETE FROM search_state")
    connection.execute("DELETE FROM search_blocks WHERE session = ?", (session_id,))
    # SQLite reuses the ids of deleted last rows.
    connection.execute(
        "UPDATE search_state SET indexed = coalesce((SELECT id FROM messages WHERE session <> ?"
        " ORDER BY id DESC LIMIT 1), 0)",
        (session_id,),
    )


@only_index()
def prune(connection: sqlite3.Connection) -> None:
    """Remove words that no message contains any more.

    The index gets a new name, because words cached by processes are no longer valid.
    """
    try:
        for statement in (
            "INSERT INTO search_text (search_text) VALUES ('optimize')",
            "CREATE VIRTUAL TABLE temp.search_terms USING fts5vocab(main, search_text, row)",
            "DELETE FROM search_words WHERE word NOT IN (SELECT term FROM temp.search_terms)",
            "DROP TABLE temp.search_terms",
        ):
            connection.execute(statement)
    except sqlite3.OperationalError as error:
        if not is_missing(error):
            raise
    connection.execute("UPDATE search_state SET name = ?", (secrets.token_hex(8),))


def rebuild(connection: sqlite3.Connection, made: Made | None = None) -> None:
    """Drop the index and create it from the messages; without FTS5, there is no index."""
    for table in _TABLES:
        drop(connection, table)
    for statement in SCHEMA.strip().split(";\n"):
        connection.execute(statement)
    try:
        for statement in _FULL_TEXT:
            connection.execute(statement)
    except sqlite3.OperationalError as error:
        if not is_missing(error):
            raise
        return
    name = secrets.token_hex(8)
    connection.execute("INSERT INTO search_state VALUES (?, 0)", (name,))
    _add(connection, name, after=0, made=made or {})


def drop(connection: sqlite3.Connection, table: str) -> None:
    """Drop a table; if it is a virtual table and too damaged, drop its parts instead."""
    try:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    except sqlite3.DatabaseError:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_schema WHERE name = ?", (table,))
        connection.execute("PRAGMA writable_schema = RESET")
        for part in ("data", "idx", "config", "content", "docsize"):
            connection.execute(f"DROP TABLE IF EXISTS {table}_{part}")


def _add(connection: sqlite3.Connection, name: str, *, after: int, made: Made) -> None:
    """Index the messages after a row, in the index with this name."""
    vocabulary = Vocabulary(connection, name)
    blocks: Blocks = {}
    for rows in _rows(connection, _BY_ROW, after=after):
        forms: set[str] = set()
        numbered = _numbered(connection, rows, blocks, made, forms)
        connection.executemany("INSERT INTO search_text (rowid, terms) VALUES (?, ?)", numbered)
        vocabulary.add(forms)
        connection.execute("UPDATE search_state SET indexed = ?", (rows[-1].id,))


_SELECT = (
    "SELECT m.id, m.session, m.position, b.id, m.body, m.at"
    " FROM messages m LEFT JOIN search_blocks b"
    " ON b.session = m.session AND b.number = m.position / :block"
)
_BY_ROW = _SELECT + " WHERE m.id > :after ORDER BY m.id LIMIT :most"
_OF_A_SESSION = _SELECT + (
    " WHERE m.session = :session AND m.position >= :position ORDER BY m.position LIMIT :most"
)


def _rows(
    connection: sqlite3.Connection, statement: str, *, after: int = -1, session_id: str = ""
) -> Iterator[list[_MessageRow]]:
    """Yield messages' rows in batches, because the table may be larger than memory."""
    cursor = connection.cursor()
    cursor.row_factory = None
    values = {"block": documents.BLOCK, "most": TOGETHER, "after": after, "session": session_id}
    values["position"] = 0
    while found := cursor.execute(statement, values).fetchall():
        # Not a join: the start is stored after a long prompt, and a batch contains few sessions.
        sessions = json.dumps(list({row[1] for row in found}))
        began = dict(
            cursor.execute(
                "SELECT id, started FROM sessions WHERE id IN (SELECT value FROM json_each(?))",
                (sessions,),
            )
        )
        rows = [
            _MessageRow(id_, session, position, block, (body, at, began.get(session)))
            for id_, session, position, block, body, at in found
        ]
        yield rows
        values |= {"after": rows[-1].id, "position": rows[-1].position + 1}


def _document(source: Source) -> IndexedMessage:
    body, at, began = source
    return document(body, at=at, began=began)


def _numbered(
    connection: sqlite3.Connection,
    rows: Sequence[_MessageRow],
    blocks: Blocks,
    made: Made,
    forms: set[str] | None = None,
) -> list[tuple[int, str]]:
    """Return messages as rows of the FTS5 table, sorted by row id.

    In descending order, they would take up additional segments in the index. Missing blocks are
    created and added to `blocks`; the documents' forms are added to `forms`.
    """
    found = []
    for row in rows:
        block = row.block
        if block is None:
            key = (row.session, row.position // documents.BLOCK)
            if key not in blocks:
                query = "INSERT INTO search_blocks (session, number) VALUES (?, ?)"
                blocks[key] = connection.execute(query, key).lastrowid or 0
            block = blocks[key]
        one = made.get(row.source) or _document(row.source)
        found.append((one.number(block, row.position), one.terms))
        if forms is not None:
            forms.update(one.forms)
    return sorted(found)
