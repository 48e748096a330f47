"""Makes a fresh store out of what can still be read of a damaged one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.memory.encoding import decode
from hermes_nb.memory.search import index
from hermes_nb.memory.store.arrangement import unpacked
from hermes_nb.memory.store.migrations import IN_ORDER, migrate
from hermes_nb.memory.store.pages import Record, Value, records

ROLES = frozenset({"system", "user", "assistant", "tool"})
STATES = frozenset({"active", "compressed", "undone"})
NARROWEST = 7
"""The fewest columns a table of ours has (`messages`, `arrangements`)."""
CLAIM = 6
"""The columns of a claim."""
ENDINGS = frozenset({"running", "done", "failed", "stopped"})
SESSION = (
    "id parent title source notebook model system_prompt started ended tokens_in tokens_out"
    " tokens_cached tokens_written tokens_reasoning requests cost"
).split()
"""The columns of a session that are salvaged; they come first in every version of the table."""
PATTERN = "TtTTTTTRrIIIIIIr"
CURRENT = len(SESSION) + 1
"""All columns of a session, with the one that is made anew."""
WRITTEN = SESSION.index("ended") + 1
"""Where the schema had one column more until its fifth version, a time."""
LARGEST = 2**53
"""No id or count of ours comes near it; a greater one is damage."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Salvaged:
    """What was found; `unreadable` counts messages whose row was there but not its content."""

    sessions: int
    messages: int
    unreadable: int


def salvage(source: Path, target: Path) -> Salvaged:
    """Write the rows found in `source`, a damaged store with its log, to a new store `target`.

    `target` is complete and in one file when this returns. A message whose session is lost gets a
    bare one. Raises sqlite3.Error or OSError, for example when the disk is full.
    """
    connection = sqlite3.connect(target, isolation_level=None)
    try:
        connection.row_factory = sqlite3.Row
        # Nobody sees the file before it is whole, and then it is synced once.
        connection.execute("PRAGMA journal_mode = MEMORY")
        connection.execute("PRAGMA synchronous = OFF")
        migrate(connection)
        connection.execute("BEGIN IMMEDIATE")
        for record in records(source, columns=len(SESSION)):
            _keep_session(connection, record)
        unreadable = _keep_messages(connection, source)
        _keep_claims(connection, source)
        _complete(connection)
        connection.execute("COMMIT")
        counts = connection.execute(
            "SELECT (SELECT count(*) FROM sessions), (SELECT count(*) FROM messages)"
        ).fetchone()
    finally:
        connection.close()
    return Salvaged(sessions=counts[0], messages=counts[1], unreadable=unreadable)


def _keep_session(connection: sqlite3.Connection, record: Record) -> None:
    values = record.values[: len(SESSION)]
    if len(record.values) > CURRENT or not _fits(record, PATTERN, values):
        values = (*record.values[:WRITTEN], *record.values[WRITTEN + 1 : len(SESSION) + 1])
    if _fits(record, PATTERN, values):
        connection.execute(
            f"INSERT OR IGNORE INTO sessions (rowid, {', '.join(SESSION)})"  # noqa: S608 - ours
            f" VALUES ({', '.join('?' * (len(SESSION) + 1))})",
            (record.rowid, *values),
        )


def _keep_messages(connection: sqlite3.Connection, source: Path) -> int:
    """Insert messages and arrangements; return how many messages had no readable content."""
    unreadable = 0
    for record in records(source, columns=NARROWEST):
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
            f"INSERT OR IGNORE INTO {into} VALUES (?, ?, ?, ?, ?, ?, ?)",  # noqa: S608 - ours
            (record.rowid, *values[1:]),
        )
    return unreadable


def _keep_claims(connection: sqlite3.Connection, source: Path) -> None:
    """Insert the claims, of several versions of one the latest: none of them is to run again."""
    for record in records(source, columns=CLAIM):
        if _fits(record, "TTTTTR", record.values) and record.values[2] in ENDINGS:
            connection.execute(
                "INSERT INTO claims VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (run, task) DO UPDATE SET"
                " state = excluded.state, owner = excluded.owner, result = excluded.result,"
                " at = excluded.at WHERE excluded.at > at",
                record.values,
            )


def _complete(connection: sqlite3.Connection) -> None:
    """Give every message a session, every session its counters, and all of it an index."""
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
    """Say whether values are of the kinds that `pattern` names, a letter each."""
    return (
        0 < record.rowid < LARGEST
        and len(values) == len(pattern)
        and all(KINDS[kind](value) for kind, value in zip(pattern, values, strict=True))
    )


def _is_count(value: Value) -> bool:
    return isinstance(value, int) and 0 <= value < LARGEST


def _is_number(value: Value) -> bool:
    return isinstance(value, (int, float))


def _is_arranged(value: Value) -> bool:
    try:
        return isinstance(value, str) and len(unpacked(value)) >= 0
    except (ValueError, TypeError):
        return False


KINDS: Mapping[str, Callable[[Value], bool]] = {
    "T": lambda value: isinstance(value, str),
    "t": lambda value: value is None or isinstance(value, str),
    "R": _is_number,
    "r": lambda value: value is None or _is_number(value),
    "I": _is_count,
    "n": lambda value: value is None,
    "A": _is_arranged,
}
"""Text, a number, a count, nothing, positions; small letters allow for nothing as well."""
