"""What runs in this kernel or script just now, besides the turn itself: children and maps.

Whoever starts something long enters it here and takes it out when it is over; commands and panels
list what is there and stop it. Safe between threads.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from hermes_nb.core.text import one_line

logger = logging.getLogger(__name__)

JobKind = Literal["child", "map"]
Stopping = Callable[[], None]
"""Asks for the end and returns at once, on any thread."""
TITLE = 120


class Job:
    """One thing that runs; `doing` is what it is at, in a few words."""

    def __init__(self, number: int, kind: JobKind, title: str, stop: Stopping) -> None:
        self.id = str(number)
        self.kind = kind
        self.title = one_line(title, TITLE)
        self.doing = ""
        self.stopping = False
        self.started = time.monotonic()
        self._stop = stop

    @property
    def seconds(self) -> float:
        """How long it has been running."""
        return time.monotonic() - self.started

    def stop(self) -> None:
        """Ask it to end, on any thread; a second call does nothing."""
        if not self.stopping:
            self.stopping = True
            self._stop()


class Jobs:
    """All that runs, the oldest first."""

    def __init__(self) -> None:
        self._jobs: dict[str, Job] = {}
        self._listeners: list[Callable[[], None]] = []
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def __iter__(self) -> Iterator[Job]:
        with self._lock:
            return iter(list(self._jobs.values()))

    def __len__(self) -> int:
        return len(self._jobs)

    def get(self, job_id: str) -> Job | None:
        """Return the job of that id, None if it is over or never was."""
        return self._jobs.get(job_id)

    @contextmanager
    def running(self, kind: JobKind, title: str, stop: Stopping) -> Iterator[Job]:
        """Have something listed for as long as this block runs."""
        with self._lock:
            job = Job(next(self._numbers), kind, title, stop)
            self._jobs[job.id] = job
        self._tell()
        try:
            yield job
        finally:
            with self._lock:
                del self._jobs[job.id]
            self._tell()

    def says(self, job: Job, doing: str) -> None:
        """Note what a job is at."""
        if doing != job.doing:
            job.doing = doing
            self._tell()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` at each change, on whatever thread it happens; return how to end that."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock:
                if listener in self._listeners:
                    self._listeners.remove(listener)

        return end

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener()
            except Exception:  # one that cannot show it is no reason for the job to fail
                logger.exception("a listener to jobs failed")
