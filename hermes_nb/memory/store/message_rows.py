"""The statements on a session's messages; each runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence

from hermes_nb.core.messages import Message, Role
from hermes_nb.memory.encoding import decode, encode
from hermes_nb.memory.store.arrangement import Arrangement, matched, packed, unpacked


def append(
    connection: sqlite3.Connection, session_id: str, role: Role, body: str, at: float
) -> tuple[int, int]:
    """Add an encoded message behind all others of its session; return its row and its position.

    `at` is in seconds since the epoch. Raises sqlite3.IntegrityError if there is no such session.
    The index hears of it later, with others.
    """
    position = next_position(connection, session_id)
    row = connection.execute(
        "INSERT INTO messages (session, position, role, body, at) VALUES (?, ?, ?, ?, ?)",
        (session_id, position, role, body, at),
    ).lastrowid
    connection.execute(
        "UPDATE sessions SET last = ?1 WHERE id = ?2 AND EXISTS (SELECT 1 FROM sessions AS other"
        " WHERE other.last >= sessions.last AND other.rowid <> sessions.rowid)",
        (row, session_id),
    )
    return row or 0, position


def active(connection: sqlite3.Connection, session_id: str) -> list[sqlite3.Row]:
    """Return the rows of the conversation, in its order."""
    rows = connection.execute(
        "SELECT * FROM messages WHERE session = ? AND state = 'active' ORDER BY position",
        (session_id,),
    ).fetchall()
    top = _uppermost(connection, session_id)
    if top is None:
        return rows
    by_position = {row["position"]: row for row in rows}
    return [by_position[position] for position in top.following(list(by_position))]


def between(
    connection: sqlite3.Connection, session_id: str, first: int, last: int | None
) -> list[sqlite3.Row]:
    """Return the rows at positions `first` to `last`, both included, whatever their state."""
    return connection.execute(
        "SELECT * FROM messages WHERE session = ?1 AND position >= ?2"
        " AND (?3 IS NULL OR position <= ?3) ORDER BY position",
        (session_id, first, last),
    ).fetchall()


def replace(
    connection: sqlite3.Connection,
    session_id: str,
    messages: Sequence[Message],
    *,
    system_prompt: str | None,
    at: float,
) -> None:
    """Make `messages` the conversation; what is no longer in it becomes `compressed`."""
    rows = active(connection, session_id)
    bodies = [encode(each) for each in messages]
    found = matched([_normal(row["body"]) for row in rows], bodies)
    start = stop = next_position(connection, session_id)
    order = []
    for message, body, stored in zip(messages, bodies, found, strict=True):
        if stored is None:
            append(connection, session_id, message.role, body, at)
            order.append(stop)
            stop += 1
        else:
            order.append(rows[stored]["position"])
    if found[: len(rows)] != list(range(len(rows))):  # else the conversation only grew
        kept = set(found)
        _set_state(
            connection, "compressed", (row["id"] for i, row in enumerate(rows) if i not in kept)
        )
        connection.execute(
            "INSERT INTO arrangements (session, start, stop, positions, prompt_before, at)"
            " SELECT ?1, ?2, ?3, ?4, iif(?5 IS NULL, NULL, (SELECT system_prompt"
            " FROM sessions WHERE id = ?1)), ?6",
            (session_id, start, stop, packed(order), system_prompt, at),
        )
    if system_prompt is not None:
        connection.execute(
            "UPDATE sessions SET system_prompt = ? WHERE id = ?", (system_prompt, session_id)
        )


def restore(connection: sqlite3.Connection, session_id: str) -> bool:
    """Undo the last `replace`; say whether there was one."""
    top = _uppermost(connection, session_id)
    if top is None:
        return False
    connection.execute(
        "UPDATE sessions SET system_prompt = coalesce((SELECT prompt_before FROM arrangements"
        " WHERE session = ?1 ORDER BY id DESC LIMIT 1), system_prompt) WHERE id = ?1",
        (session_id,),
    )
    connection.execute(
        "DELETE FROM arrangements WHERE id = (SELECT max(id) FROM arrangements WHERE session = ?)",
        (session_id,),
    )
    rows = connection.execute(
        "SELECT id, position, state FROM messages WHERE session = ? AND state != 'undone'"
        " ORDER BY position",
        (session_id,),
    ).fetchall()
    added = range(top.start, top.stop)
    _set_state(connection, "undone", (row["id"] for row in rows if row["position"] in added))
    ids = {row["position"]: row["id"] for row in rows if row["position"] not in added}
    below = _uppermost(connection, session_id)
    positions = below.following(list(ids)) if below else list(ids)
    _set_state(connection, "active", (ids[position] for position in positions))
    return True


def next_position(connection: sqlite3.Connection, session_id: str) -> int:
    """Return the position of the message that is added next."""
    query = "SELECT coalesce(max(position) + 1, 0) FROM messages WHERE session = ?"
    return int(connection.execute(query, (session_id,)).fetchone()[0])


def _uppermost(connection: sqlite3.Connection, session_id: str) -> Arrangement | None:
    row = connection.execute(
        "SELECT start, stop, positions FROM arrangements WHERE session = ?"
        " ORDER BY id DESC LIMIT 1",
        (session_id,),
    ).fetchone()
    if row is None:
        return None
    return Arrangement(start=row["start"], stop=row["stop"], order=unpacked(row["positions"]))


def _set_state(connection: sqlite3.Connection, state: str, ids: Iterable[int]) -> None:
    connection.executemany(
        "UPDATE messages SET state = ?1 WHERE id = ?2 AND state != ?1",
        ((state, each) for each in ids),
    )


def _normal(body: str) -> str:
    """Return a stored body as it would be written today."""
    message = decode(body)
    return body if message is None else encode(message)
