"""The ledger of tasks: each is claimed once, whoever asks, and stays claimed (`core.claims`)."""

from __future__ import annotations

import time
from collections.abc import Collection

from hermes_nb.core.claims import Claim, ClaimState, Ending
from hermes_nb.memory.encoding import storable
from hermes_nb.memory.store import claim_rows
from hermes_nb.memory.store.guarded import Guarded, guarded


class Ledger(Guarded):
    """The claims in the store's file."""

    @guarded
    def claim(
        self, run: str, task: str, *, owner: str, again: Collection[ClaimState] = ()
    ) -> Claim:
        """Claim a task that nobody has claimed, or whose state is one of `again`.

        Returns the claim as it now stands, durably: it is the caller's exactly if its owner is.
        """
        wanted = Claim(run=run, task=task, state="running", owner=storable(owner), at=time.time())
        return self.database.write(lambda c: claim_rows.claim(c, wanted, again=again))

    @guarded
    def settle(self, run: str, task: str, *, owner: str, state: Ending, result: str = "") -> bool:
        """Note how a task ended; False where it is no longer this owner's to say."""
        ended = Claim(
            run=run,
            task=task,
            state=state,
            owner=storable(owner),
            result=storable(result),
            at=time.time(),
        )
        return self.database.write(lambda c: claim_rows.settle(c, ended))

    @guarded
    def release(self, run: str, task: str, *, owner: str) -> bool:
        """Take back a claim on a task that was surely not begun; False where it is not ours."""
        return self.database.write(lambda c: claim_rows.release(c, run, task, storable(owner)))

    @guarded
    def claims(self, run: str) -> list[Claim]:
        """Return what was claimed of a run, in the order of the tasks' names."""
        return self.database.read(lambda c: claim_rows.listed(c, run))
