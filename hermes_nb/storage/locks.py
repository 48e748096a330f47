"""Coordinate processes that share a database file: a shared lock, a writer queue, and retries.

The lock lets one process replace a damaged file while no other process writes. Writers hold it in
shared mode for a transaction, and a replacement holds it exclusively. It is a `flock` on
`NAME.lock` next to the file. The lock file is never removed: otherwise, two processes could lock
two different files. The system frees the lock when its holder dies. Windows has no `flock`, but an
open file can't be renamed there, so the lock isn't needed.

SQLite has no queue: a process that has just written is likely to get the next lock as well, and
others starve. So writers queue for a second `flock`, on the directory, where the system wakes the
longest-waiting process first. The queue only ensures fairness. A process that doesn't use it (an
earlier version, another program) is handled by retrying, as SQLite's lock requires.
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
"""Range of the pause between attempts to take the lock, in seconds. It is random so that waiting
processes alternate."""
SOON, LATER = (0.001, 0.010), (0.020, 0.150)
"""Pauses between attempts to start a transaction, as ranges in seconds: at first, and later. They
are random so that waiting kernels don't synchronise. A transaction takes a few milliseconds."""
QUEUE_SECONDS = 0.1
"""Waiting time after which attempts are twice as frequent; otherwise some processes wait very
long."""
LATER_SECONDS = 2.5
"""Waiting time in seconds after which the other process is assumed to be in a long transaction, and
attempts become rare."""
LOOK_SECONDS = 0.1
"""Seconds between a queued process's checks for whether the user wants to stop."""


def primary(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, or 0 if the error has none."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def retry_while_locked(action: Callable[..., T], *arguments: object, patience: float) -> T:
    """Return the result of `action`; retry it for `patience` seconds while the file is locked."""
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
    """Sleep for a random time in a range, in seconds."""
    time.sleep(random.uniform(*seconds))  # noqa: S311 - jitter, not a secret


class SharedLock:
    """A process's handle to the lock; not thread-safe."""

    def __init__(self, path: Path) -> None:
        self.path = path.with_name(path.name + ".lock")
        self._handle = -1

    @contextmanager
    def shared(self, timeout: float) -> Iterator[None]:
        """Hold the lock in shared mode; raise TimeoutError after `timeout` seconds."""
        self.take(timeout)
        try:
            yield
        finally:
            self.free()

    @contextmanager
    def exclusive(self, timeout: float) -> Iterator[None]:
        """Hold the lock exclusively; raise TimeoutError after `timeout` seconds."""
        self.take(timeout, exclusive=True)
        try:
            yield
        finally:
            self.free()

    def take(self, timeout: float, *, exclusive: bool = False) -> None:
        """Acquire the lock; the caller must call `free`.

        Raises TimeoutError after `timeout` seconds.
        """
        if self._handle < 0:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._handle = os.open(self.path, flags, 0o600)
            self._closing = weakref.finalize(self, os.close, self._handle)
        end: float | None = None
        while not _attempt(self._handle, exclusive=exclusive):
            end = end or time.monotonic() + timeout
            if time.monotonic() >= end:
                message = (
                    f"{self.path.name!r} is locked by another process; Hermes will try again later"
                )
                raise TimeoutError(message)
            pause(POLL)

    def free(self) -> None:
        """Release the lock, if it is held."""
        if self._handle >= 0:
            _release(self._handle)

    def close(self) -> None:
        """Close the lock file; the next use opens it again."""
        if self._handle >= 0:
            self._closing()
            self._handle = -1


class WriterQueue:
    """A process's handle to the writer queue; not thread-safe."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._place: _Place | None = None

    def take(self, patience: float) -> None:
        """Wait for this process's turn; the caller must call `free`.

        Raises TimeoutError after `patience` seconds.
        """
        if self._place is None:
            self._place = _Place(self._path.parent)
            self._leaving = weakref.finalize(self, self._place.leave)
        if _attempt(self._place.handle, exclusive=True):
            return
        come = False
        try:
            come = self._place.wait(patience)
        finally:
            if not come:  # also after an interrupt, or the place would never be released
                self.close()
        if not come:
            raise TimeoutError(f"{self._path.name!r} is locked: another process is writing to it")

    def free(self) -> None:
        """Pass the turn to the next process."""
        if self._place is not None:
            _release(self._place.handle)

    def close(self) -> None:
        """Leave the queue; the next use joins it again."""
        if self._place is not None:
            self._place = None
            self._leaving()


class _Place:
    """A place in the queue, with a thread that waits for it, since the system keeps the order.

    The thread can't be woken while it waits. On a timeout, the caller leaves it behind, and the
    thread releases the place when its turn comes.
    """

    def __init__(self, directory: Path) -> None:
        self.handle = _open_directory(directory)
        self._wanted, self._given = threading.Semaphore(0), threading.Semaphore(0)
        self._thread: threading.Thread | None = None
        self._left = False

    def wait(self, patience: float) -> bool:
        """Wait for our turn; return whether it came within `patience` seconds."""
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
                _release(self.handle)  # closing isn't enough: a fork may have the file open
                os.close(self.handle)
                return
            self._given.release()


if sys.platform == "win32":

    def has_locks(directory: Path) -> bool:  # noqa: ARG001
        """Return True: Windows always has file locks."""
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
        """Return whether SQLite can lock files in a directory; raise OSError.

        Without locks, SQLite keeps reporting that the files are locked.
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
