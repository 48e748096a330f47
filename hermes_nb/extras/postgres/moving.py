"""Sessions from one store to another: copied, compared, nothing deleted.

Doing it again copies what was added since. A session that both have and that went on in both is
left as it is on either side, and named.
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
    """A session as any store has it, for comparing and copying.

    `messages` are position, role, body, time and state; `arrangements` start, stop, positions, the
    prompt before and the time, the oldest first.
    """

    row: SessionRow
    ended: float | None
    usage: Usage
    messages: tuple[tuple[int, Role, str, float, str], ...]
    arrangements: tuple[tuple[int, int, str, str | None, float], ...]

    def digest(self) -> str:
        """Return what two stores have in common exactly if they have the same."""
        everything = asdict(self)
        return hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()

    def goes_on_from(self, other: Packed) -> bool:
        """Say whether this has all that was said in another one, and perhaps more."""
        said, before = ([message[:4] for message in each.messages] for each in (self, other))
        return said[: len(before)] == before


class Movable(Protocol):
    """A store that sessions can be taken from and put into; a call raises `StoreError`."""

    def ids(self, *, by_use: bool = False) -> list[str]:
        """Return the ids of all sessions, eldest first; or the one written to last at the end."""
        ...

    def start(self, *, session_id: str = "") -> str:
        """Create a session, unless it is there."""
        ...

    def packed(self, session_id: str) -> Packed | None:
        """Return a session, None if it is not there."""
        ...

    def unpack(self, packed: Packed) -> None:
        """Make a session that is there the same as this one, in one transaction."""
        ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Moved:
    """What came of it: sessions that were copied, that were there already, that differ."""

    copied: int = 0
    same: int = 0
    messages: int = 0
    differ: tuple[str, ...] = ()
    digest: str = ""


def move(source: Movable, target: Movable, tell: Callable[[str], None]) -> Moved:
    """Copy all sessions that the target lacks, or has less of, and compare; raise `StoreError`."""
    done, together = Moved(), hashlib.sha256()
    there = set(target.ids())
    for session_id in source.ids():  # so that parents are there, and the order of a family
        if session_id not in there:
            target.start(session_id=session_id)
    for session_id in source.ids(by_use=True):
        ours, theirs = source.packed(session_id), target.packed(session_id)
        if ours is None or theirs is None:
            continue  # it was deleted meanwhile
        if ours.digest() == theirs.digest():
            done.same += 1
        elif ours.goes_on_from(theirs):
            target.unpack(ours)
            written = target.packed(session_id)
            if written is None or written.digest() != ours.digest():
                raise StoreError(f"session {session_id} did not arrive as it was; nothing is lost")
            done.copied += 1
        else:
            done.differ = (*done.differ, session_id)
            tell(f"session {session_id} has gone on over there; both are left as they are")
            continue
        done.messages += len(ours.messages)
        together.update(ours.digest().encode())
    done.digest = together.hexdigest()[:16]
    return done


class InFile(SqliteStore):
    """The store on SQLite, to move sessions from and to."""

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
