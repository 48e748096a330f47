"""Who has begun which task of a fan-out: what makes each of them run at most once.

```
(none) --claim--> running --settle--> done | failed | stopped
                     |  --release--> (none)
stopped, failed, running --claim(again=…)--> running, somebody else's
```
A claim that stays `running` after its process died says that nobody knows how far the task came.
It is taken over only by somebody who names that state; what the first owner settles then is lost.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

ClaimState = Literal["running", "done", "failed", "stopped"]
Ending = Literal["done", "failed", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """A task that somebody has begun. `result` is what was settled, as JSON, or "".

    `owner` names the attempt, and where it runs, as `host:process:token`. `at` is when it was
    claimed or settled, in seconds since the epoch.
    """

    run: str
    task: str
    state: ClaimState
    owner: str
    result: str = ""
    at: float = 0.0


@runtime_checkable
class ClaimLedger(Protocol):
    """Where claims are kept, for all processes of one home. A call raises `StoreError`."""

    def claim(
        self, run: str, task: str, *, owner: str, again: Collection[ClaimState] = ()
    ) -> Claim:
        """Claim a task that nobody has claimed, or whose state is one of `again`.

        Returns the claim as it now stands, durably: it is the caller's exactly if its owner is.
        """
        ...

    def settle(self, run: str, task: str, *, owner: str, state: Ending, result: str = "") -> bool:
        """Note how a task ended; False where it is no longer this owner's to say."""
        ...

    def release(self, run: str, task: str, *, owner: str) -> bool:
        """Take back a claim on a task that was surely not begun; False where it is not ours."""
        ...

    def claims(self, run: str) -> list[Claim]:
        """Return what was claimed of a run, in the order of the tasks' names."""
        ...
