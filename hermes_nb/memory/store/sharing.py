"""The lock that lets one process exchange the database file while none of the others writes.

Writers hold it together, each for one transaction; whoever replaces a damaged file holds it alone.
It is a `flock` on `NAME.lock` beside the file, which stays: removing it would let two holders lock
two different files. The system frees it when its holder dies. Where there is no `flock` (Windows)
nobody can rename a file that another process has open, so nothing is lost without it.
"""

from __future__ import annotations

import os
import random
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLL = (0.002, 0.020)
"""Pause between two attempts, in seconds; random, so that waiting processes take turns."""


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

    def take(self, timeout: float) -> None:
        """Begin to hold the lock as `shared` does; `free` has to follow."""
        self._take(exclusive=False, timeout=timeout)

    def free(self) -> None:
        """Let go of the lock, if it is held."""
        if self._handle >= 0:
            _release(self._handle)

    @contextmanager
    def exclusive(self, timeout: float) -> Iterator[None]:
        """Hold the lock alone; raise TimeoutError after `timeout` seconds."""
        self._take(exclusive=True, timeout=timeout)
        try:
            yield
        finally:
            self.free()

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        if self._handle >= 0:
            self._closing()
            self._handle = -1

    def _take(self, *, exclusive: bool, timeout: float) -> None:
        if self._handle < 0:
            flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
            self._handle = os.open(self.path, flags, 0o600)
            self._closing = weakref.finalize(self, os.close, self._handle)
        if _attempt(self._handle, exclusive=exclusive):
            return
        end = time.monotonic() + timeout
        while not _attempt(self._handle, exclusive=exclusive):
            if time.monotonic() >= end:
                message = f"{self.path.name!r} is held by another process; it is tried again later"
                raise TimeoutError(message)
            time.sleep(random.uniform(*POLL))  # noqa: S311 - jitter, not a secret


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
        kind = fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
        return True

    def _release(handle: int) -> None:
        try:
            fcntl.flock(handle, fcntl.LOCK_UN)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                raise
