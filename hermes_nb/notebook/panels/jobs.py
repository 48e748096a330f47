"""What runs beside the conversation, a line and a stop button each; nothing when nothing does."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from hermes_nb.notebook.panels.parts import Act, Line, Listing, write
from hermes_nb.notebook.panels.style import dim, heading, shown
from hermes_nb.notebook.panels.tab import Place

NAMES = {"child": "child agent", "map": "map"}
INTERVAL = 0.5
"""Seconds between two updates when something changed."""
TICK = 1.0
"""Seconds between two updates in any case, so that clocks run."""


@dataclass(frozen=True, slots=True)
class Running:
    """A job as it was when it was looked at."""

    id: str
    kind: str
    title: str
    doing: str
    seconds: int
    stopping: bool


class JobsPart:
    """The jobs of a kernel, as a part of a tab. It updates itself: to read them costs nothing."""

    def __init__(self, place: Place) -> None:
        self._place = place
        kit = place.kit
        self._head = kit.markup()
        self._list = Listing[Running](kit, self._line, moved=self.redraw)
        self.widget = kit.box()
        self._listed = (self._head, self._list.widget)
        self._timer: asyncio.TimerHandle | None = None
        self._soon = False
        self._end = place.resident.jobs.listen(self._changed)

    def redraw(self) -> None:
        """Show what runs now; from any thread."""
        self._place.actions.call(self._draw)

    def read(self) -> tuple[Running, ...]:
        """Return what runs."""
        return tuple(
            Running(job.id, job.kind, job.title, job.doing, int(job.seconds), job.stopping)
            for job in self._place.resident.jobs
        )

    def _draw(self) -> None:
        self._wait(None)
        if self.widget.comm is None:  # its panel is closed
            self._end()
            return
        running = self.read()
        write(self.widget, self._listed if running else (), "children")
        if running:
            write(self._head, heading("Running", str(len(running))))
            self._list.show(running)
            self._wait(TICK)

    def _changed(self) -> None:
        self._place.actions.call(self._hurry)

    def _hurry(self) -> None:
        """Draw when the interval is over, however much happens until then."""
        if not self._soon:
            self._wait(INTERVAL)
            self._soon = True

    def _wait(self, seconds: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._soon = None, False
        if seconds is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds, self._draw)

    def _line(self, running: Running) -> Line:
        doing = dim(shown(running.doing, 90)) if running.doing else ""
        act = Act(
            label="stop",
            tip=f"stop this {NAMES[running.kind]}; the rest goes on",
            do=self._place.doing(lambda: self._stop(running.id)),
            off="it is being stopped" if running.stopping else "",
        )
        foot = f"{NAMES[running.kind]} · {running.seconds} s"
        text = f"◌ {shown(running.title, 90)}"
        return Line(key=running.id, text=f"{text} {doing}", foot=foot, acts=(act,))

    def _stop(self, job_id: str) -> str:
        job = self._place.resident.jobs.get(job_id)
        if job is None:
            return "It is over already."
        job.stop()
        return "Stopping; what was done until now is kept."
