"""Store messages and sessions as rows. All statements run inside the caller's transaction.

Messages are stored as JSON, without loss. NaN and the infinities are written as in Python's `json`,
and NUL is escaped. A message with text that UTF-8 cannot represent (a lone surrogate) is written as
ASCII with escapes.

A row's position in its session never changes. However, when a conversation is compressed, the
summary is written last but belongs between earlier messages. Each compression therefore stores an
*arrangement*: the positions of the conversation's messages after it, in order. Messages that are
appended later follow by position. A session's arrangements form a stack; undoing a compression
removes the top one.
"""

from __future__ import annotations

import dataclasses
import json
import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, LiteralString

from hermes_nb.core.messages import Json, Message, Role, Usage
from hermes_nb.core.protocols import StoredMessage, StoredSession
from hermes_nb.memory.search import index


def encode(message: Message) -> str:
    """Return a message as text to store; never raises, and the result is valid UTF-8.

    Values that JSON does not support are converted with `str`. If a message cannot be written even
    then (its arguments contain themselves or are nested too deeply), its parsed arguments are left
    out; its text and the arguments as the model wrote them remain.
    """
    try:
        return _dumps(message.to_dict())
    except (ValueError, TypeError, RecursionError):
        calls = tuple(dataclasses.replace(call, arguments={}) for call in message.calls)
        return _dumps(dataclasses.replace(message, calls=calls, echo={}).to_dict())


def decode(body: str) -> Message | None:
    """Parse the output of `encode`; return None for anything else."""
    try:
        return Message.from_dict(json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def readable(session_id: str, rows: Iterable[Mapping[str, Json]]) -> list[StoredMessage]:
    """Return the messages in `rows`, leaving out unreadable ones."""
    return [
        StoredMessage(
            session_id=session_id,
            position=row["position"],
            message=message,
            at=row["at"],
            state=row["state"],
            made=row.get("made", False),
        )
        for row in rows
        if (message := decode(row["body"])) is not None
    ]


def unreadable(session_id: str, number: int) -> str:
    """Return a warning that a number of messages are unreadable."""
    text = f"{number} stored messages of session {session_id} can no longer be read"
    return f"{text} and are skipped"


def storable(text: str) -> str:
    """Return text that UTF-8 can represent: lone surrogates become question marks."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _dumps(value: dict[str, Json]) -> str:
    # Not always ASCII: escapes would double the size of Chinese or Russian.
    text = _PLAIN.encode(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return _ASCII.encode(value)
    return text


_PLAIN, _ASCII = (
    json.JSONEncoder(ensure_ascii=ascii_, default=str, skipkeys=True, separators=(",", ":"))
    for ascii_ in (False, True)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """The conversation's order after one compression."""

    start: int
    """Position of the first row that the compression added."""
    stop: int
    """Position after the last row that it added."""
    order: tuple[int, ...]
    """Positions of the conversation's messages, in order."""

    def following(self, active: Sequence[int]) -> list[int]:
        """Return the positions of the currently active messages, in the conversation's order.

        `active` holds the same positions in ascending order.
        """
        kept = set(active)
        ordered = [position for position in self.order if position in kept]
        return ordered + [position for position in active if position >= self.stop]


def matched(before: Sequence[str], after: Sequence[str]) -> list[int | None]:
    """For each text in `after`, return the index of the same text in `before`; use each once.

    If a text occurs several times, matches in the common beginning and end are preferred, because a
    compression keeps those.
    """
    out: list[int | None] = [None] * len(after)
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and before[head] == after[head]:
        out[head] = head
        head += 1
    tail = 0
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
        out[-tail] = len(before) - tail
    left: dict[str, list[int]] = defaultdict(list)
    for place in range(len(before) - tail - 1, head - 1, -1):
        left[before[place]].append(place)
    for place in range(head, len(after) - tail):
        if left[after[place]]:
            out[place] = left[after[place]].pop()
    return out


def packed(order: Sequence[int]) -> str:
    """Return positions as compact JSON, with runs of consecutive ones as `[first, last]`."""
    runs: list[list[int]] = []
    for position in order:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return json.dumps(runs, separators=(",", ":"))


def unpacked(text: str) -> tuple[int, ...]:
    """Parse the output of `packed` and return the positions."""
    return tuple(p for first, last in json.loads(text) for p in range(first, last + 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Replacement:
    """The row changes that replace a conversation's messages with others."""

    added: tuple[tuple[Message, str], ...]
    """Messages to add, each with its JSON."""
    left_out: tuple[int, ...]
    """Positions of messages that leave the conversation."""
    arrangement: Arrangement | None
    """The new order, or None if messages were only appended and nothing needs to be undone."""

    @classmethod
    def planned(
        cls, rows: Sequence[tuple[int, str]], messages: Sequence[Message], start: int
    ) -> Replacement:
        """Plan how to replace a conversation with `messages`.

        `rows` has the position and JSON of each message in it; `start` is the next free position.
        """
        bodies = [encode(each) for each in messages]
        before = [  # in the current encoding
            body if (message := decode(body)) is None else encode(message) for _, body in rows
        ]
        found = matched(before, bodies)
        new = [place for place, stored in enumerate(found) if stored is None]
        free = iter(range(start, start + len(new)))
        order = tuple(next(free) if stored is None else rows[stored][0] for stored in found)
        grew = found[: len(rows)] == list(range(len(rows)))
        kept = set(found)
        made = Arrangement(start=start, stop=start + len(new), order=order)
        return cls(
            added=tuple((messages[place], bodies[place]) for place in new),
            left_out=tuple(position for i, (position, _) in enumerate(rows) if i not in kept),
            arrangement=None if grew else made,
        )


def append(
    connection: sqlite3.Connection,
    session_id: str,
    role: Role,
    body: str,
    at: float,
    position: int | None = None,
) -> tuple[int, int]:
    """Append an encoded message to its session; return its row id and its position.

    The index is updated later.

    Args:
        connection: a connection with an open transaction
        session_id: the session's id
        role: the message's role
        body: the encoded message
        at: the time in seconds since the epoch
        position: the next position, if known because no other session has since been written to

    Raises:
        sqlite3.IntegrityError: the session is missing
    """
    follows = position is not None
    if position is None:
        position = next_position(connection, session_id)
    row = connection.execute(
        "INSERT INTO messages (session, position, role, body, at) VALUES (?, ?, ?, ?, ?)",
        (session_id, position, role, body, at),
    ).lastrowid
    if not follows:
        connection.execute(
            "UPDATE sessions SET last = ?1 WHERE id = ?2 AND EXISTS (SELECT 1 FROM sessions AS"
            " other WHERE other.last >= sessions.last AND other.rowid <> sessions.rowid)",
            (row, session_id),
        )
    return row or 0, position


def active(connection: sqlite3.Connection, session_id: str) -> list[sqlite3.Row]:
    """Return the conversation's rows, in order."""
    rows = connection.execute(
        "SELECT * FROM messages WHERE session = ? AND state = 'active' ORDER BY position",
        (session_id,),
    ).fetchall()
    top = _latest_arrangement(connection, session_id)
    if top is None:
        return rows
    by_position = {row["position"]: row for row in rows}
    return [by_position[position] for position in top.following(list(by_position))]


def between(
    connection: sqlite3.Connection, session_id: str, first: int, last: int | None
) -> list[sqlite3.Row]:
    """Return the rows at positions `first` to `last`, both inclusive, in any state."""
    return connection.execute(
        "SELECT *, EXISTS (SELECT 1 FROM arrangements AS a WHERE a.session = m.session"
        " AND m.position >= a.start AND m.position < a.stop) AS made FROM messages AS m"
        " WHERE session = ?1 AND position >= ?2 AND (?3 IS NULL OR position <= ?3)"
        " ORDER BY position",
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
    """Make `messages` the conversation. Messages that are no longer in it become `compressed`."""
    rows = active(connection, session_id)
    start = next_position(connection, session_id)
    plan = Replacement.planned([(row["position"], row["body"]) for row in rows], messages, start)
    for message, body in plan.added:
        append(connection, session_id, message.role, body, at)
    if plan.arrangement is not None:
        ids = {row["position"]: row["id"] for row in rows}
        _set_state(connection, "compressed", (ids[position] for position in plan.left_out))
        made = plan.arrangement
        connection.execute(
            "INSERT INTO arrangements (session, start, stop, positions, prompt_before, at)"
            " SELECT ?1, ?2, ?3, ?4, iif(?5 IS NULL, NULL, (SELECT system_prompt"
            " FROM sessions WHERE id = ?1)), ?6",
            (session_id, made.start, made.stop, packed(made.order), system_prompt, at),
        )
    if system_prompt is not None:
        connection.execute(
            "UPDATE sessions SET system_prompt = ? WHERE id = ?", (system_prompt, session_id)
        )


def restore(connection: sqlite3.Connection, session_id: str) -> bool:
    """Undo the last `replace`; return whether there was one."""
    top = _latest_arrangement(connection, session_id)
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
    below = _latest_arrangement(connection, session_id)
    positions = below.following(list(ids)) if below else list(ids)
    _set_state(connection, "active", (ids[position] for position in positions))
    return True


def rewind(connection: sqlite3.Connection, session_id: str, length: int) -> None:
    """Mark as `undone` all messages after the first `length` of the conversation."""
    later = active(connection, session_id)[length:]
    _set_state(connection, "undone", (row["id"] for row in later))


def next_position(connection: sqlite3.Connection, session_id: str) -> int:
    """Return the next message's position."""
    query = "SELECT coalesce(max(position) + 1, 0) FROM messages WHERE session = ?"
    return int(connection.execute(query, (session_id,)).fetchone()[0])


def _latest_arrangement(connection: sqlite3.Connection, session_id: str) -> Arrangement | None:
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


TOKENS = {"input": "in", "output": "out"} | {n: n for n in ("cached", "written", "reasoning")}
SAME_NAME = "id title source notebook model system_prompt started written ended messages".split()
SUMS: LiteralString = (
    "source, model, cast(sum(tokens_in) AS bigint) AS tokens_in,"
    " cast(sum(tokens_out) AS bigint) AS tokens_out,"
    " cast(sum(tokens_cached) AS bigint) AS tokens_cached,"
    " cast(sum(tokens_written) AS bigint) AS tokens_written,"
    " cast(sum(tokens_reasoning) AS bigint) AS tokens_reasoning,"
    " cast(sum(requests) AS bigint) AS requests, sum(cost) AS cost"
)
"""The columns in a query for usage by source and model, in SQLite and PostgreSQL."""
_FAMILIES = (
    "WITH RECURSIVE above (id, parent) AS (SELECT id, parent FROM sessions WHERE {seeds}"
    " UNION SELECT s.id, s.parent FROM sessions s JOIN above ON s.id = above.parent),"
    " family (id) AS (SELECT id FROM above"
    "  UNION SELECT s.id FROM sessions s JOIN family ON s.parent = family.id)"
    " SELECT {columns} FROM sessions WHERE id IN family"
)
_SINCE = "SELECT {columns} FROM sessions WHERE started >= :since"
CHILD = "child"
"""The source of child agents' and maps' sessions: found by search, not offered for resuming."""


# Computed from the messages: with columns in the session, each append would rewrite a page.
_WHOLE = (
    "SELECT s.*, max(s.started, coalesce((SELECT at FROM messages WHERE session = s.id"
    " ORDER BY position DESC LIMIT 1), s.started)) AS written,"
    " (SELECT count(*) FROM messages WHERE session = s.id) - (SELECT count(*) FROM messages"
    " WHERE session = s.id AND state <> 'active') AS messages FROM sessions s"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRow:
    """Data for a new session; all texts can be encoded as UTF-8."""

    id: str
    """The session's id."""
    title: str = ""
    """The title, or "" if it has none."""
    source: str = "salvaged"
    """The kind of caller; `salvaged` if the session's row was lost."""
    notebook: str = ""
    """The notebook's path, or "" if it has none."""
    model: str = ""
    """The model's name."""
    system_prompt: str = ""
    """The system prompt."""
    parent: str = ""
    """The id of the session that it was created from, or "" if there is none."""
    started: float
    """When it started, in seconds since the epoch."""

    def plain(self) -> SessionRow:
        """Return this row for PostgreSQL: with question marks for NUL, except in the prompt."""
        names = ("id", "title", "source", "notebook", "model", "parent")
        plain = {name: getattr(self, name).replace("\0", "?") for name in names}
        return dataclasses.replace(self, **plain)


def insert(connection: sqlite3.Connection, row: SessionRow) -> None:
    """Add a session as the latest one if it is missing; an unknown parent is ignored."""
    connection.execute(
        "INSERT INTO sessions (id, title, source, notebook, model, system_prompt, parent, started,"
        " last) VALUES (:id, :title, :source, :notebook, :model, :system_prompt,"
        " (SELECT id FROM sessions WHERE id = :parent), :started,"
        " (SELECT coalesce(max(id), 0) FROM messages)) ON CONFLICT (id) DO NOTHING",
        asdict(row),
    )


def find(connection: sqlite3.Connection, session_id: str) -> SessionRow | None:
    """Return a session's initial data, or None if it is missing."""
    row = connection.execute(
        "SELECT id, title, source, notebook, model, system_prompt, coalesce(parent, '') AS parent,"
        " started FROM sessions WHERE id = ?",
        (session_id,),
    ).fetchone()
    return SessionRow(**row) if row else None


def get(connection: sqlite3.Connection, session_id: str) -> StoredSession | None:
    """Return a session, or None."""
    row = connection.execute(f"{_WHOLE} WHERE s.id = ?", (session_id,)).fetchone()
    return _session(row) if row else None


def listed(connection: sqlite3.Connection, notebook: str | None, limit: int) -> list[StoredSession]:
    """Return sessions, most recent first, except those of child agents and maps."""
    rows = connection.execute(
        f"{_WHOLE} WHERE s.rowid IN (SELECT rowid FROM sessions"  # noqa: S608 - constant
        " WHERE (?1 IS NULL OR notebook = ?1) AND source <> ?3"
        " ORDER BY last DESC, rowid DESC LIMIT ?2)"
        " ORDER BY s.last DESC, s.rowid DESC",
        (notebook, limit, CHILD),
    )
    return [_session(row) for row in rows]


def lineage(connection: sqlite3.Connection, session_id: str) -> list[str]:
    """Return the ids of a session's lineage: its ancestors and all their descendants.

    They are sorted, oldest first, and include the session's own id.
    """
    query = _FAMILIES.format(seeds="id = ?", columns="id") + " ORDER BY rowid"
    rows = connection.execute(query, (session_id,))
    return [row["id"] for row in rows] or [session_id]


def usage(
    connection: sqlite3.Connection, session_id: str, notebook: str, since: float
) -> dict[tuple[str, str], Usage]:
    """Return `SessionStore.usage`."""
    if session_id:
        query = _FAMILIES.format(seeds="id = :session", columns=SUMS)
    elif notebook:
        seeds = "notebook = :notebook AND source <> :child"
        query = _FAMILIES.format(seeds=seeds, columns=SUMS)
    else:
        query = _SINCE.format(columns=SUMS)
    values = {"session": session_id, "notebook": notebook, "child": CHILD, "since": since}
    return summed(connection.execute(f"{query} GROUP BY source, model", values))


def summed(rows: Iterable[sqlite3.Row | dict[str, Any]]) -> dict[tuple[str, str], Usage]:
    """Return the usage by source and model, from the rows of a query for the columns in `SUMS`."""
    return {(row["source"], row["model"]): usage_of(row) for row in rows}


def usage_of(row: sqlite3.Row | dict[str, Any]) -> Usage:
    """Return the usage in a row for one or more sessions."""
    return Usage(
        **{name: row[f"tokens_{column}"] for name, column in TOKENS.items()},
        requests=row["requests"],
        cost=row["cost"],
    )


def count(connection: sqlite3.Connection, session_id: str, usage: Usage) -> None:
    """Add to a session's token counters; an unknown cost is not added."""
    connection.execute(
        "UPDATE sessions SET tokens_in = tokens_in + :input, tokens_out = tokens_out + :output,"
        " tokens_cached = tokens_cached + :cached, tokens_written = tokens_written + :written,"
        " tokens_reasoning = tokens_reasoning + :reasoning, requests = requests + :requests,"
        " cost = CASE WHEN :cost IS NULL THEN cost ELSE coalesce(cost, 0) + :cost END"
        " WHERE id = :session",
        {**asdict(usage), "session": session_id},
    )


def delete(connection: sqlite3.Connection, session_id: str) -> None:
    """Remove a session with its messages; its children become children of its parent."""
    empty(connection, session_id)
    for statement in (
        "UPDATE sessions SET parent = (SELECT parent FROM sessions WHERE id = ?1)"
        " WHERE parent = ?1",
        "DELETE FROM sessions WHERE id = ?1",
    ):
        connection.execute(statement, (session_id,))


def empty(connection: sqlite3.Connection, session_id: str) -> None:
    """Remove a session's messages."""
    index.remove(connection, session_id)
    for statement in (
        "DELETE FROM arrangements WHERE session = ?1",
        "DELETE FROM messages WHERE session = ?1",
    ):
        connection.execute(statement, (session_id,))


def _session(row: sqlite3.Row) -> StoredSession:
    same = {name: row[name] for name in SAME_NAME}
    return StoredSession(parent=row["parent"] or "", usage=usage_of(row), **same)
