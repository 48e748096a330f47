"""Notices that report job results to gateway chats."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from hermes_nb.core.protocols import Notice
from hermes_nb.extras.jobs.schedule import Schedule

LATEST = 1_000
"""Number of latest runs to consider."""


class JobsOutbox:
    """The `Outbox` for the results of jobs that name a chat in `Job.to`."""

    def __init__(self, home: Path, warn: Callable[[str], None]) -> None:
        self._schedule = Schedule(home, warn=warn)

    def notices(self) -> list[Notice]:
        if not self._schedule.folder.is_dir():  # do not create it
            return []
        chats = {job.id: job.to.partition(":") for job in self._schedule.jobs() if job.to}
        runs = self._schedule.runs(limit=LATEST) if chats else []
        return [
            Notice(
                id=f"job {run.job} {run.due:f}",
                adapter=chats[run.job][0],
                chat=chats[run.job][2],
                text=f"Job {run.job}: "
                + (run.text if run.state == "done" else f"✗ {run.came_to}: {run.text}"),
                at=run.ended,
            )
            for run in reversed(runs)
            if run.job in chats
        ]

    def close(self) -> None:
        self._schedule.close()
