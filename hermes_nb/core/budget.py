"""Budgets: limits on cost and tokens, checked before each model request.

The check is a forecast from the prompt's size and the average price per token so far. A request
that costs more than its forecast exceeds the limit, and the next request is refused. Parallel
agents can share a budget: the forecast of each running request is reserved until its usage is
known.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from hermes_nb.core.messages import Usage

_CENT = 0.01
ANSWER_TOKENS = 400
"""Tokens that a forecast assumes for an answer: a long paragraph, or a call and its arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper limits for spending."""

    cost: float | None = None
    """In US dollars; None for no limit."""
    tokens: int | None = None
    """Prompt and completion tokens; None for no limit."""

    def __bool__(self) -> bool:
        """Return whether there is any limit."""
        return self.cost is not None or self.tokens is not None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a budget refuses a request."""

    limit: str
    """The exceeded limit, such as `$0.05 for this turn`."""
    used: str
    """The usage so far, or another reason."""

    def __str__(self) -> str:
        """Return both on one line."""
        return f"the budget is {self.limit}: {self.used}"


class Budget:
    """Limits and the usage that counts against them; thread-safe.

    Args:
        limits: The limits.
        scope: Names the limits in messages, for example `this turn`.
        used: Usage so far.
    """

    def __init__(self, limits: Limits, *, scope: str, used: Usage | None = None) -> None:
        self.limits = limits
        self.scope = scope
        self._used = used or Usage()
        self._unpriced = False
        self._lock = threading.Lock()

    @property
    def used(self) -> Usage:
        """Usage so far. For requests whose price is unknown, only the tokens are counted."""
        return self._used

    def spend(self, usage: Usage) -> None:
        """Add a request's usage."""
        with self._lock:
            if usage.requests and usage.cost is None:
                self._unpriced = True
            priced = self._used.cost, usage.cost
            total = self._used + usage
            known = sum(cost for cost in priced if cost is not None)
            self._used = replace(total, cost=None if priced == (None, None) else known)

    def recount(self, used: Usage) -> None:
        """Replace the usage so far by a newer count, of other processes too."""
        with self._lock:
            self._used, self._unpriced = used, False

    def refusal(self, prompt: int, *, requests: int = 1) -> Refusal | None:
        """Return why `requests` prompts of `prompt` tokens each exceed the budget, or None."""
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
    """Return the refusal of the first budget that has no room, or None."""
    found = (budget.refusal(prompt, requests=requests) for budget in budgets)
    return next((each for each in found if each is not None), None)


def dollars(amount: float) -> str:
    """Format US dollars: to the cent from $1, to 0.1 cent from 1 cent, else with two digits."""
    if amount >= 1 or amount == 0:
        return f"${amount:,.2f}"
    if amount >= _CENT:
        text = f"{amount:.3f}"
        return f"${text.removesuffix('0')}"
    return f"${float(f'{amount:.2g}'):.10f}".rstrip("0")


class Pool:
    """A budget shared by several agents, and the tokens reserved for their running requests."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self.ahead: dict[int, int] = {}
        self.lock = threading.Lock()


class Portion(Budget):
    """One agent's view of a shared budget."""

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool.budget.limits, scope=pool.budget.scope)
        self._pool = pool

    @property
    def used(self) -> Usage:
        """Combined usage of all agents."""
        return self._pool.budget.used

    def spend(self, usage: Usage) -> None:
        """Add the usage of one of this agent's requests, and free its reservation."""
        with self._pool.lock:
            self._pool.ahead.pop(id(self), None)
            self._pool.budget.spend(usage)

    def refusal(self, prompt: int, *, requests: int = 1) -> Refusal | None:
        """Return the reason a request doesn't fit, or None after reserving its tokens."""
        mine = requests * (prompt + ANSWER_TOKENS)
        with self._pool.lock:
            others = sum(n for whose, n in self._pool.ahead.items() if whose != id(self))
            refused = self._pool.budget.refusal(mine + others - ANSWER_TOKENS)
            if refused is None:
                self._pool.ahead[id(self)] = prompt + ANSWER_TOKENS
            return refused

    def release(self) -> None:
        """Free this agent's reservation once it is done."""
        with self._pool.lock:
            self._pool.ahead.pop(id(self), None)


def pools(budgets: Iterable[Budget]) -> list[Pool]:
    """Return a shared pool for each budget."""
    return [Pool(budget) for budget in budgets]


def portions(shared: Sequence[Pool]) -> list[Portion]:
    """Return one agent's portion of each pool."""
    return [Portion(pool) for pool in shared]
