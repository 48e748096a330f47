"""What the panel needs of a tab, and what a tab needs of the panel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from hermes_nb.core.events import BackgroundEvent, Event
from hermes_nb.notebook.kernel_agent import Resident
from hermes_nb.notebook.panels.acting import Actions, Work
from hermes_nb.notebook.panels.parts import Kit

A_TURN_RUNS = "a turn is running; wait for it or stop it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a tab lives: the agent it is about, what makes widgets, what runs its actions.

    `refresh()` reads and shows the tab again soon; it may be called from any thread.
    """

    resident: Resident
    kit: Kit
    actions: Actions
    refresh: Callable[[], None]

    def doing(self, work: Work) -> Callable[[], None]:
        """Return a click that does some work and shows its outcome."""
        return lambda: self.actions.do(work)

    @property
    def busy(self) -> str:
        """Why what changes the conversation cannot be done now, "" if it can."""
        return A_TURN_RUNS if self.resident.happenings.running else ""


class Tab(Protocol):
    """One tab. `read` may block and runs in a thread; everything else is on the kernel's loop."""

    title: str
    widget: Any

    def read(self) -> Any:  # noqa: ANN401 - what it reads is the tab's own affair
        """Return what there is to show now."""
        ...

    def show(self, found: Any) -> None:  # noqa: ANN401 - what `read` returned
        """Show it."""
        ...

    def concerned(self, event: Event | BackgroundEvent) -> bool:
        """Say whether an event changes what is shown."""
        ...
