"""Claims on the tasks of a fan-out, which make each task run at most once.

```
(none) --claim--> running --settle--> done | failed | stopped
                     |  --release--> (none)
stopped, failed, running --claim(again=…)--> running, with a new owner
```

If a process dies, its claim stays `running`: how far the task got is unknown. Only a caller that
passes `running` in `again` takes over such a claim. After that, the first owner can't settle it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, Protocol, runtime_checkable

ClaimState = Literal["running", "done", "failed", "stopped"]
"""State of a claimed task."""
Ending = Literal["done", "failed", "stopped"]
"""Final state of a task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """The claim on one task of a fan-out."""

    run: str
    """Id of the fan-out."""
    task: str
    """Id of the task in the fan-out."""
    state: ClaimState
    """State of the task."""
    owner: str
    """The attempt that owns the claim and where it runs, as `host:process:token`."""
    result: str = ""
    """The result as JSON, or "" before the task is settled."""
    at: float = 0.0
    """When the task was last claimed or settled, in seconds since the epoch."""


@runtime_checkable
class ClaimLedger(Protocol):
    """Storage for claims, shared by all processes that use a Hermes directory.

    Methods raise `StoreError`.
    """

    def claim(
        self, run: str, task: str, *, owner: str, again: Collection[ClaimState] = ()
    ) -> Claim:
        """Claim a task that has no claim yet, or whose state is in `again`.

        Returns the current claim, after storing it durably. The caller has the task if, and only
        if, the claim's owner is `owner`.
        """
        ...

    def settle(self, run: str, task: str, *, owner: str, state: Ending, result: str = "") -> bool:
        """Store the final state of a task; return False if `owner` no longer has the claim."""
        ...

    def release(self, run: str, task: str, *, owner: str) -> bool:
        """Remove the claim on a task that was definitely not started.

        Returns False if the claim isn't `owner`'s.
        """
        ...

    def claims(self, run: str) -> list[Claim]:
        """Return a run's claims, sorted by task."""
        ...
