"""Messages and sessions as rows in PostgreSQL; the server decides which rows a user can see.

Positions, states and `Arrangement` (the order of messages after a compression) have the same
meaning as in SQLite; see `memory.rows`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict
from typing import LiteralString

from psycopg import Connection
from psycopg.rows import DictRow

from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import StoredSession
from hermes_nb.extras.postgres import tsvector
from hermes_nb.extras.postgres.moving import Packed
from hermes_nb.memory import rows as table
from hermes_nb.memory.rows import Arrangement, SessionRow, storable
from hermes_nb.memory.search import documents

_ADD: LiteralString = (
    "WITH added AS (INSERT INTO hermes.messages (session, position, role, body, at, state)"
    " VALUES (%(session)s, %(position)s, %(role)s, %(body)s, %(at)s, %(state)s)),"
    " found AS (INSERT INTO hermes.search (number, terms)"
    " VALUES (%(document)s, %(words)s::tsvector))"
)
_LIST: LiteralString = (
    ", listed AS (INSERT INTO hermes.words (word) SELECT unnest(string_to_array(%(new)s, ' '))"
    " ON CONFLICT DO NOTHING)"
)
COUNT: LiteralString = (
    "UPDATE hermes.sessions SET tokens_in = tokens_in + %(input)s,"
    " tokens_out = tokens_out + %(output)s, tokens_cached = tokens_cached + %(cached)s,"
    " tokens_written = tokens_written + %(written)s,"
    " tokens_reasoning = tokens_reasoning + %(reasoning)s, requests = requests + %(requests)s,"
    " cost = coalesce(cost + %(cost)s, cost, %(cost)s) WHERE number = %(session)s"
)
_ADD_ALONE: LiteralString = f"{_ADD} SELECT"
_ADD_WORDS: LiteralString = f"{_ADD}{_LIST} SELECT"
_ADD_USED: LiteralString = f"{_ADD}{_LIST} {COUNT}"

WHOLE: LiteralString = (
    "SELECT s.*, coalesce(p.id, '') AS parent_id,"
    " greatest(s.started, coalesce(l.at, s.started)) AS written_at,"
    " (SELECT count(*) FROM hermes.messages m WHERE m.session = s.number)"
    " - (SELECT count(*) FROM hermes.messages m WHERE m.session = s.number AND m.state <> 'active')"
    " AS messages FROM hermes.sessions s LEFT JOIN hermes.sessions p ON p.number = s.parent"
    " LEFT JOIN LATERAL (SELECT m.at, m.number FROM hermes.messages m WHERE m.session = s.number"
    " ORDER BY m.position DESC LIMIT 1) l ON true"
)
LISTED: LiteralString = (
    f"{WHOLE} WHERE s.number IN (SELECT o.number FROM hermes.sessions o"  # noqa: S608 - ours
    " LEFT JOIN LATERAL (SELECT m.number FROM hermes.messages m WHERE m.session = o.number"
    " ORDER BY m.position DESC LIMIT 1) l ON true"
    " WHERE (%(notebook)s::text IS NULL OR o.notebook = %(notebook)s) AND o.source <> %(child)s"
    " ORDER BY coalesce(l.number, o.begun) DESC LIMIT %(limit)s)"
    " ORDER BY coalesce(l.number, s.begun) DESC"
)
BY_AGE: LiteralString = "SELECT id FROM hermes.sessions ORDER BY number"
BY_USE: LiteralString = (
    "SELECT o.id FROM hermes.sessions o LEFT JOIN LATERAL (SELECT m.number FROM hermes.messages m"
    " WHERE m.session = o.number ORDER BY m.position DESC LIMIT 1) l ON true"
    " ORDER BY coalesce(l.number, o.begun)"
)
_FAMILIES: LiteralString = (
    "WITH RECURSIVE above (number, parent) AS (SELECT number, parent FROM hermes.sessions WHERE"
    "  (%(id)s <> '' AND id = %(id)s)"
    "  OR (%(notebook)s <> '' AND notebook = %(notebook)s AND source <> %(child)s)"
    " UNION SELECT s.number, s.parent FROM hermes.sessions s"
    "  JOIN above ON s.number = above.parent),"
    " family (number) AS (SELECT number FROM above UNION SELECT s.number FROM hermes.sessions s"
    "  JOIN family ON s.parent = family.number)"
)
_OF_FAMILIES: LiteralString = "FROM hermes.sessions WHERE number IN (SELECT number FROM family)"
FAMILY: LiteralString = f"{_FAMILIES} SELECT id {_OF_FAMILIES} ORDER BY number"
USED: LiteralString = f"{_FAMILIES} SELECT {table.SUMS} {_OF_FAMILIES} GROUP BY source, model"
USED_SINCE: LiteralString = (
    f"SELECT {table.SUMS} FROM hermes.sessions WHERE started >= %(since)s GROUP BY source, model"  # noqa: S608 - ours
)


class Row:
    """A new message with its search document."""

    def __init__(self, role: str, body: str, at: float, *, state: str = "active") -> None:
        self._values = {"role": role, "body": body, "at": at, "state": state}
        self._document = documents.document(body, at=at, began=None)

    def add(
        self,
        connection: Connection[DictRow],
        known: tsvector.Knowledge,
        number: int,
        position: int,
        usage: Usage | None = None,
    ) -> None:
        """Add the message to a session in one statement, along with its request's usage."""
        forms = set(self._document.forms) - known.forms
        query = _ADD_USED if usage else _ADD_WORDS if forms else _ADD_ALONE
        connection.execute(
            query,
            {
                **self._values,
                "session": number,
                "position": position,
                "document": tsvector.number(self._document, number, position),
                "words": tsvector.vector(self._document, known.sign),
                "new": " ".join(tsvector.listed(forms)),
                **(asdict(usage) if usage else {}),
            },
        )
        known.learn(forms)


def passes(connection: Connection[DictRow]) -> bool:
    """Return whether the login role bypasses row-level security."""
    query: LiteralString = (
        "SELECT rolsuper OR rolbypassrls AS above FROM pg_roles WHERE rolname = session_user"
    )
    row = connection.execute(query).fetchone()
    return bool(row and row["above"])


def facts(connection: Connection[DictRow]) -> DictRow:
    """Return information about the server and the user's role."""
    return (
        connection.execute(
            "SELECT current_setting('server_version') AS version, session_user::text AS role,"
            " (SELECT version FROM hermes.version) AS tables,"
            " (SELECT bool_and(relforcerowsecurity) FROM pg_class WHERE relkind = 'r'"
            "  AND relnamespace = 'hermes'::regnamespace AND relname <> 'version') AS separated,"
            " (SELECT count(*) FROM hermes.sessions) AS sessions,"
            " (SELECT count(*) FROM hermes.messages) AS messages,"
            " coalesce((SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()), false)"
            "  AS encrypted"
        ).fetchone()
        or {}
    )


def plain(text: str) -> str:
    """Return text that a column can store: NUL and surrogates become question marks."""
    return storable(text).replace("\0", "?")


def insert(connection: Connection[DictRow], row: SessionRow) -> int:
    """Add a session unless it exists, and return its number; a missing parent is left out."""
    connection.execute(
        "INSERT INTO hermes.sessions (id, title, source, notebook, model, system_prompt, parent,"
        " started) VALUES (%(id)s, %(title)s, %(source)s, %(notebook)s, %(model)s,"
        " %(system_prompt)s, (SELECT number FROM hermes.sessions WHERE id = %(parent)s),"
        " %(started)s) ON CONFLICT (owner, id) DO NOTHING",
        _columns(row),
    )
    found = connection.execute("SELECT number FROM hermes.sessions WHERE id = %s", (row.id,))
    return int((found.fetchone() or {})["number"])


def find(connection: Connection[DictRow], session_id: str) -> SessionRow | None:
    """Return a session's initial fields, or None if it does not exist."""
    stored = connection.execute(f"{WHOLE} WHERE s.id = %s", (session_id,)).fetchone()
    return _session_row(session_of(stored)) if stored else None


def _session_row(session: StoredSession) -> SessionRow:
    names = "id title source notebook model system_prompt parent started".split()
    return SessionRow(**{name: getattr(session, name) for name in names})


def next_position(connection: Connection[DictRow], number: int) -> int:
    """Return the next message's position."""
    query: LiteralString = (
        "SELECT coalesce(max(position) + 1, 0) AS next FROM hermes.messages WHERE session = %s"
    )
    row = connection.execute(query, (number,)).fetchone()
    return int(row["next"]) if row else 0


def position_of(connection: Connection[DictRow], number: int, body: str, at: float) -> int | None:
    """Return the position of a message written before the connection was lost, or None."""
    query: LiteralString = (
        "SELECT position FROM hermes.messages WHERE session = %s AND at = %s AND body = %s"
    )
    row = connection.execute(query, (number, at, body)).fetchone()
    return int(row["position"]) if row else None


_UPPERMOST: LiteralString = (
    "SELECT * FROM hermes.arrangements WHERE session = %s ORDER BY number DESC LIMIT 1"
)


def _latest_arrangement(connection: Connection[DictRow], number: int) -> Arrangement | None:
    row = connection.execute(_UPPERMOST, (number,)).fetchone()
    if row is None:
        return None
    order = table.unpacked(row["positions"])
    return Arrangement(start=row["start"], stop=row["stop"], order=order)


def active(connection: Connection[DictRow], number: int) -> list[DictRow]:
    """Return a conversation's active rows, in order."""
    query: LiteralString = (
        "SELECT * FROM hermes.messages WHERE session = %s AND state = 'active' ORDER BY position"
    )
    rows = {row["position"]: row for row in connection.execute(query, (number,))}
    top = _latest_arrangement(connection, number)
    return [rows[position] for position in (top.following(list(rows)) if top else rows)]


def set_state(
    connection: Connection[DictRow], number: int, state: str, positions: Iterable[int]
) -> None:
    """Set the state of the messages at the given positions."""
    connection.execute(
        "UPDATE hermes.messages SET state = %s WHERE session = %s AND position = ANY(%s)",
        (state, number, list(positions)),
    )


def arrange(
    connection: Connection[DictRow], number: int, made: Arrangement, prompt: str | None, at: float
) -> None:
    """Store an arrangement, and the previous system prompt if the compression changes it."""
    connection.execute(
        "INSERT INTO hermes.arrangements (session, start, stop, positions, prompt_before, at)"
        " VALUES (%(session)s, %(start)s, %(stop)s, %(positions)s, CASE WHEN %(kept)s THEN"
        " (SELECT system_prompt FROM hermes.sessions WHERE number = %(session)s) END, %(at)s)",
        {
            "session": number,
            "start": made.start,
            "stop": made.stop,
            "positions": table.packed(made.order),
            "kept": prompt is not None,
            "at": at,
        },
    )


def restore(connection: Connection[DictRow], session_id: str) -> bool:
    """Undo the last `replace`; return whether there was one."""
    with connection.transaction():
        number = number_of(connection, session_id)
        row = connection.execute(_UPPERMOST, (number,)).fetchone()
        if row is None:
            return False
        connection.execute(
            "UPDATE hermes.sessions SET system_prompt = coalesce(%s, system_prompt)"
            " WHERE number = %s",
            (row["prompt_before"], number),
        )
        connection.execute(
            "DELETE FROM hermes.arrangements WHERE session = %s AND number = %s",
            (number, row["number"]),
        )
        added = range(row["start"], row["stop"])
        set_state(connection, number, "undone", added)
        query: LiteralString = (
            "SELECT position FROM hermes.messages WHERE session = %s AND state <> 'undone'"
            " ORDER BY position"
        )
        left = [row["position"] for row in connection.execute(query, (number,))]
        below = _latest_arrangement(connection, number)
        set_state(connection, number, "active", below.following(left) if below else left)
    return True


def number_of(connection: Connection[DictRow], session_id: str) -> int:
    """Return a session's number, or 0 if it does not exist."""
    query: LiteralString = "SELECT number FROM hermes.sessions WHERE id = %s"
    row = connection.execute(query, (session_id,)).fetchone()
    return int(row["number"]) if row else 0


def delete(connection: Connection[DictRow], session_id: str) -> None:
    """Delete a session with its messages; attach its children to its parent."""
    with connection.transaction():
        number = number_of(connection, session_id)
        connection.execute(
            "UPDATE hermes.sessions SET parent = (SELECT parent FROM hermes.sessions"
            " WHERE number = %(number)s) WHERE parent = %(number)s",
            {"number": number},
        )
        _empty(connection, number)
        connection.execute("DELETE FROM hermes.sessions WHERE number = %s", (number,))


def _empty(connection: Connection[DictRow], number: int) -> None:
    connection.execute(
        "DELETE FROM hermes.search WHERE owner = session_user::text AND number BETWEEN %s AND %s",
        tsvector.numbers_of(number),
    )
    connection.execute("DELETE FROM hermes.messages WHERE session = %s", (number,))
    connection.execute("DELETE FROM hermes.arrangements WHERE session = %s", (number,))


def session_of(row: DictRow) -> StoredSession:
    """Convert a row of `WHOLE` to a session."""
    same = {name: row[name] for name in table.SAME_NAME if name not in ("system_prompt", "written")}
    return StoredSession(
        parent=row["parent_id"],
        written=row["written_at"],
        system_prompt=json.loads(row["system_prompt"]),
        usage=table.usage_of(row),
        **same,
    )


def packed(connection: Connection[DictRow], session_id: str) -> Packed | None:
    """Return a session in a store-independent form, or None if it does not exist."""
    stored = connection.execute(f"{WHOLE} WHERE s.id = %s", (session_id,)).fetchone()
    if stored is None:
        return None
    session = session_of(stored)
    messages = connection.execute(
        "SELECT position, role, body, at, state FROM hermes.messages WHERE session = %s"
        " ORDER BY position",
        (stored["number"],),
    )
    arrangements = connection.execute(
        "SELECT start, stop, positions, prompt_before, at FROM hermes.arrangements"
        " WHERE session = %s ORDER BY number",
        (stored["number"],),
    )
    return Packed(
        row=_session_row(session),
        ended=session.ended,
        usage=session.usage,
        messages=tuple(
            (m["position"], m["role"], m["body"], m["at"], m["state"]) for m in messages
        ),
        arrangements=tuple(
            (a["start"], a["stop"], a["positions"], _prompt_in(a["prompt_before"]), a["at"])
            for a in arrangements
        ),
    )


def unpack(connection: Connection[DictRow], packed: Packed, known: tsvector.Knowledge) -> None:
    """Overwrite an existing session with this one, in one transaction."""
    with connection.transaction():
        connection.execute("SET LOCAL statement_timeout = '60s'")
        number = number_of(connection, packed.row.id)
        _empty(connection, number)
        connection.execute(
            "UPDATE hermes.sessions SET title = %(title)s, source = %(source)s,"
            " notebook = %(notebook)s, model = %(model)s, system_prompt = %(system_prompt)s,"
            " parent = (SELECT number FROM hermes.sessions WHERE id = %(parent)s),"
            " begun = nextval('hermes.numbers'), started = %(started)s, ended = %(ended)s,"
            " tokens_in = 0, tokens_out = 0,"
            " tokens_cached = 0, tokens_written = 0, tokens_reasoning = 0, requests = 0,"
            " cost = NULL WHERE number = %(number)s",
            {**_columns(packed.row), "ended": packed.ended, "number": number},
        )
        connection.execute(COUNT, {**asdict(packed.usage), "session": number})
        for position, role, body, at, state in packed.messages:
            Row(role, body, at, state=state).add(connection, known, number, position)
        for start, stop, positions, before, at in packed.arrangements:
            connection.execute(
                "INSERT INTO hermes.arrangements (session, start, stop, positions, prompt_before,"
                " at) VALUES (%s, %s, %s, %s, %s, %s)",
                (number, start, stop, positions, None if before is None else prompt(before), at),
            )


def prompt(text: str) -> str:
    """Return a system prompt in the format of its column: JSON, since it may contain NUL."""
    return json.dumps(storable(text), ensure_ascii=False)


def _prompt_in(column: str | None) -> str | None:
    return None if column is None else str(json.loads(column))


def _columns(row: SessionRow) -> dict[str, object]:
    return {**asdict(row), "system_prompt": prompt(row.system_prompt)}
