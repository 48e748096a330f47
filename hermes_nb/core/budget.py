"""What may be spent, what was, and whether one more request still fits.

A limit is checked before each request, by a forecast: the prompt's size is known, its price is
taken from what such tokens have cost so far. A request that costs more than the forecast goes over;
the next one is not sent. Where several run side by side on one budget, the forecast of each request
under way is held back from the others until its usage is known.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hermes_nb.core.messages import Usage

_CENT = 0.01
ANSWER_TOKENS = 400
"""Tokens that a forecast allows for an answer: a long paragraph, or a call with its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much: `cost` in US dollars, `tokens` of prompts and answers; None is without limit."""

    cost: float | None = None
    tokens: int | None = None

    def __bool__(self) -> bool:
        """Whether there is any limit."""
        return self.cost is not None or self.tokens is not None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a request is not sent: the `limit`, such as `$0.05 for this turn`, and what was used."""

    limit: str
    used: str

    def __str__(self) -> str:
        """Return both in one line."""
        return f"the budget is {self.limit}: {self.used}"


class Budget:
    """Limits and what counts against them; safe between threads.

    `scope` says whose they are, as in `this turn`. `used` is what was spent before.
    """

    def __init__(self, limits: Limits, *, scope: str, used: Usage | None = None) -> None:
        self.limits = limits
        self.scope = scope
        self._used = used or Usage()
        self._unpriced = False
        self._lock = threading.Lock()

    @property
    def used(self) -> Usage:
        """What has been spent; a request of unknown price counts with its tokens alone."""
        return self._used

    def spend(self, usage: Usage) -> None:
        """Count what a request has used."""
        with self._lock:
            if usage.requests and usage.cost is None:
                self._unpriced = True
            priced = self._used.cost, usage.cost
            total = self._used + usage
            known = sum(cost for cost in priced if cost is not None)
            self._used = replace(total, cost=None if priced == (None, None) else known)

    def refusal(self, prompt: int, *, requests: int = 1) -> Refusal | None:
        """Return why so many requests with prompts of that many tokens do not fit, or None."""
        used, limits = self.used, self.limits
        tokens = used.input + used.output
        ahead = requests * (prompt + ANSWER_TOKENS)
        if limits.tokens is not None and tokens + ahead > limits.tokens:
            limit = f"{limits.tokens:,} tokens for {self.scope}"
            return Refusal(limit, f"{tokens:,} used, and the prompt has about {prompt:,}")
        if limits.cost is None:
            return None
        limit = f"{dollars(limits.cost)} for {self.scope}"
        if self._unpriced:
            return Refusal(limit, "what this model costs is not known; limit its tokens instead")
        spent = used.cost or 0.0
        forecast = spent / tokens * ahead if tokens else 0.0
        if spent >= limits.cost or spent + forecast > limits.cost:
            return Refusal(limit, f"{dollars(spent)} spent, and another request would not fit")
        return None


def refusal(budgets: Iterable[Budget], prompt: int, *, requests: int = 1) -> Refusal | None:
    """Return why the first of some budgets forbids requests, None if none does."""
    found = (budget.refusal(prompt, requests=requests) for budget in budgets)
    return next((each for each in found if each is not None), None)


def dollars(amount: float) -> str:
    """Return a sum of money: dollars and cents, tenths of a cent, or below that two digits."""
    if amount >= 1 or amount == 0:
        return f"${amount:,.2f}"
    if amount >= _CENT:
        text = f"{amount:.3f}"
        return f"${text.removesuffix('0')}"
    return f"${float(f'{amount:.2g}'):.10f}".rstrip("0")


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
