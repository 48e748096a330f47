"""Which children of a turn's calls still run: a fold that can say how they end with the turn."""

from __future__ import annotations

import time

from hermes_nb.core.events import ChildFinished, ChildProgress, ChildStarted, Event
from hermes_nb.core.messages import Usage

Child = tuple[str, int]
"""A child's call and its number there."""


class OpenChildren:
    """Children that have started and not finished, and what each has used so far."""

    def __init__(self) -> None:
        self._open: dict[Child, tuple[float, Usage]] = {}

    def observe(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case ChildStarted(call_id, number):
                self._open[call_id, number] = time.monotonic(), Usage()
            case ChildProgress(call_id, number, _, usage) if (call_id, number) in self._open:
                self._open[call_id, number] = self._open[call_id, number][0], usage
            case ChildFinished(call_id, number):
                self._open.pop((call_id, number), None)
            case _:
                pass

    def closing(self) -> list[ChildFinished]:
        """Return the events that end the children that are still open."""
        now = time.monotonic()
        return [
            ChildFinished(call_id, number, "stopped", now - started, usage)
            for (call_id, number), (started, usage) in self._open.items()
        ]
