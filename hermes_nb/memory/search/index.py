"""The tables of the full-text index, and how messages get into them.

Every message is one document of a contentless FTS5 table; its row id is its address (`addresses`).

Messages are indexed some at a time, in the order of their rows: one by one costs twice as
much. `search_state` says up to which row that was done, in the same transaction, so that neither
a killed process nor another one's messages are forgotten; whoever searches catches up first.

The index is made with the first messages. Where SQLite lacks FTS5 there is none, and search reads
the messages themselves.
"""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Collection, Iterator
from functools import lru_cache
from itertools import chain

from hermes_nb.memory.search import addresses
from hermes_nb.memory.search.documents import MARK, Document, document

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
"""The plain tables; FTS5's own are made when they are first needed. The state is one row, of the
index's own random name and the last message in it; without that row there is no index."""

_FULL_TEXT = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS search_text USING fts5("
    "terms, content='', columnsize=0, tokenize='ascii')",
    # Words, not messages, by their trigrams: a part of a word finds the words, they the messages.
    "CREATE VIRTUAL TABLE IF NOT EXISTS search_grams USING fts5("
    "word, content='', columnsize=0, detail='none', tokenize='trigram')",
)
_TABLES = ("search_text", "search_grams", "search_words", "search_blocks", "search_state")

TOGETHER = 128
"""Messages that are indexed together. A search may find so many that are not yet: 128 of a
kilobyte take it some 30 ms."""
LARGE = 16_384
"""Characters of a stored message that does not wait for others: what it costs is its own text."""
WORDS_TOGETHER = 1024
"""Words whose trigrams are indexed together."""
_MOST_KNOWN = 50_000


def is_time(row_id: int, *, size: int) -> bool:
    """Say whether whoever adds a message, stored in so many characters, is the one to index.

    Rows are numbered without gaps, so that this needs no look at the index.
    """
    return row_id % TOGETHER == 0 or size > LARGE


def is_current(connection: sqlite3.Connection) -> bool:
    """Say whether there is an index that has all messages."""
    last = last_indexed(connection)
    (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()
    return last is not None and last >= newest


def last_indexed(connection: sqlite3.Connection) -> int | None:
    """Return the row of the last message in the index, None without an index."""
    try:
        row = connection.execute("SELECT indexed FROM search_state").fetchone()
    except sqlite3.OperationalError as error:
        if not is_missing(error):
            raise
        return None
    return row[0] if row else None


def catch_up(connection: sqlite3.Connection) -> None:
    """Index the messages that are not in the index yet, within the caller's transaction.

    Once in a transaction: see `_add_words`.
    """
    state = connection.execute("SELECT name, indexed FROM search_state").fetchone()
    if state is not None:
        try:
            _add(connection, state[0], after=state[1])
        except sqlite3.OperationalError as error:
            if not is_missing(error):
                raise
        else:
            return
    rebuild(connection)


def is_missing(error: sqlite3.OperationalError) -> bool:
    """Say whether an error means that there is no index or no FTS5 to read it with."""
    text = str(error)
    return text.startswith(("no such module", "no such tokenizer", "no such table: search_"))


def remove(connection: sqlite3.Connection, session_id: str) -> None:
    """Take a session's messages out of the index, before their rows are deleted."""
    catch_up(connection)  # what was never put in cannot be taken out
    try:
        for rows in _rows(connection, _OF_A_SESSION, session_id=session_id):
            connection.executemany(
                "INSERT INTO search_text (search_text, rowid, terms) VALUES ('delete', ?, ?)",
                _in_order(_documents(connection, rows)),
            )
    except sqlite3.OperationalError as error:
        if not is_missing(error):
            raise
        connection.execute("DELETE FROM search_state")
    connection.execute("DELETE FROM search_blocks WHERE session = ?", (session_id,))
    # The numbers of the last rows are given out again.
    connection.execute(
        "UPDATE search_state SET indexed = coalesce((SELECT id FROM messages WHERE session <> ?"
        " ORDER BY id DESC LIMIT 1), 0)",
        (session_id,),
    )


def rebuild(connection: sqlite3.Connection) -> None:
    """Drop the index and make it again from the messages; without FTS5 there is none."""
    for table in _TABLES:
        _drop(connection, table)
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
    _add(connection, name, after=0)


def _drop(connection: sqlite3.Connection, table: str) -> None:
    """Drop a table; a virtual one too damaged for that goes by its parts."""
    try:
        connection.execute(f"DROP TABLE IF EXISTS {table}")
    except sqlite3.DatabaseError:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("DELETE FROM sqlite_schema WHERE name = ?", (table,))
        connection.execute("PRAGMA writable_schema = RESET")
        for part in ("data", "idx", "config", "content", "docsize"):
            connection.execute(f"DROP TABLE IF EXISTS {table}_{part}")


def _add(connection: sqlite3.Connection, name: str, *, after: int) -> None:
    """Index the messages whose rows come after a number, in the index of this name."""
    fresh: set[str] = set()
    for rows in _rows(connection, _BY_ROW, after=after):
        documents = _documents(connection, rows)
        connection.executemany(
            "INSERT INTO search_text (rowid, terms) VALUES (?, ?)", _in_order(documents)
        )
        terms = set(chain.from_iterable(one.terms.split() for one in documents))
        _add_words(connection, terms, known=_known(name), fresh=fresh)
        connection.execute("UPDATE search_state SET indexed = ?", (rows[-1]["id"],))


def _in_order(documents: Collection[Document]) -> list[tuple[int, str]]:
    """Return documents as FTS5 takes them; a lesser number than the last one costs a segment."""
    return sorted((one.number, one.terms) for one in documents)


_SELECT = (
    "SELECT m.id, m.session, m.position, m.body, m.at, s.started, b.id AS block"
    " FROM messages m LEFT JOIN sessions s ON s.id = m.session LEFT JOIN search_blocks b"
    " ON b.session = m.session AND b.number = m.position / :block"
)
_BY_ROW = _SELECT + " WHERE m.id > :after ORDER BY m.id LIMIT :most"
_OF_A_SESSION = _SELECT + (
    " WHERE m.session = :session AND m.position >= :position ORDER BY m.position LIMIT :most"
)


def _rows(
    connection: sqlite3.Connection, statement: str, *, after: int = -1, session_id: str = ""
) -> Iterator[list[sqlite3.Row]]:
    """Yield messages' rows a few at a time: the table may be larger than memory."""
    cursor = connection.cursor()
    cursor.row_factory = sqlite3.Row
    values = {"block": addresses.BLOCK, "most": TOGETHER, "after": after, "session": session_id}
    values["position"] = 0
    while rows := cursor.execute(statement, values).fetchall():
        yield rows
        values |= {"after": rows[-1]["id"], "position": rows[-1]["position"] + 1}


def _documents(connection: sqlite3.Connection, rows: Collection[sqlite3.Row]) -> list[Document]:
    """Return the documents of rows, making the blocks of the index that they need."""
    made: dict[tuple[str, int], int] = {}
    found = []
    for row in rows:
        block = row["block"]
        if block is None:
            key = (row["session"], row["position"] // addresses.BLOCK)
            if key not in made:
                query = "INSERT INTO search_blocks (session, number) VALUES (?, ?)"
                made[key] = connection.execute(query, key).lastrowid or 0
            block = made[key]
        found.append(
            document(
                block=block,
                position=row["position"],
                body=row["body"],
                at=row["at"],
                began=row["started"],
            )
        )
    return found


def _add_words(
    connection: sqlite3.Connection, terms: set[str], *, known: set[str], fresh: set[str]
) -> None:
    """Put the words among some terms into the list of words.

    `fresh` collects those that this transaction has added. It may yet be rolled back, so that only
    the words that were there before get `known`.
    """
    unknown = terms - known
    new = {term for term in unknown if _is_word(term)}
    if len(known) < _MOST_KNOWN:
        known |= unknown - new  # they never will be words
    if not new:
        return
    rows = connection.execute(
        "INSERT OR IGNORE INTO search_words (word) SELECT value FROM json_each(?)"
        " RETURNING id, word",
        (json.dumps(sorted(new)),),
    ).fetchall()
    if rows:
        _index_parts(connection, min(row[0] for row in rows), max(row[0] for row in rows))
        fresh |= {row[1] for row in rows}
    if len(known) < _MOST_KNOWN:
        known |= new - fresh


def _index_parts(connection: sqlite3.Connection, first: int, last: int) -> None:
    """Index the trigrams of each full batch of words that the words `first` to `last` complete.

    A batch costs little more than a word does; `Postings` reads the words of the last one itself.
    """
    begin, end = (
        (first - 1) // WORDS_TOGETHER * WORDS_TOGETHER,
        last // WORDS_TOGETHER * WORDS_TOGETHER,
    )
    if begin < end:
        connection.execute(
            "INSERT INTO search_grams (rowid, word) SELECT id, word FROM search_words"
            " WHERE id > ? AND id <= ? AND substr(word, 1, 1) <> ?",
            (begin, end, MARK),
        )


def _is_word(term: str) -> bool:
    """Say whether a term is kept in the list of words: marks, and what a part may be asked of."""
    return term[0] == MARK or (len(term) > 3 and term.isalpha())  # noqa: PLR2004


@lru_cache(maxsize=4)
def _known(name: str) -> set[str]:  # noqa: ARG001 - the key
    """Return terms that need no look: words that an index has, and what is no word at all.

    Asking it costs more than indexing does.
    """
    return set()
