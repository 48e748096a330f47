"""Background jobs in this kernel or script: child agents and maps.

Each job is an asyncio task that is listed while it runs. Any thread can stop it, without stopping
the code that waits for it. Parts of a job run in parallel up to a limit and share budgets. `Jobs`
is thread-safe.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Literal, TypeVar

from hermes_nb.core.budget import Pool, Portion, portions
from hermes_nb.core.calls import STOP_GRACE
from hermes_nb.core.text import one_line

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
JobKind = Literal["child", "map"]
TITLE = 120
"""Maximum length of a job's title, in characters."""
NEWS = 0.25
"""Seconds between checks for new progress in a job; listeners are notified of it."""


class Job:
    """A running job; `stop` asks it to end and returns immediately, on any thread.

    Args:
        number: the job's number, which is also its id
        kind: the kind of job
        title: the title, shortened to `TITLE` characters
        stop: asks the job to end; called at most once, on any thread
        doing: returns the job's current activity in a few words
    """

    def __init__(
        self,
        number: int,
        kind: JobKind,
        title: str,
        stop: Callable[[], None],
        doing: Callable[[], str],
    ) -> None:
        self.id = str(number)
        self.kind = kind
        self.title = one_line(title, TITLE)
        self.stopping = False  # whether it was asked to end
        self.started = time.monotonic()  # seconds
        self._stop = stop
        self._doing = doing

    @property
    def doing(self) -> str:
        """A short description of its current activity."""
        return self._doing()

    @property
    def seconds(self) -> float:
        """Seconds since it started."""
        return time.monotonic() - self.started

    def stop(self) -> None:
        """Ask the job to end, on any thread; further calls do nothing."""
        if not self.stopping:
            self.stopping = True
            self._stop()


class Jobs:
    """The running jobs, oldest first."""

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
        """Return the job with that id, or None if it ended or never existed."""
        return self._jobs.get(job_id)

    async def run(
        self,
        kind: JobKind,
        title: str,
        work: Coroutine[Any, Any, Result],
        *,
        doing: Callable[[], str],
    ) -> Result | None:
        """Return the result of `work`, or None if its job was stopped; raise its exceptions.

        Args:
            kind: the kind of job
            title: the job's title
            work: the coroutine to run as a task
            doing: returns the job's current activity in a few words
        """
        loop = asyncio.get_running_loop()
        task = loop.create_task(work)

        def stop() -> None:
            with suppress(RuntimeError):  # the loop is closed, so the task has ended
                loop.call_soon_threadsafe(task.cancel)

        with self.running(kind, title, stop, doing) as job:
            told = ""
            try:
                while not task.done():
                    if job.doing != told:
                        told = job.doing
                        self._notify_listeners()
                    await asyncio.wait([task], timeout=NEWS)
            finally:
                await _end([task])
        return None if task.cancelled() else task.result()

    @contextmanager
    def running(
        self,
        kind: JobKind,
        title: str,
        stop: Callable[[], None],
        doing: Callable[[], str] = str,
    ) -> Iterator[Job]:
        """List a job while the `with` block runs.

        Args:
            kind: the kind of job
            title: the job's title
            stop: asks the job to end; called on any thread
            doing: returns the job's current activity in a few words
        """
        with self._lock:
            job = Job(next(self._numbers), kind, title, stop, doing)
            self._jobs[job.id] = job
        self._notify_listeners()
        try:
            yield job
        finally:
            with self._lock:
                del self._jobs[job.id]
            self._notify_listeners()

    def listen(self, listener: Callable[[], None]) -> Callable[[], None]:
        """Call `listener` after each change, on any thread; return a function that removes it."""
        with self._lock:
            self._listeners.append(listener)

        def end() -> None:
            with self._lock, suppress(ValueError):
                self._listeners.remove(listener)

        return end

    def _notify_listeners(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            try:
                listener()
            except Exception:  # a listener must not fail the job
                logger.exception("a listener for background jobs failed")


async def side_by_side(
    slots: int, count: int, work: Callable[[int], Awaitable[Result]]
) -> list[Result]:
    """Return the results of `work(0)`, `work(1)`, …, with at most `slots` of them in parallel.

    If one raises an exception or is cancelled, stop all others, wait for their cleanup, and
    re-raise.
    """
    numbers = iter(range(count))
    results: dict[int, Result] = {}

    async def slot() -> None:
        for number in numbers:  # shared by all slots
            results[number] = await work(number)

    tasks = [asyncio.create_task(slot()) for _ in range(min(slots, count))]
    try:
        await asyncio.gather(*tasks)
    finally:
        await _end(tasks)
    return [results[number] for number in range(count)]


@contextmanager
def sharing(shared: Iterable[Pool]) -> Iterator[list[Portion]]:
    """Yield a portion of each budget; unspent reservations are released at the end."""
    mine = portions(list(shared))
    try:
        yield mine
    finally:
        for budget in mine:
            budget.release()


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    """Cancel the tasks that are still running, and wait for their cleanup."""
    running = [task for task in tasks if not task.done()]
    for task in running:
        if not task.cancelling():  # a second cancellation would interrupt its cleanup
            task.cancel()
    if running:
        await asyncio.wait(running, timeout=2 * STOP_GRACE)
