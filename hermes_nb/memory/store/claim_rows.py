"""The statements on the table of claims; each runs inside the caller's transaction."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection

from hermes_nb.core.claims import Claim, ClaimState

KEPT = 20_000
"""Claims of other runs that are kept, those made last; never by age, as a clock may jump."""
TIDIED = 256
"""Claims between two looks at what is no longer kept."""


def claim(connection: sqlite3.Connection, wanted: Claim, *, again: Collection[ClaimState]) -> Claim:
    """Insert or take over a claim if that may be; return what is there then."""
    known = find(connection, wanted.run, wanted.task)
    if known is not None and known.state not in again:
        return known
    made = connection.execute(
        "INSERT OR REPLACE INTO claims (run, task, state, owner, result, at)"
        " VALUES (?, ?, ?, ?, '', ?)",
        (wanted.run, wanted.task, wanted.state, wanted.owner, wanted.at),
    )
    last = made.lastrowid or 0
    if last % TIDIED == 0:
        connection.execute(
            "DELETE FROM claims WHERE rowid <= ? AND run <> ?", (last - KEPT, wanted.run)
        )
    return wanted


def settle(connection: sqlite3.Connection, ended: Claim) -> bool:
    """Note how a claim of this owner ended; say whether it was one that ran."""
    changed = connection.execute(
        "UPDATE claims SET state = ?, result = ?, at = ?"
        " WHERE run = ? AND task = ? AND owner = ? AND state = 'running'",
        (ended.state, ended.result, ended.at, ended.run, ended.task, ended.owner),
    )
    return changed.rowcount > 0


def release(connection: sqlite3.Connection, run: str, task: str, owner: str) -> bool:
    """Remove a claim of this owner that runs; say whether there was one."""
    changed = connection.execute(
        "DELETE FROM claims WHERE run = ? AND task = ? AND owner = ? AND state = 'running'",
        (run, task, owner),
    )
    return changed.rowcount > 0


def find(connection: sqlite3.Connection, run: str, task: str) -> Claim | None:
    """Return a claim, or None."""
    row = connection.execute(
        "SELECT * FROM claims WHERE run = ? AND task = ?", (run, task)
    ).fetchone()
    return Claim(**row) if row else None


def listed(connection: sqlite3.Connection, run: str) -> list[Claim]:
    """Return the claims of a run."""
    rows = connection.execute("SELECT * FROM claims WHERE run = ? ORDER BY task", (run,))
    return [Claim(**row) for row in rows]
