"""One budget for several that run side by side, so that they do not overrun it together.

A request that is under way has not been counted yet. Each side's forecast is therefore held back
from the others, from the moment its request was allowed until its usage is known.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from hermes_nb.core.budget import ANSWER_TOKENS, Budget, Refusal
from hermes_nb.core.messages import Usage


class Pool:
    """A budget and the tokens that requests under way will take of it, by whose they are."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.ahead: dict[int, int] = {}
        self.lock = threading.Lock()


class Portion(Budget):
    """A pool's budget as one of those who share it sees it."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool.budget.limits, scope=pool.budget.scope)
        self._pool = pool

    @property
    def used(self) -> Usage:
        """What all of them have spent."""
        return self._pool.budget.used

    def spend(self, usage: Usage) -> None:
        """Count what a request of this one has used."""
        with self._pool.lock:
            self._pool.ahead.pop(id(self), None)
            self._pool.budget.spend(usage)

    def refusal(self, prompt: int, *, requests: int = 1) -> Refusal | None:
        """Return why requests do not fit beside those under way, or None and hold them back."""
        mine = requests * (prompt + ANSWER_TOKENS)
        with self._pool.lock:
            others = sum(n for whose, n in self._pool.ahead.items() if whose != id(self))
            refused = self._pool.budget.refusal(mine + others - ANSWER_TOKENS)
            if refused is None:
                self._pool.ahead[id(self)] = prompt + ANSWER_TOKENS
            return refused

    def release(self) -> None:
        """Hold nothing back any more: this one is done."""
        with self._pool.lock:
            self._pool.ahead.pop(id(self), None)


def pools(budgets: Iterable[Budget]) -> list[Pool]:
    """Return a pool for each budget."""
    return [Pool(budget) for budget in budgets]


def portions(shared: Sequence[Pool]) -> list[Portion]:
    """Return one more side's portion of each pool."""
    return [Portion(pool) for pool in shared]
