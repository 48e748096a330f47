"""The statements on the table of sessions; each runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from dataclasses import asdict, dataclass

from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import StoredSession
from hermes_nb.memory.search import index, indexing

CHILD = "child"
"""The source of sessions that a fan-out made: found by search, never offered to go on with."""


# What its messages tell is asked of them: kept beside the prompt it would cost each append a page.
_WHOLE = (
    "SELECT s.*, max(s.started, coalesce((SELECT at FROM messages WHERE session = s.id"
    " ORDER BY position DESC LIMIT 1), s.started)) AS written,"
    " (SELECT count(*) FROM messages WHERE session = s.id) - (SELECT count(*) FROM messages"
    " WHERE session = s.id AND state <> 'active') AS messages FROM sessions s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """What a session begins with; all its text is such that UTF-8 can hold it."""

    id: str
    title: str = ""
    source: str = "salvaged"
    notebook: str = ""
    model: str = ""
    system_prompt: str = ""
    parent: str = ""
    started: float


def insert(connection: sqlite3.Connection, row: SessionRow) -> None:
    """Add a session as the one used last, unless it is there; leave out a parent that is not."""
    connection.execute(
        "INSERT INTO sessions (id, title, source, notebook, model, system_prompt, parent, started,"
        " last) VALUES (:id, :title, :source, :notebook, :model, :system_prompt,"
        " (SELECT id FROM sessions WHERE id = :parent), :started,"
        " (SELECT coalesce(max(id), 0) FROM messages)) ON CONFLICT (id) DO NOTHING",
        asdict(row),
    )


def find(connection: sqlite3.Connection, session_id: str) -> SessionRow | None:
    """Return what a session began with, None if it is not there."""
    row = connection.execute(
        "SELECT id, title, source, notebook, model, system_prompt, coalesce(parent, '') AS parent,"
        " started FROM sessions WHERE id = ?",
        (session_id,),
    ).fetchone()
    return SessionRow(**row) if row else None


def exists(connection: sqlite3.Connection, session_id: str) -> bool:
    """Say whether there is such a session."""
    query = "SELECT 1 FROM sessions WHERE id = ?"
    return connection.execute(query, (session_id,)).fetchone() is not None


def get(connection: sqlite3.Connection, session_id: str) -> StoredSession | None:
    """Return a session, or None."""
    row = connection.execute(f"{_WHOLE} WHERE s.id = ?", (session_id,)).fetchone()
    return _session(row) if row else None


def listed(connection: sqlite3.Connection, notebook: str | None, limit: int) -> list[StoredSession]:
    """Return sessions, the one written to last first; children are no sessions of anybody's."""
    rows = connection.execute(
        f"{_WHOLE} WHERE s.rowid IN (SELECT rowid FROM sessions"  # noqa: S608 - ours
        " WHERE (?1 IS NULL OR notebook = ?1) AND source <> ?3"
        " ORDER BY last DESC, rowid DESC LIMIT ?2)"
        " ORDER BY s.last DESC, s.rowid DESC",
        (notebook, limit, CHILD),
    )
    return [_session(row) for row in rows]


def lineage(connection: sqlite3.Connection, session_id: str) -> list[str]:
    """Return the ids of a session's whole family, the eldest first; its own in any case."""
    rows = connection.execute(
        "WITH RECURSIVE"
        " above (id, parent) AS (SELECT id, parent FROM sessions WHERE id = ?"
        "  UNION SELECT s.id, s.parent FROM sessions s JOIN above ON s.id = above.parent),"
        " family (id) AS (SELECT id FROM above"
        "  UNION SELECT s.id FROM sessions s JOIN family ON s.parent = family.id)"
        " SELECT id FROM sessions WHERE id IN family ORDER BY rowid",
        (session_id,),
    )
    return [row["id"] for row in rows] or [session_id]


def count(connection: sqlite3.Connection, session_id: str, usage: Usage) -> None:
    """Add to a session's token counters; an unknown cost leaves the known part as it is."""
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


def rename(connection: sqlite3.Connection, session_id: str, title: str) -> None:
    """Give a session another title."""
    connection.execute("UPDATE sessions SET title = ? WHERE id = ?", (title, session_id))


def relocate(connection: sqlite3.Connection, notebook: str, to: str) -> None:
    """Let the sessions of a notebook be those of another path."""
    connection.execute("UPDATE sessions SET notebook = ? WHERE notebook = ?", (to, notebook))


def end(connection: sqlite3.Connection, session_id: str, now: float) -> None:
    """Mark a session as ended, never before it began, whatever the clock did."""
    connection.execute(
        "UPDATE sessions SET ended = max(started, ?) WHERE id = ?", (now, session_id)
    )


def delete(connection: sqlite3.Connection, session_id: str) -> None:
    """Remove a session with its messages; its children become children of its parent."""
    with indexing.at_work():
        index.remove(connection, session_id)
    for statement in (
        "UPDATE sessions SET parent = (SELECT parent FROM sessions WHERE id = ?1)"
        " WHERE parent = ?1",
        "DELETE FROM arrangements WHERE session = ?1",
        "DELETE FROM messages WHERE session = ?1",
        "DELETE FROM sessions WHERE id = ?1",
    ):
        connection.execute(statement, (session_id,))


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
        parent=row["parent"] or "",
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
