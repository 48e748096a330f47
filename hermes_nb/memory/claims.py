"""The ledger of tasks: each is claimed once, whoever asks, and stays claimed (`core.claims`)."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Collection

from hermes_nb.core.claims import Claim, ClaimState, Ending
from hermes_nb.memory.rows import storable
from hermes_nb.storage.database import Database

KEPT = 20_000
"""Claims of other runs that are kept, those made last; never by age, as a clock may jump."""
TIDIED = 256
"""Claims between two looks at what is no longer kept."""

_OURS = " WHERE run = ? AND task = ? AND owner = ? AND state = 'running'"


class Ledger:
    """The claims in the store's file."""

    database: Database

    def claim(
        self, run: str, task: str, *, owner: str, again: Collection[ClaimState] = ()
    ) -> Claim:
        wanted = Claim(run=run, task=task, state="running", owner=storable(owner), at=time.time())

        def claim(connection: sqlite3.Connection) -> Claim:
            row = connection.execute(
                "SELECT * FROM claims WHERE run = ? AND task = ?", (run, task)
            ).fetchone()
            if row is not None and row["state"] not in again:
                return Claim(**row)
            made = connection.execute(
                "INSERT OR REPLACE INTO claims (run, task, state, owner, result, at)"
                " VALUES (?, ?, ?, ?, '', ?)",
                (run, task, wanted.state, wanted.owner, wanted.at),
            )
            last = made.lastrowid or 0
            if last % TIDIED == 0:
                connection.execute(
                    "DELETE FROM claims WHERE rowid <= ? AND run <> ?", (last - KEPT, run)
                )
            return wanted

        return self.database.write(claim)

    def settle(self, run: str, task: str, *, owner: str, state: Ending, result: str = "") -> bool:
        values = state, storable(result), time.time(), run, task, storable(owner)
        query = "UPDATE claims SET state = ?, result = ?, at = ?" + _OURS  # noqa: S608 - ours
        return self.database.write(lambda c: c.execute(query, values).rowcount > 0)

    def release(self, run: str, task: str, *, owner: str) -> bool:
        values = run, task, storable(owner)
        query = "DELETE FROM claims" + _OURS  # noqa: S608 - ours
        return self.database.write(lambda c: c.execute(query, values).rowcount > 0)

    def claims(self, run: str) -> list[Claim]:
        query = "SELECT * FROM claims WHERE run = ? ORDER BY task"
        return self.database.read(lambda c: [Claim(**row) for row in c.execute(query, (run,))])
