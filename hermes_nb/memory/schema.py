"""The session store's tables: the migration steps, and the recovery of damaged files.

No further migration steps may be added: a kernel with an earlier version of this package may have
the file open, and stops writing if it finds a version that it does not know. New tables, and new
columns with defaults, are added if they are missing, without a new version. The `claims` table gets
no new columns, because earlier versions read its whole rows.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import get_args

from hermes_nb.core.claims import ClaimState
from hermes_nb.core.messages import Role
from hermes_nb.core.text import number_of
from hermes_nb.memory.rows import decode, unpacked
from hermes_nb.memory.search import index
from hermes_nb.storage.opening import Schema, run_script
from hermes_nb.storage.salvage import Record, Value, records

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

# `last` orders sessions by their latest write: it is the id of the first row in the session's
# latest uninterrupted run of rows. Row ids only grow, while a clock may jump. One index serves the
# lists of all sessions and of one notebook's sessions.
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

# `run` and `task` are digests; `rowid` increases with each claim. No row contains a prompt or a
# key.
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

# Data that can be computed from the messages has no columns, because each append would have to
# write them.
_FIFTH = """
ALTER TABLE sessions DROP COLUMN written;
ALTER TABLE sessions DROP COLUMN active;
CREATE INDEX messages_set_aside ON messages (session) WHERE state <> 'active';
"""

IN_ORDER = """
UPDATE sessions SET
    last = max(last, (SELECT coalesce(max(m.id), 0) FROM messages m WHERE m.session = sessions.id));
"""
"""Computes `last` from the sessions' messages."""


def _to_3(connection: sqlite3.Connection) -> None:
    """Rebuild the search index. From version 3 on, it splits words in fewer places.

    Since then, it may also lag behind the messages.
    """
    if connection.execute("SELECT 1 FROM messages LIMIT 1").fetchone():
        index.rebuild(connection)
    else:
        run_script(connection, index.SCHEMA)


ROLES = frozenset(get_args(Role))
STATES = frozenset({"active", "compressed", "undone"})
ENDINGS = frozenset(get_args(ClaimState))
SESSION = (
    "id parent title source notebook model system_prompt started ended tokens_in tokens_out"
    " tokens_cached tokens_written tokens_reasoning requests cost"
).split()
"""The session columns that are recovered; they come first in all versions of the table."""
CURRENT = len(SESSION) + 1
"""Number of columns in a session, including `last`, which is recomputed."""
WRITTEN = SESSION.index("ended") + 1
"""Index of the column `written`, a timestamp that existed until version 5."""
LARGEST = 2**53
"""Upper bound for ids and counts; greater values indicate damage."""


def salvage(source: Path, target: Path) -> str:
    """Copy the readable rows of `source`, a damaged store with its log, to a new store `target`.

    Returns a message with the number of saved rows; `target` is then complete and in one file. A
    message whose session is lost gets a new one. Raises sqlite3.Error or OSError, for example if
    the disk is full.
    """
    with closing(sqlite3.connect(target, isolation_level=None)) as connection:
        connection.row_factory = sqlite3.Row
        # The file is not used until it is complete, and it is then synced once.
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA synchronous = OFF")
        SCHEMA.migrate(connection)
        connection.execute("BEGIN IMMEDIATE")
        for record in records(source, columns=len(SESSION)):
            _keep_session(connection, record)
        unreadable = _keep_messages(connection, source)
        _keep_claims(connection, source)
        _complete(connection)
        connection.execute("COMMIT")
        sessions, messages = connection.execute(
            "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM messages)"
        ).fetchone()
    lost = f"; {unreadable} more could not be read" if unreadable else ""
    saved = f"{number_of(messages, 'message')} of {number_of(sessions, 'session')}"
    return f"{saved} could be saved into a new one{lost}"


def _keep_session(connection: sqlite3.Connection, record: Record) -> None:
    values = record.values[: len(SESSION)]
    if len(record.values) > CURRENT or not _fits(record, "TtTTTTTRrIIIIIIr", values):
        values = (*record.values[:WRITTEN], *record.values[WRITTEN + 1 : len(SESSION) + 1])
    if _fits(record, "TtTTTTTRrIIIIIIr", values):
        connection.execute(
            f"INSERT OR IGNORE INTO sessions (rowid, {', '.join(SESSION)})"  # noqa: S608 - constant
            f" VALUES ({', '.join('?' * (len(SESSION) + 1))})",
            (record.rowid, *values),
        )


def _keep_messages(connection: sqlite3.Connection, source: Path) -> int:
    """Insert the readable messages, and the arrangements (orders of messages, see `rows`).

    Returns the number of unreadable messages.
    """
    unreadable = 0
    for record in records(source, columns=7):
        values = record.values
        if _fits(record, "nTIIAtR", values):
            into = "arrangements"
        elif _fits(record, "nTITTRT", values) and values[3] in ROLES and values[6] in STATES:
            into = "messages"
            if decode(str(values[4])) is None:
                unreadable += 1
                continue
        else:
            continue
        connection.execute(
            f"INSERT OR IGNORE INTO {into} VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - constant
            (record.rowid, *values[1:]),
        )
    return unreadable


def _keep_claims(connection: sqlite3.Connection, source: Path) -> None:
    """Insert each claim's latest version, so that no claimed task runs again."""
    for record in records(source, columns=6):
        if _fits(record, "TTTTTR", record.values) and record.values[2] in ENDINGS:
            connection.execute(
                "INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (run, task) DO UPDATE SET"
                " state = excluded.state, owner = excluded.owner, result = excluded.result,"
                " at = excluded.at WHERE excluded.at > at",
                record.values,
            )


def _complete(connection: sqlite3.Connection) -> None:
    """Add missing sessions, compute the derived columns, and build the index."""
    connection.execute(
        "INSERT INTO sessions (id, title, source, notebook, model, system_prompt, started)"
        " SELECT session, '', 'salvaged', '', '', '', min(at) FROM messages"
        " WHERE session NOT IN (SELECT id FROM sessions) GROUP BY session ORDER BY min(id)"
    )
    connection.execute(
        "UPDATE sessions SET parent = NULL WHERE parent NOT IN (SELECT id FROM sessions)"
    )
    connection.execute("DELETE FROM arrangements WHERE session NOT IN (SELECT id FROM sessions)")
    connection.execute(IN_ORDER)
    index.rebuild(connection)


def _fits(record: Record, pattern: str, values: Sequence[Value]) -> bool:
    """Return whether the values have the types in `pattern`, which has one letter per value."""
    return (
        0 < record.rowid < LARGEST
        and len(values) == len(pattern)
        and all(KINDS[kind](value) for kind, value in zip(pattern, values, strict=True))
    )


def _is_arranged(value: Value) -> bool:
    try:
        return isinstance(value, str) and len(unpacked(value)) >= 0
    except (ValueError, TypeError):
        return False


KINDS: Mapping[str, Callable[[Value], bool]] = {
    "T": lambda value: isinstance(value, str),
    "t": lambda value: value is None or isinstance(value, str),
    "R": lambda value: isinstance(value, (int, float)),
    "r": lambda value: value is None or isinstance(value, (int, float)),
    "I": lambda value: isinstance(value, int) and 0 <= value < LARGEST,
    "n": lambda value: value is None,
    "A": _is_arranged,
}
"""Type checks by letter. T: text; R: number; I: id or count; A: positions in order; n: null.

Lower-case t and r also allow null."""

STEPS = (
    partial(run_script, script=_FIRST),
    partial(run_script, script=_SECOND + IN_ORDER),
    _to_3,
    partial(run_script, script=_FOURTH),
    partial(run_script, script=_FIFTH),
    partial(index.drop, table="search_grams"),  # scanning all words is as fast
)
SCHEMA = Schema(
    name="session store",
    application=0x6865726D,  # "herm"
    steps=STEPS,
    tables=("sessions", "messages", "arrangements", "claims"),
    first=("sessions", "messages"),
    salvage=salvage,
    rebuild=index.rebuild,
)
VERSION = SCHEMA.version
