"""Hermes Agent's formats, read and written from their documentation alone, with none of our code.

Memory: entries joined by a line holding only `§`, stripped, UTF-8. State: SQLite tables `sessions`
and `messages` with an external-content FTS5 index kept by triggers.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3

NAMES = {"memory": "MEMORY.md", "user": "USER.md"}

SESSIONS = """
CREATE TABLE sessions (
    id TEXT PRIMARY KEY, source TEXT NOT NULL, user_id TEXT, model TEXT, model_config TEXT,
    system_prompt TEXT, parent_session_id TEXT, started_at REAL NOT NULL, ended_at REAL,
    end_reason TEXT, message_count INTEGER DEFAULT 0, title TEXT,
    FOREIGN KEY (parent_session_id) REFERENCES sessions(id)
);
"""
MESSAGES = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES sessions(id),
    role TEXT NOT NULL, content TEXT, tool_call_id TEXT, tool_calls TEXT, tool_name TEXT,
    timestamp REAL NOT NULL, token_count INTEGER, finish_reason TEXT
);
"""
FTS = """
CREATE VIRTUAL TABLE messages_fts USING fts5(
    content, tool_name, tool_calls, content='messages', content_rowid='id');
CREATE TRIGGER messages_fts_insert AFTER INSERT ON messages BEGIN
    INSERT INTO messages_fts(rowid, content, tool_name, tool_calls)
    VALUES (new.id, new.content, new.tool_name, new.tool_calls);
END;
"""
OLDEST = """
CREATE TABLE sessions (id TEXT PRIMARY KEY, source TEXT NOT NULL, started_at REAL NOT NULL);
CREATE TABLE messages (id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL,
    role TEXT NOT NULL, content TEXT, timestamp REAL NOT NULL);
"""


def read_memory(home, target):
    """Return the entries as Hermes Agent would."""
    try:
        text = (home / "memories" / NAMES[target]).read_text(encoding="utf-8")
    except FileNotFoundError:
        return []
    return [entry.strip() for entry in text.split("\n§\n") if entry.strip()]


def add_memory(home, target, entry):
    """Add an entry as Hermes Agent would: flock on NAME.lock, temporary file, replace."""
    directory = home / "memories"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / NAMES[target]
    with (directory / f"{NAMES[target]}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        text = "\n§\n".join([*read_memory(home, target), entry.strip()])
        temporary = directory / f".mem_{os.getpid()}.tmp"
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)


def make_state(path, *, wal=True, schema=SESSIONS + MESSAGES + FTS):
    """Return a writer's open connection to a new `state.db`."""
    connection = sqlite3.connect(path)
    if wal:
        connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(schema)
    return connection


def add_session(connection, session_id, messages, *, started=1_700_000_000.0, **columns):
    """Insert a session and its messages: pairs of role and content, a minute apart."""
    row = {"id": session_id, "source": "cli", "started_at": started, **columns}
    _insert(connection, "sessions", row)
    for number, (role, content) in enumerate(messages):
        fields = content if isinstance(content, dict) else {"content": content}
        _insert(
            connection,
            "messages",
            {"session_id": session_id, "role": role, "timestamp": started + 60 * number, **fields},
        )
    connection.commit()


def _insert(connection, table, row):
    marks = ", ".join("?" * len(row))
    names = ", ".join(row)
    connection.execute(f"INSERT INTO {table} ({names}) VALUES ({marks})", tuple(row.values()))
