"""What the sessions of one kernel are given, made when it is first needed and anew when asked for.

Tools of the user's belong to it, and the reviews, which work with the same tools and memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from hermes_nb.agent.config import Settings
from hermes_nb.agent.reviews import Reviews
from hermes_nb.agent.runtime import Workshop
from hermes_nb.agent.session import Equipment
from hermes_nb.core.events import BackgroundEvent
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.notebook.models import ModelsInUse

MINE = "mine"
"""The toolset of tools that the user hands over without naming one."""


class Outfit:
    """Workshop, equipment and reviews over the models in use.

    `make(given)` builds a workshop with the user's tools; `emit` hears of reviews.
    """

    def __init__(
        self,
        models: ModelsInUse,
        *,
        make: Callable[[Toolset], Workshop],
        emit: Callable[[BackgroundEvent], None],
    ) -> None:
        self._models = models
        self._make = make
        self._emit = emit
        self._given = Toolset()
        self._workshop: Workshop | None = None
        self._equipped: Equipment | None = None
        self._reviews: Reviews | None = None

    @property
    def workshop(self) -> Workshop:
        """What equips sessions, with everything Hermes knows here."""
        if self._workshop is None:
            self._workshop = self._make(self._given)
        return self._workshop

    @property
    def made(self) -> bool:
        """Whether tools and knowledge have been made, so that asking for them costs little."""
        return self._equipped is not None

    @property
    def reviews(self) -> Reviews:
        """What looks back after turns."""
        if self._reviews is None:
            self._reviews = Reviews(self.workshop, model=self._models.another, emit=self._emit)
        return self._reviews

    def equipment(self, settings: Settings) -> Equipment:
        """Return what a session is given now; raise `ConfigError` where there is no model."""
        model = self._models.main
        if self._equipped is None or self._equipped.model is not model:
            self._equipped = self.workshop.equipment(model, auxiliary=self._models.auxiliary)
        budget = settings.budget.without_cost() if self._models.runs_here else settings.budget
        return replace(self._equipped, max_requests=settings.max_requests, budget=budget)

    def give(self, tools: Sequence[Tool]) -> None:
        """Add tools of the user's, or put them in the place of earlier ones of their names."""
        mine = {tool.name: tool for tool in [*self._given, *tools]}
        self._given = Toolset(replace(each, toolset=each.toolset or MINE) for each in mine.values())
        self.renew()

    def change_models(self) -> None:
        """Have the models made anew, and with them the equipment."""
        self._models.renew()
        self._equipped = None

    def renew(self) -> None:
        """Have everything that was made from the settings made anew when it is next needed."""
        self.change_models()
        self.close()
        self._workshop = self._reviews = None

    def close(self) -> None:
        """Stop what runs in the background."""
        if self._reviews is not None:
            self._reviews.close()
