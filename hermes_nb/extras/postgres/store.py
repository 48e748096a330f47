"""The session store on PostgreSQL, for sessions shared between machines or users.

Each user logs in as a separate role, and row-level security limits them to their own rows in every
client. Fan-out claims, undo data and pending approvals stay in files in the Hermes directory.

A lost connection loses no data: a failure raises `StoreError`, the turn continues in memory, and
messages written again later are not duplicated.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import LiteralString

import psycopg
from psycopg import Connection, errors
from psycopg.rows import DictRow, dict_row

from hermes_nb.core.errors import SessionTakenError, StoreError
from hermes_nb.core.messages import Message, Role, Usage
from hermes_nb.core.protocols import Hit, StoredMessage, StoredSession, StoreSetup
from hermes_nb.extras.postgres import rows as pg
from hermes_nb.extras.postgres import tsvector
from hermes_nb.extras.postgres.moving import Packed
from hermes_nb.extras.postgres.server import Server, shown, with_password
from hermes_nb.memory import rows as table
from hermes_nb.memory.rows import Replacement, SessionRow, encode, storable
from hermes_nb.memory.schema import SCHEMA
from hermes_nb.memory.search import finding
from hermes_nb.memory.search.postings import Filter
from hermes_nb.memory.search.query import parse
from hermes_nb.memory.sessions import GroupedWrites, Ledger, new_session_id
from hermes_nb.storage.database import Database

STEPS = ("tables_1.sql", "tables_2.sql")
"""Scripts that upgrade the tables, each by one version.

A kernel checks the version only when it connects. So an upgrade that makes old statements incorrect
must make them fail.
"""
VERSION = len(STEPS)
"""Version of the tables. Tables with a newer version are read but never written."""
LONG = 60.0
"""Timeout in seconds for operations on a whole session or on the index's list of words."""
INIT = "`jupyter hermes store init`"


class PostgresStore(Ledger):
    """A `SessionStore` on the server at `url`; claims are stored in the file `claims`."""

    def __init__(
        self,
        url: str,
        *,
        claims: str | Path,
        password: str = "",
        warn: Callable[[str], None] | None = None,
    ) -> None:
        self.database = Database(claims, SCHEMA, warn=warn)
        self._claimed = GroupedWrites(self.database)
        self.server = Server(url, password=password, checked=self._checked)
        self._known = tsvector.Knowledge("")
        self.warnings = self.database.warnings
        self._numbers: dict[str, int] = {}
        self._begun: dict[str, SessionRow] = {}
        self._next: dict[str, int] = {}
        self._ends: dict[str, int] = {}
        # By session: what was sent and when, until the server confirms it.
        self._unsure: dict[str, tuple[str | list[str], float]] = {}
        self._unreadable = False

    def start(
        self,
        *,
        title: str = "",
        source: str = "notebook",
        started: float | None = None,
        notebook: str = "",
        model: str = "",
        system_prompt: str = "",
        session_id: str = "",
        parent: str = "",
    ) -> str:
        """Create a session and return its id; `started` is in seconds since the epoch."""
        now = time.time() if started is None else started
        row = SessionRow(
            id=storable(session_id or new_session_id(now)),
            title=storable(title),
            source=storable(source),
            notebook=storable(notebook),
            model=storable(model),
            system_prompt=storable(system_prompt),
            parent=storable(parent),
            started=now,
        ).plain()
        self._numbers[row.id] = self.server.run(partial(pg.insert, row=row), writes=True)
        self._begun[row.id] = row
        return row.id

    def append(self, session_id: str, message: Message, *, usage: Usage | None = None) -> None:
        body, session_id = encode(message), pg.plain(session_id)

        def add(connection: Connection[DictRow]) -> None:
            sent, at = self._unsure.get(session_id, ("", 0.0))
            at = at if (doubtful := sent == body) else time.time()
            made = pg.Row(message.role, body, at)
            number = self._number(connection, session_id)
            position = pg.position_of(connection, number, body, at) if doubtful else None
            while position is None:
                place = self._next_position(connection, session_id, number)
                self._unsure[session_id] = body, at
                try:
                    made.add(connection, self._known, number, place, usage)
                    position = place
                except errors.UniqueViolation:
                    self._next.pop(session_id, None)
                except errors.ForeignKeyViolation:  # the session was deleted
                    self._numbers.pop(session_id)
                    self._next.pop(session_id, None)
                    number = self._number(connection, session_id)
            self._note_end(session_id, position + 1)

        self.server.run(add, writes=True)

    def follow(self, session_id: str) -> None:
        session_id = pg.plain(session_id)
        self._ends[session_id] = self.server.run(
            lambda c: pg.next_position(c, pg.number_of(c, session_id))
        )
        self._next.pop(session_id, None)

    def messages(self, session_id: str) -> list[Message]:
        rows = self.server.run(lambda c: pg.active(c, pg.number_of(c, pg.plain(session_id))))
        return [row.message for row in self._readable(session_id, rows)]

    def rows(
        self, session_id: str, *, first: int = 0, last: int | None = None
    ) -> list[StoredMessage]:
        query: LiteralString = (
            "SELECT m.*, EXISTS (SELECT 1 FROM hermes.arrangements a WHERE a.session = m.session"
            " AND m.position >= a.start AND m.position < a.stop) AS made"
            " FROM hermes.messages m JOIN hermes.sessions s ON s.number = m.session"
            " WHERE s.id = %s AND m.position >= %s AND m.position <= coalesce(%s::numeric,"
            " 'infinity') ORDER BY m.position"
        )
        values = pg.plain(session_id), first, last
        rows = self.server.run(lambda c: c.execute(query, values).fetchall())
        return self._readable(session_id, rows)

    def replace(
        self, session_id: str, messages: Sequence[Message], *, system_prompt: str | None = None
    ) -> None:
        session_id, at = pg.plain(session_id), time.time()
        wanted = [encode(message) for message in messages]

        def replaced(connection: Connection[DictRow]) -> None:
            self._next.pop(session_id, None)
            with connection.transaction():
                number = self._locked(connection, session_id)
                rows = pg.active(connection, number)
                before = [(row["position"], row["body"]) for row in rows]
                sent, _ = self._unsure.get(session_id, ("", 0.0))
                if sent == wanted == [body for _, body in before]:  # already written
                    self._note_end(session_id, pg.next_position(connection, number))
                start = self._next_position(connection, session_id, number)
                self._unsure[session_id] = wanted, at
                plan = Replacement.planned(before, messages, start)
                for position, (message, body) in enumerate(plan.added, start):
                    row = pg.Row(message.role, body, at)
                    row.add(connection, self._known, number, position)
                if plan.arrangement is not None:
                    pg.set_state(connection, number, "compressed", plan.left_out)
                    pg.arrange(connection, number, plan.arrangement, system_prompt, at)
                if system_prompt is not None:
                    connection.execute(
                        "UPDATE hermes.sessions SET system_prompt = %s WHERE number = %s",
                        (pg.prompt(system_prompt), number),
                    )
            self._note_end(session_id, start + len(plan.added))

        self.server.run(replaced, writes=True)

    def restore(self, session_id: str) -> list[Message] | None:
        undone = self.server.run(
            lambda c: pg.restore(c, pg.plain(session_id)), writes=True, again=False
        )
        return self.messages(session_id) if undone else None

    def rewind(self, session_id: str, length: int) -> None:
        session_id = pg.plain(session_id)

        def rewind(connection: Connection[DictRow]) -> None:
            with connection.transaction():
                number = self._locked(connection, session_id)
                later = [row["position"] for row in pg.active(connection, number)[length:]]
                pg.set_state(connection, number, "undone", later)

        self.server.run(rewind, writes=True)

    def search(
        self,
        query: str,
        *,
        limit: int = 20,
        session_id: str = "",
        exclude: Collection[str] = (),
        since: float | None = None,
        until: float | None = None,
        roles: Collection[Role] = (),
    ) -> list[Hit]:
        only = Filter(
            session_id=pg.plain(session_id),
            exclude=[pg.plain(each) for each in exclude],
            since=since,
            until=until,
            roles=roles,
        )
        asked = parse(query)
        if limit < 1 or not (asked.units or asked.must):
            return []

        def find(connection: Connection[DictRow]) -> list[Hit]:
            index = tsvector.Lexemes(connection, only, self._known)
            return finding.ranked(
                index, asked, only, limit=limit, size=index.size, load=index.load
            )[:limit]

        return self.server.run(find)

    def get(self, session_id: str) -> StoredSession | None:
        values = (pg.plain(session_id),)
        row = self.server.run(lambda c: c.execute(f"{pg.WHOLE} WHERE s.id = %s", values).fetchone())
        return pg.session_of(row) if row else None

    def sessions(self, *, notebook: str | None = None, limit: int = 20) -> list[StoredSession]:
        path = None if notebook is None else pg.plain(notebook)
        values = {"notebook": path, "limit": limit, "child": table.CHILD}
        rows = self.server.run(lambda c: c.execute(pg.LISTED, values).fetchall())
        return [pg.session_of(row) for row in rows]

    def usage(
        self, *, session_id: str = "", notebook: str = "", since: float = 0.0
    ) -> dict[tuple[str, str], Usage]:
        values = {"id": pg.plain(session_id), "notebook": pg.plain(notebook), "child": table.CHILD}
        query = pg.USED if session_id or notebook else pg.USED_SINCE
        rows = self.server.run(lambda c: c.execute(query, values | {"since": since}).fetchall())
        return table.summed(rows)

    def lineage(self, session_id: str) -> list[str]:
        values = {"id": pg.plain(session_id), "notebook": "", "child": table.CHILD}
        rows = self.server.run(lambda c: c.execute(pg.FAMILY, values).fetchall())
        return [row["id"] for row in rows] or [session_id]

    def rename(self, session_id: str, title: str) -> None:
        session_id, title = pg.plain(session_id), pg.plain(title)
        self._change("UPDATE hermes.sessions SET title = %s WHERE id = %s", (title, session_id))
        if session_id in self._begun:
            self._begun[session_id] = replace(self._begun[session_id], title=title)

    def relocate(self, notebook: str, to: str) -> None:
        old, new = pg.plain(notebook), pg.plain(to)
        query: LiteralString = "UPDATE hermes.sessions SET notebook = %s WHERE notebook = %s"
        self._change(query, (new, old))
        for row in [row for row in self._begun.values() if row.notebook == old]:
            self._begun[row.id] = replace(row, notebook=new)

    def delete(self, session_id: str) -> None:
        session_id = pg.plain(session_id)
        self.server.run(lambda c: pg.delete(c, session_id), writes=True)
        for known in (self._begun, self._ends, self._next, self._numbers):
            known.pop(session_id, None)

    def purge(self, *, before: float = 0.0) -> None:
        """Delete words that no longer occur in any message, and claims older than a given time.

        Reclaiming disk space is left to the server's administrator.
        """
        self.database.write(lambda c: c.execute("DELETE FROM claims WHERE at < ?", (before,)))
        self.server.run(lambda c: tsvector.prune(c, self._known), writes=True, seconds=LONG)

    def count(self, session_id: str, usage: Usage) -> None:
        session_id = pg.plain(session_id)

        def add(connection: Connection[DictRow]) -> None:
            for _ in range(2):
                values = {**asdict(usage), "session": self._number(connection, session_id)}
                if connection.execute(pg.COUNT, values).rowcount:
                    return
                self._numbers.pop(session_id)

        self.server.run(add, writes=True, again=False)

    def end(self, session_id: str) -> None:
        # Never before its start, even if the clock was set back.
        query: LiteralString = (
            "UPDATE hermes.sessions SET ended = greatest(started, %s) WHERE id = %s"
        )
        self._change(query, (time.time(), pg.plain(session_id)))

    def incidents(self) -> int:
        """Return the number of reconnections, and the local file's incidents."""
        return max(0, self.server.made - 1) + self.database.incidents()

    def close(self) -> None:
        self.server.close()
        self.database.close()

    def facts(self) -> dict[str, str]:
        """Return information about the server and the user's role; raise StoreError."""
        row = self.server.run(pg.facts)
        return {"server": self.server.name} | {name: str(value) for name, value in row.items()}

    def ids(self, *, by_use: bool = False) -> list[str]:
        """Return the ids of all sessions, oldest first; `by_use` sorts by the last write."""
        query = pg.BY_USE if by_use else pg.BY_AGE
        return [row["id"] for row in self.server.run(lambda c: c.execute(query).fetchall())]

    def packed(self, session_id: str) -> Packed | None:
        """Return a session in a store-independent form, or None if it does not exist."""
        return self.server.run(lambda c: pg.packed(c, pg.plain(session_id)), seconds=LONG)

    def unpack(self, packed: Packed) -> None:
        """Overwrite an existing session with this one, in one transaction."""
        self.server.run(lambda c: pg.unpack(c, packed, self._known), writes=True, seconds=LONG)

    def _checked(self, connection: Connection[DictRow], owner: str) -> str:
        """Return the reason the store is read-only, or ""; raise StoreError for unusable tables."""
        if pg.passes(connection):
            text = f"{owner} bypasses row-level security; log in as an ordinary role"
            raise StoreError(f"{self.server.name}: {text}")
        version = version_of(connection)
        if version is None or version < VERSION:
            text = (
                "the database has no hermes tables yet"
                if version is None
                else "the tables are those of an earlier version"
            )
            raise StoreError(f"{self.server.name}: {text}; ask an administrator to run {INIT}")
        if self._known.sign != tsvector.sign_of(owner):
            self._known = tsvector.Knowledge(tsvector.sign_of(owner))
        newer = "the tables are those of a newer version; upgrade hermes_nb to save sessions"
        return newer if version > VERSION else ""

    def _change(self, query: LiteralString, values: Sequence[object]) -> None:
        self.server.run(lambda c: c.execute(query, values), writes=True)

    def _number(self, connection: Connection[DictRow], session_id: str) -> int:
        """Return a session's number; create the session again if it is missing."""
        if session_id not in self._numbers:
            if session_id not in self._begun:
                begun = pg.find(connection, session_id)
                self._begun[session_id] = begun or SessionRow(id=session_id, started=time.time())
            self._numbers[session_id] = pg.insert(connection, self._begun[session_id])
        return self._numbers[session_id]

    def _locked(self, connection: Connection[DictRow], session_id: str) -> int:
        """Lock a session for this transaction and return its number."""
        query: LiteralString = "SELECT FROM hermes.sessions WHERE number = %s FOR UPDATE"
        number = self._number(connection, session_id)
        if connection.execute(query, (number,)).rowcount == 0:
            self._numbers.pop(session_id)
            number = self._number(connection, session_id)
        return number

    def _next_position(self, connection: Connection[DictRow], session_id: str, number: int) -> int:
        """Return the next message's position; raise SessionTakenError if others added messages."""
        position = self._next.get(session_id)
        if position is None:
            position = pg.next_position(connection, number)
        if position > self._ends.get(session_id, position):
            raise SessionTakenError(f"session {session_id}: another process has added to it")
        return position

    def _note_end(self, session_id: str, end: int) -> None:
        self._unsure.pop(session_id, None)
        self._next[session_id] = end
        if session_id in self._ends:
            self._ends[session_id] = end

    def _readable(self, session_id: str, rows: Sequence[DictRow]) -> list[StoredMessage]:
        out = table.readable(session_id, rows)
        if len(out) < len(rows) and not self._unreadable:
            self._unreadable = True
            self.database.tell(table.unreadable(session_id, len(rows) - len(out)))
        return out


def version_of(connection: Connection[DictRow]) -> int | None:
    """Return the tables' version, or None if they do not exist."""
    query: LiteralString = "SELECT pg_catalog.to_regclass('hermes.version') IS NOT NULL AS there"
    row = connection.execute(query).fetchone()
    if not (row and row["there"]):
        return None
    found = connection.execute("SELECT version FROM hermes.version").fetchone()
    return int(found["version"]) if found else 0


def open_store(setup: StoreSetup) -> PostgresStore:
    """Return the store at an address; an entry point of `hermes_nb.stores`."""
    return PostgresStore(setup.url, claims=setup.claims, password=setup.password, warn=setup.warn)


def sql(version: int = 0) -> str:
    """Return the SQL that upgrades tables from a version, for an administrator to review."""
    folder = Path(__file__).parent
    scripts = (folder.joinpath(name).read_text(encoding="utf-8") for name in STEPS[version:])
    return "\n".join((*scripts, f"UPDATE hermes.version SET version = {VERSION};\n"))  # noqa: S608


def initialise(url: str, password: str = "") -> str:
    """Create or upgrade the tables as their owner; return a report.

    Concurrent calls wait for each other. Raises StoreError.
    """
    try:
        address = with_password(url, password)
        with Connection[DictRow].connect(address, row_factory=dict_row) as connection:
            # Use qualified names, since other users may have created functions with the same names.
            lock = "SELECT pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtext('hermes_nb store'))"
            connection.execute(lock)
            version = version_of(connection) or 0
            if version < VERSION:
                connection.execute(sql(version).encode())
    except psycopg.Error as error:
        raise StoreError(f"{shown(url)}: {' '.join(str(error).split())}") from error
    if version > VERSION:
        raise StoreError(
            f"{shown(url)}: the tables are those of a newer version, {version}; upgrade hermes_nb"
        )
    return f"version {VERSION}, " + ("already up to date" if version == VERSION else "created")
