"""How processes that share a file take turns: a lock of writers, a queue, and patience with others.

The lock lets one process exchange the file while none of the others writes. Writers hold it
together, each for one transaction; whoever replaces a damaged file holds it alone. It is a `flock`
on `NAME.lock` beside the file, which stays: removing it would let two holders lock two different
files. The system frees it when its holder dies. Where there is no `flock` (Windows) nobody can
rename a file that another process has open, so nothing is lost without it.

SQLite keeps no queue: whoever has just written is the first to write again, and who waits asks in
vain. So writers line up for a second `flock`, on the directory, which needs no file: the system
wakes the one that has waited longest. Nothing but order hangs on it. A process that does not line
up (an earlier version, another program) is waited for as before, by asking SQLite again.
"""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from hermes_nb.core.files import NO_LOCKS
from hermes_nb.core.threads import hurried

T = TypeVar("T")

POLL = (0.002, 0.020)
"""Pause between two attempts to take the lock, in seconds; random, so that waiting processes take
turns."""
SOON, LATER = (0.001, 0.010), (0.020, 0.150)
"""The same for a transaction, at first and from then on: random, lest waiting kernels do not march
in step. A transaction takes a few milliseconds."""
QUEUE_SECONDS = 0.1
"""After how long who waits asks twice as often as at first: else some wait very long by chance."""
LATER_SECONDS = 2.5
"""How long a wait counts as one for writers like oneself, whose turns are short."""
LOOK_SECONDS = 0.1
"""How often who waits in the queue looks whether the user wants to stop."""


def primary(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, 0 where the error has none."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def patiently(action: Callable[..., T], *arguments: object, patience: float) -> T:
    """Return what `action` does, repeated for a while as long as another process is in the way."""
    begun = waited = 0.0
    while True:
        try:
            return action(*arguments)
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


class WriterQueue:
    """One process's end of the queue of writers; not for two threads at once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place: _Place | None = None

    def take(self, patience: float) -> None:
        """Wait for one's turn; `free` has to follow. Raise TimeoutError after so many seconds."""
        if self._place is None:
            self._place = _Place(self._path.parent)
            self._leaving = weakref.finalize(self, self._place.leave)
        if _attempt(self._place.handle, exclusive=True):
            return
        come = False
        try:
            come = self._place.wait(patience)
        finally:
            if not come:  # also where the wait was broken off: the place would be had for good
                self.close()
        if not come:
            raise TimeoutError(f"{self._path.name!r} is locked: other processes write to it")

    def free(self) -> None:
        """Let the next one have its turn."""
        if self._place is not None:
            _release(self._place.handle)

    def close(self) -> None:
        """Leave the queue; the next use lines up again."""
        if self._place is not None:
            self._place = None
            self._leaving()


class _Place:
    """A place in the queue, and the thread that waits there: what the system keeps in order.

    A thread that waits cannot be woken, so whoever has no more patience leaves it the place.
    """

    def __init__(self, directory: Path) -> None:
        self.handle = _open_directory(directory)
        self._wanted, self._given = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._left = False

    def wait(self, patience: float) -> bool:
        """Say whether one's turn has come within so many seconds, unless the user wants to stop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name="hermes-queue", daemon=True)
            self._thread.start()
        self._wanted.release()
        end = time.monotonic() + patience
        while not self._given.acquire(timeout=min(LOOK_SECONDS, patience)):
            if time.monotonic() >= end or hurried():
                return False
        return True

    def leave(self) -> None:
        self._left = True
        if self._thread is None:
            os.close(self.handle)
        else:
            self._wanted.release()

    def _serve(self) -> None:
        while True:
            self._wanted.acquire()
            if not self._left:
                _wait(self.handle)
            if self._left:
                _release(self.handle)  # closing would not do: a fork may have it open too
                os.close(self.handle)
                return
            self._given.release()


if sys.platform == "win32":

    def has_locks(directory: Path) -> bool:  # noqa: ARG001
        """Say that files can be locked."""
        return True

    def _attempt(handle: int, *, exclusive: bool) -> bool:  # noqa: ARG001
        return True

    def _wait(handle: int) -> None:
        pass

    def _release(handle: int) -> None:
        pass

    def _open_directory(directory: Path) -> int:  # noqa: ARG001
        return os.open(os.devnull, os.O_RDONLY)

else:
    import fcntl

    def has_locks(directory: Path) -> bool:
        """Say whether files in a directory can be locked the way SQLite does it; raise OSError.

        SQLite answers that they are locked, for as long as it is asked, where they cannot be.
        """
        with tempfile.TemporaryFile(dir=directory) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                return error.errno not in NO_LOCKS
        return True

    def _attempt(handle: int, *, exclusive: bool) -> bool:
        return _flock(handle, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | fcntl.LOCK_NB)

    def _wait(handle: int) -> None:
        _flock(handle, fcntl.LOCK_EX)

    def _release(handle: int) -> None:
        _flock(handle, fcntl.LOCK_UN)

    def _open_directory(directory: Path) -> int:
        return os.open(directory, os.O_RDONLY | os.O_CLOEXEC)

    def _flock(handle: int, operation: int) -> bool:
        try:
            fcntl.flock(handle, operation)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        return True
