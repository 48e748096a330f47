"""How processes that share a file take turns: a lock for writers, and waiting for SQLite's own.

The lock lets one process exchange the file while none of the others writes. Writers hold it
together, each for one transaction; whoever replaces a damaged file holds it alone. It is a `flock`
on `NAME.lock` beside the file, which stays: removing it would let two holders lock two different
files. The system frees it when its holder dies. Where there is no `flock` (Windows) nobody can
rename a file that another process has open, so nothing is lost without it.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hermes_nb.core.threads import hurried
from hermes_nb.storage.opening import primary

T = TypeVar("T")

POLL = (0.002, 0.020)
"""Pause between two attempts to take the lock, in seconds; random, so that waiting processes take
turns."""
SOON, LATER = (0.001, 0.010), (0.020, 0.150)
"""The same for a transaction, at first and from then on: random, lest waiting kernels do not march
in step. A transaction takes a few milliseconds, and SQLite keeps no queue: who asks seldom waits
long beside those who write all the time."""
QUEUE_SECONDS = 0.1
"""After how long who waits asks twice as often as at first: else some wait very long by chance."""
LATER_SECONDS = 2.5
"""How long a wait counts as one for writers like oneself, whose turns are short."""


def patiently(action: Callable[..., T], *arguments: object, patience: float) -> tuple[T, bool]:
    """Return what `action` does, repeated for a while as long as another process is in the way.

    The second value says whether one was.
    """
    begun = waited = 0.0
    while True:
        try:
            return action(*arguments), begun > 0
        except sqlite3.OperationalError as error:
            begun = begun or time.monotonic()
            waited = time.monotonic() - begun
            if primary(error) != sqlite3.SQLITE_BUSY or waited > patience or hurried():
                raise
        least, most = SOON
        soon = least, max(4 * least, most * (1 - waited / QUEUE_SECONDS))
        pause(soon if waited < LATER_SECONDS else LATER)


def pause(seconds: tuple[float, float]) -> None:
    """Sleep for some time between the two."""
    time.sleep(random.uniform(*seconds))  # noqa: S311 - jitter, not a secret


class SharedLock:
    """One process's end of the lock; not for two threads at once."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        self._handle = -1

    @contextmanager
    def shared(self, timeout: float) -> Iterator[None]:
        """Hold the lock beside other writers; raise TimeoutError after `timeout` seconds."""
        self.take(timeout)
        try:
            yield
        finally:
            self.free()

    @contextmanager
    def exclusive(self, timeout: float) -> Iterator[None]:
        """Hold the lock alone; raise TimeoutError after `timeout` seconds."""
        self.take(timeout, exclusive=True)
        try:
            yield
        finally:
            self.free()

    def take(self, timeout: float, *, exclusive: bool = False) -> None:
        """Begin to hold the lock as `shared` and `exclusive` do; `free` has to follow."""
        if self._handle < 0:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._handle = os.open(self.path, flags, 0o600)
            self._closing = weakref.finalize(self, os.close, self._handle)
        end: float | None = None
        while not _attempt(self._handle, exclusive=exclusive):
            end = end or time.monotonic() + timeout
            if time.monotonic() >= end:
                message = f"{self.path.name!r} is held by another process; it is tried again later"
                raise TimeoutError(message)
            pause(POLL)

    def free(self) -> None:
        """Let go of the lock, if it is held."""
        if self._handle >= 0:
            _release(self._handle)

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._handle >= 0:
            self._closing()
            self._handle = -1


if sys.platform == "win32":

    def _attempt(handle: int, *, exclusive: bool) -> bool:  # noqa: ARG001
        return True

    def _release(handle: int) -> None:
        pass

else:
    import errno
    import fcntl

    NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
    """What file systems without locks answer: there the database itself cannot be shared."""

    def _attempt(handle: int, *, exclusive: bool) -> bool:
        return _flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)

    def _release(handle: int) -> None:
        _flock(handle, fcntl.LOCK_UN)

    def _flock(handle: int, operation: int) -> bool:
        try:
            fcntl.flock(handle, operation)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        return True
