"""The schema of the session store, as the steps that lead to it.

`PRAGMA user_version` counts the steps a file has taken. All that are missing are taken in one
transaction: a killed process leaves the old schema or the new one.

The steps are closed: a kernel of an earlier version may have the file open, and stops writing when
it meets a version that it does not know. What is needed later is added where it is missing, as
tables and as columns with defaults (none for claims, which are read whole), and leaves the version
as it is, so that such a kernel goes on writing.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator

from hermes_nb.memory.search import index

_FIRST = """
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
"""

# The session with the greatest `last` is the one
# written to last: it is the id of a row, the first of those added to it since another one was. The
# clock may jump, ids only grow. One index serves the list of all sessions and of one notebook's.
_SECOND = """
ALTER TABLE sessions ADD COLUMN active INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN last INTEGER NOT NULL DEFAULT 0;
CREATE TABLE arrangements (
    id INTEGER PRIMARY KEY,
    session TEXT NOT NULL REFERENCES sessions(id),
    start INTEGER NOT NULL,
    stop INTEGER NOT NULL,
    positions TEXT NOT NULL,
    prompt_before TEXT,
    at REAL NOT NULL
);
CREATE INDEX arrangements_of_a_session ON arrangements (session, id);
DROP INDEX sessions_of_a_notebook;
CREATE INDEX sessions_by_use ON sessions (last, notebook);
CREATE INDEX sessions_by_parent ON sessions (parent) WHERE parent IS NOT NULL;
"""

# `run` and `task` are digests; `rowid` grows with each claim. No row holds a prompt or a key.
_FOURTH = """
CREATE TABLE claims (
    run TEXT NOT NULL,
    task TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('running', 'done', 'failed', 'stopped')),
    owner TEXT NOT NULL,
    result TEXT NOT NULL,
    at REAL NOT NULL,
    PRIMARY KEY (run, task)
);
"""

# What the messages themselves tell needs no columns, which each append would have to write.
_FIFTH = """
ALTER TABLE sessions DROP COLUMN written;
ALTER TABLE sessions DROP COLUMN active;
CREATE INDEX messages_set_aside ON messages (session) WHERE state <> 'active';
"""

IN_ORDER = """
UPDATE sessions SET
    last = max(last, (SELECT coalesce(max(m.id), 0) FROM messages m WHERE m.session = sessions.id))
"""
"""Tells from the sessions' messages which was written to last."""


def migrate(connection: sqlite3.Connection) -> None:
    """Take the steps that are missing; nothing happens to a schema that is newer or the same."""
    if version_of(connection) >= VERSION and pragma(connection, "application_id"):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in STEPS[version_of(connection) :]:  # asked again: another process may be faster
            step(connection)
        connection.execute(f"PRAGMA user_version = {VERSION}")
        if not pragma(connection, "application_id"):
            connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute("COMMIT")
    except BaseException:
        connection.rollback()
        raise


def pragma(connection: sqlite3.Connection, name: str) -> int:
    """Return a number from the file's header."""
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def version_of(connection: sqlite3.Connection) -> int:
    """Return how many steps the file has taken."""
    return pragma(connection, "user_version")


def _to_1(connection: sqlite3.Connection) -> None:
    _run(connection, _FIRST)


def _to_2(connection: sqlite3.Connection) -> None:
    _run(connection, _SECOND)
    connection.execute(IN_ORDER)


def _to_3(connection: sqlite3.Connection) -> None:
    """Make the index anew: it may lag behind now, and splits words in fewer places."""
    if connection.execute("SELECT 1 FROM messages LIMIT 1").fetchone():
        index.rebuild(connection)
    else:
        _run(connection, index.SCHEMA)


def _to_4(connection: sqlite3.Connection) -> None:
    _run(connection, _FOURTH)


def _to_5(connection: sqlite3.Connection) -> None:
    _run(connection, _FIFTH)


def _to_6(connection: sqlite3.Connection) -> None:
    """Drop the trigrams of words: all words can be looked at in the same time."""
    index.drop(connection, "search_grams")


STEPS: tuple[Callable[[sqlite3.Connection], None], ...] = (
    *(_to_1, _to_2, _to_3),
    *(_to_4, _to_5, _to_6),
)
"""The n-th step takes the schema from version n to n + 1."""
VERSION = len(STEPS)
"""The version of the schema that this code writes."""
APPLICATION = 0x6865726D
"""What the header says of whose file it is: "herm"."""
WITHOUT_SHARED_MEMORY = APPLICATION + 1
"""The same for a file on a file system that cannot share memory, which needs a rollback journal."""


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Run a script within the transaction; `executescript` would commit it."""
    for statement in _statements(script):
        connection.execute(statement)


def _statements(script: str) -> Iterator[str]:
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
    if statement.strip():
        yield statement
