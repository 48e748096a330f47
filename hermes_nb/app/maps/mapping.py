"""A map from its options to its results: who does it, what it may spend, and what it came to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_nb.app.jobs import Jobs
from hermes_nb.app.maps.executors import open_crew
from hermes_nb.app.maps.fanout import Fanout
from hermes_nb.app.maps.inputs import Input
from hermes_nb.app.maps.items import Item, Plan, progress_of
from hermes_nb.app.maps.table import Rows, rows_of, table_markdown, table_of
from hermes_nb.app.spending import together
from hermes_nb.core.budget import Budget
from hermes_nb.core.claims import ClaimLedger
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import ChatModel, SessionStore


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a map came to, input by input."""

    items: tuple[Item, ...]

    @property
    def rows(self) -> Rows:
        """A dict for each input: input, status, answer, error, tokens, cost, seconds."""
        return rows_of(self.items)

    @property
    def table(self) -> Any:  # noqa: ANN401 - pandas is not a dependency
        """The rows as a DataFrame if pandas has been imported already, else as they are."""
        return table_of(self.items)

    @property
    def usage(self) -> Usage:
        """What this run used; what was kept from an earlier one is not in it."""
        return together(item.usage for item in self.items if not item.kept)

    @property
    def cost(self) -> float | None:
        """The price in US dollars as far as it is known, None where nothing of it is."""
        return self.usage.cost

    @property
    def open(self) -> tuple[Item, ...]:
        """The items without an answer."""
        return tuple(item for item in self.items if item.status != "done")

    def __str__(self) -> str:
        """Return how far it came."""
        return progress_of(self.items)

    def _repr_markdown_(self) -> str:
        return f"{table_markdown(self.rows)}\n\n<sub>{self}</sub>"


async def run_map(  # noqa: PLR0913 - what a map needs, from two kinds of callers
    plan: Plan,
    inputs: Sequence[Input],
    *,
    executor: str,
    model: ChatModel,
    store: SessionStore,
    budgets: Sequence[Budget],
    jobs: Jobs,
    spent: Callable[[Usage], None],
    begun: Callable[[Fanout], Callable[[], None]] = lambda _: lambda: None,
) -> Mapped:
    """Run a map and return its results; raise `ConfigError` for what cannot begin.

    `begun(fanout)` is called before the first task; what it returns is called at each change.
    """
    if not isinstance(store, ClaimLedger):
        message = "this session store keeps no ledger, so that tasks might run twice"
        raise ConfigError(message)
    crew = await open_crew(executor)
    watching: list[Callable[[], None]] = []

    def moved() -> None:
        for watch in watching:
            watch()

    try:
        fanout = Fanout(
            plan,
            inputs,
            model=model,
            ledger=store,
            crew=crew,
            budgets=budgets,
            jobs=jobs,
            spent=spent,
            moved=moved,
        )
        watching.append(begun(fanout))
        return Mapped(tuple(await fanout.run()))
    finally:
        if crew is not None:
            crew.close()
