"""Copy sessions from one store to another, and compare them. Nothing is deleted.

Rerunning it copies later additions. A session that was continued in both stores is left unchanged
in both, and reported.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Protocol

from hermes_nb.core.errors import StoreError
from hermes_nb.core.messages import Role, Usage
from hermes_nb.memory import rows as table
from hermes_nb.memory.rows import SessionRow
from hermes_nb.memory.sessions import SqliteStore


@dataclass(frozen=True, slots=True, kw_only=True)
class Packed:
    """A session's contents in a store-independent form, for comparing and copying."""

    row: SessionRow
    """The session's own fields."""
    ended: float | None
    """End in seconds since the epoch; None if it has not ended."""
    usage: Usage
    """The session's token usage."""
    messages: tuple[tuple[int, Role, str, float, str], ...]
    """Each message's position, role, body, time and state."""
    arrangements: tuple[tuple[int, int, str, str | None, float], ...]
    """Each `Arrangement`'s start, stop, order, previous prompt and time, oldest first."""

    def digest(self) -> str:
        """Return a digest that is equal for equal sessions."""
        everything = asdict(self)
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()

    def goes_on_from(self, other: Packed) -> bool:
        """Return whether this session contains all of another's messages, and possibly more."""
        said, before = ([message[:4] for message in each.messages] for each in (self, other))
        return said[: len(before)] == before


class Movable(Protocol):
    """A store to copy sessions from and to; methods raise `StoreError`."""

    def ids(self, *, by_use: bool = False) -> list[str]:
        """Return the ids of all sessions, oldest first; `by_use` sorts by the last write."""
        ...

    def start(self, *, session_id: str = "") -> str:
        """Create a session unless it exists."""
        ...

    def packed(self, session_id: str) -> Packed | None:
        """Return a session, or None if it does not exist."""
        ...

    def unpack(self, packed: Packed) -> None:
        """Overwrite an existing session with this one, in one transaction."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Moved:
    """The result of copying."""

    copied: int = 0
    """Number of sessions that were copied."""
    same: int = 0
    """Number of sessions that were already identical."""
    messages: int = 0
    """Number of messages in sessions that are now identical."""
    differ: tuple[str, ...] = ()
    """Ids of sessions that were continued in both stores."""
    digest: str = ""
    """Digest of the sessions that are now identical."""


def move(source: Movable, target: Movable, tell: Callable[[str], None]) -> Moved:
    """Copy sessions that are missing or shorter in the target, and compare; raise `StoreError`."""
    done, together = Moved(), hashlib.sha256()
    there = set(target.ids())
    # In this order, so that parents exist and siblings keep their order.
    for session_id in source.ids():
        if session_id not in there:
            target.start(session_id=session_id)
    for session_id in source.ids(by_use=True):
        ours, theirs = source.packed(session_id), target.packed(session_id)
        if ours is None or theirs is None:
            continue  # deleted meanwhile
        if ours.digest() == theirs.digest():
            done.same += 1
        elif ours.goes_on_from(theirs):
            target.unpack(ours)
            written = target.packed(session_id)
            if written is None or written.digest() != ours.digest():
                raise StoreError(
                    f"session {session_id} differs after the copy; the source was not changed"
                )
            done.copied += 1
        else:
            done.differ = (*done.differ, session_id)
            tell(f"session {session_id} was continued in the target; neither copy was changed")
            continue
        done.messages += len(ours.messages)
        together.update(ours.digest().encode())
    done.digest = together.hexdigest()[:16]
    return done


class InFile(SqliteStore):
    """The SQLite store, to copy sessions from and to."""

    def ids(self, *, by_use: bool = False) -> list[str]:
        query = f"SELECT id FROM sessions ORDER BY {'last, ' if by_use else ''}rowid"  # noqa: S608
        return self.database.read(lambda c: [row["id"] for row in c.execute(query)])

    def packed(self, session_id: str) -> Packed | None:
        return self.database.read(lambda c: _packed(c, session_id))

    def unpack(self, packed: Packed) -> None:
        self.database.write(lambda c: _unpack(c, packed))


def _packed(connection: sqlite3.Connection, session_id: str) -> Packed | None:
    row, stored = table.find(connection, session_id), table.get(connection, session_id)
    if row is None or stored is None:
        return None
    messages = connection.execute(
        "SELECT position, role, body, at, state FROM messages WHERE session = ? ORDER BY position",
        (session_id,),
    )
    arrangements = connection.execute(
        "SELECT start, stop, positions, prompt_before, at FROM arrangements WHERE session = ?"
        " ORDER BY id",
        (session_id,),
    )
    return Packed(
        row=row.plain(),
        ended=stored.ended,
        usage=stored.usage,
        messages=tuple(tuple(each) for each in messages),
        arrangements=tuple(tuple(each) for each in arrangements),
    )


def _unpack(connection: sqlite3.Connection, packed: Packed) -> None:
    session = packed.row.id
    table.empty(connection, session)
    connection.execute(
        "UPDATE sessions SET title = :title, source = :source, notebook = :notebook,"
        " parent = (SELECT id FROM sessions WHERE id = :parent), model = :model,"
        " system_prompt = :system_prompt, started = :started, ended = :ended, tokens_in = 0,"
        " tokens_out = 0, tokens_cached = 0, tokens_written = 0, tokens_reasoning = 0,"
        " requests = 0, cost = NULL WHERE id = :id",
        {**asdict(packed.row), "ended": packed.ended},
    )
    table.count(connection, session, packed.usage)
    for position, role, body, at, state in packed.messages:
        row, _ = table.append(connection, session, role, body, at, position)
        connection.execute("UPDATE messages SET state = ? WHERE id = ?", (state, row))
    connection.execute(
        "UPDATE sessions SET last = (SELECT coalesce(max(id), 0) FROM messages) WHERE id = ?",
        (session,),
    )
    connection.executemany(
        "INSERT INTO arrangements (session, start, stop, positions, prompt_before, at)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        [(session, *each) for each in packed.arrangements],
    )
