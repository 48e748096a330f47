"""The tables of the full-text index, and how a message gets into them.

Every message is one document of a contentless FTS5 table; its row id is its address (`addresses`).
Besides its words a document holds marks: when it was written and said, who speaks.

The index is made with the first message. Where SQLite lacks FTS5 there is none, and search reads
the messages themselves.
"""

from __future__ import annotations

import json
import re
import secrets
import sqlite3
from collections.abc import Iterator
from functools import lru_cache

from hermes_nb.core.messages import Message
from hermes_nb.memory import addresses, dates, words

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
"""
"""The plain tables; FTS5's own are made when they are first needed."""

_FULL_TEXT = (
    "CREATE VIRTUAL TABLE IF NOT EXISTS search_text USING fts5("
    "terms, content='', columnsize=0, tokenize='ascii')",
    # Words, not messages, by their trigrams: a part of a word finds the words, they the messages.
    "CREATE VIRTUAL TABLE IF NOT EXISTS search_grams USING fts5("
    "word, content='', columnsize=0, detail='none', tokenize='trigram')",
)

MARK = "\u00a7"
"""Begins a term that no text contains."""

_MOST_KNOWN = 50_000
BATCH = 256
"""Words whose trigrams are indexed together."""


def add(
    connection: sqlite3.Connection,
    row_id: int,  # noqa: ARG001 - the address is the session and the position
    session_id: str,
    position: int,
    message: Message,
    at: float,
) -> None:
    """Index a message that was just inserted, in the same transaction."""
    store, document, terms = _document(connection, session_id, position, message, at)
    if not store:
        rebuild(connection)
        return
    try:
        _insert(connection, store, document, terms)
    except sqlite3.OperationalError as error:
        if not is_missing(error):
            raise
        # Who can keep the index up to date makes it anew.
        connection.execute("DELETE FROM search_words WHERE id = 0")


def is_missing(error: sqlite3.OperationalError) -> bool:
    """Say whether an error means that there is no index or no FTS5 to read it with."""
    text = str(error)
    return text.startswith(("no such module", "no such tokenizer", "no such table: search_"))


def remove(connection: sqlite3.Connection, session_id: str) -> None:
    """Take a session's messages out of the index, before their rows are deleted."""
    try:
        for session, position, body, at in _rows(connection, session_id):
            _, document, terms = _document(connection, session, position, _message(body), at)
            connection.execute(
                "INSERT INTO search_text (search_text, rowid, terms) VALUES ('delete', ?, ?)",
                (document, " ".join(terms)),
            )
    except sqlite3.OperationalError as error:
        if not is_missing(error):
            raise
        connection.execute("DELETE FROM search_words WHERE id = 0")
    connection.execute("DELETE FROM search_blocks WHERE session = ?", (session_id,))


def rebuild(connection: sqlite3.Connection) -> None:
    """Drop the index and make it again from the messages; without FTS5 there is none."""
    for table in ("search_text", "search_grams", "search_words", "search_blocks"):
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
    store = f"{MARK}{secrets.token_hex(8)}"
    connection.execute("INSERT INTO search_words VALUES (0, ?)", (store,))
    for session, position, body, at in _rows(connection):
        store, document, terms = _document(connection, session, position, _message(body), at)
        _insert(connection, store, document, terms)


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


def text_of(message: Message) -> str:
    """Return what a message is found by: its text, its tool's name, the calls it asks for."""
    calls = (f"{call.name} {call.arguments_json()}" for call in message.calls)
    return "\n".join((*filter(None, (message.name, message.text)), *calls))


def speaker(text: str) -> str:
    """Return who a text says is speaking ("Ana: hello"), "" where it does not."""
    found = _SPEAKER.match(text)
    return found[1] if found else ""


_NAME = r"[^\W\d_][\w.'\u2019-]{0,30}"
_SPEAKER = re.compile(rf"\s{{0,9}}({_NAME}(?: {_NAME}){{0,2}}):\s")


def spoken_by(term: str) -> str:
    """Return the mark of messages whose speaker's name has this term."""
    return f"{MARK}v{term}"


def written_on(day: str) -> str:
    """Return the mark of messages written on a day (`20230508`); every message has one."""
    return f"{MARK}w{day}"


def said_on(day: str) -> str:
    """Return the mark of messages whose session began on a day that they were not written on."""
    return f"{MARK}s{day}"


def _document(
    connection: sqlite3.Connection, session_id: str, position: int, message: Message, at: float
) -> tuple[str, int, list[str]]:
    """Return the store's name, a message's address, making its block if need be, and its terms."""
    key = (session_id, position // addresses.BLOCK)
    row = connection.execute(
        "SELECT b.id, s.started, (SELECT word FROM search_words WHERE id = 0)"
        " FROM search_blocks b LEFT JOIN sessions s ON s.id = b.session"
        " WHERE b.session = ? AND b.number = ?",
        key,
    ).fetchone()
    if row is None:
        connection.execute("INSERT INTO search_blocks (session, number) VALUES (?, ?)", key)
        return _document(connection, session_id, position, message, at)
    text = text_of(message)
    terms = words.indexed(text)
    document = addresses.document(row[0], position, message.role, terms=len(terms))
    marks = [spoken_by(term) for term in words.terms(speaker(text))]
    written, said = (dates.day_of(when) if when is not None else None for when in (at, row[1]))
    marks.append(written_on(f"{written:%Y%m%d}" if written else ""))
    if said and said != written:
        marks.append(said_on(f"{said:%Y%m%d}"))
    return row[2] or "", document, [*terms, words.BREAK, *marks]


def _insert(connection: sqlite3.Connection, store: str, document: int, terms: list[str]) -> None:
    connection.execute(
        "INSERT INTO search_text (rowid, terms) VALUES (?, ?)", (document, " ".join(terms))
    )
    # A word of this transaction may yet be rolled back: only what was there before gets known.
    known = _known(store)
    unknown = set(terms) - known
    new = {term for term in unknown if _is_word(term)}
    if len(known) < _MOST_KNOWN:
        known |= unknown - new  # they never will be words
    if not new:
        return
    fresh = connection.execute(
        "INSERT OR IGNORE INTO search_words (word) SELECT value FROM json_each(?)"
        " RETURNING id, word",
        (json.dumps(list(new)),),
    ).fetchall()
    if fresh:
        numbers = [number for number, _ in fresh]
        _index_parts(connection, min(numbers), max(numbers))
    if len(known) < _MOST_KNOWN:
        known |= new.difference(word for _, word in fresh)


def _index_parts(connection: sqlite3.Connection, first: int, last: int) -> None:
    """Index the trigrams of each full batch of words that the words `first` to `last` complete.

    A batch costs little more than a word does; `Postings` reads the words of the last one itself.
    """
    begin, end = (first - 1) // BATCH * BATCH, last // BATCH * BATCH
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
def _known(store: str) -> set[str]:  # noqa: ARG001 - the key
    """Return terms that need no look: words that the store has, and what is no word at all.

    Asking it costs more than indexing does.
    """
    return set()


def _rows(
    connection: sqlite3.Connection, session_id: str | None = None
) -> Iterator[tuple[str, int, str, float]]:
    """Yield the messages' rows a few at a time: the table may be larger than memory."""
    last = -1
    while rows := connection.execute(
        "SELECT id, session, position, body, at FROM messages"
        " WHERE id > ?1 AND (?2 IS NULL OR session = ?2) ORDER BY id LIMIT 200",
        (last, session_id),
    ).fetchall():
        for row in rows:
            last = row[0]
            yield row[1], row[2], row[3], row[4]


def _message(body: str) -> Message:
    """Return a stored message; one that cannot be read is found by what lies there."""
    try:
        return Message.from_dict(json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Message.system(body)
