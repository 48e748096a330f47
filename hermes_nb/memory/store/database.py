"""One database file for a whole process: its connection, its transactions, its repair.

A connection is opened by the first call that needs it, guarded by a lock, closed before a fork and
opened again when the file has been exchanged. Whoever waits for another process does so with
jitter and not for ever. What is damaged is mended or put aside, and the caller only has to try
again.
"""

from __future__ import annotations

import errno
import os
import random
import re
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from hermes_nb.core.errors import StoreError
from hermes_nb.core.files import make_private
from hermes_nb.core.threads import hurried
from hermes_nb.memory.search import indexing
from hermes_nb.memory.store import forks, quarantine
from hermes_nb.memory.store.migrations import VERSION, version_of
from hermes_nb.memory.store.opening import (
    Opened,
    identity,
    logs,
    lost_its_head,
    open_file,
    open_memory,
    open_read_only,
    primary,
    stamp,
)
from hermes_nb.memory.store.sharing import SharedLock

T = TypeVar("T")

BUSY_SECONDS = 5.0
"""How long a call waits for another process's transaction before it gives up; the turn that waits
keeps what it could not write and tries again later."""
SOON, LATER = (0.001, 0.010), (0.020, 0.150)
"""Pause between two attempts, in seconds, at first and from then on: random, lest waiting kernels
do not march in step. A transaction takes a few milliseconds, and SQLite keeps no queue: who asks
seldom waits long beside those who write all the time."""
QUEUE_SECONDS = 0.1
"""After how long who waits asks twice as often as at first: else some wait very long by chance."""
LATER_SECONDS = 2.5
"""How long a wait counts as one for writers like oneself, whose turns are short."""
SOON_SECONDS = 1.0
"""How long one that met others stands back for them: whoever has just written would always be the
first to ask again."""
REPAIRS = 3
"""How often in a row a call's errors are mended before it fails."""
REPAIR_SECONDS = 30.0
"""How long a process that met the damage too waits for the one that repairs it."""
FORK_SECONDS = 2.0
"""How long a fork waits for a transaction of another thread to end."""

_inherited: list[Opened] = []
"""Connections of a parent process: never used and never closed; either would touch its locks."""


class Database:
    """The connection of this process to the file at `path`; `:memory:` keeps nothing.

    `warn` is told, in one sentence, what the user has to know about the file. `read` and `write`
    raise sqlite3.Error and OSError as they come; hand the error to `repair` before giving up.
    `incidents` counts what may have cost messages that were durable, and `doubtful` says that
    somebody should look the file through: it was just opened, or was written by others.
    """

    def __init__(self, path: str, warn: Callable[[str], None]) -> None:
        self.path = path
        self._file = None if path == ":memory:" else Path(path)
        self._warn = warn
        self._lock = threading.RLock()
        self._opened: Opened | None = None
        self._pid = 0
        self._sharing = SharedLock(Path(path))
        self._paused = False
        self._orphan = False
        self._crowded_until = 0.0
        self._stamp: tuple[int, int] | None = None
        self.incidents = 0
        self.doubtful = False

    def read(self, action: Callable[[sqlite3.Connection], T]) -> T:
        """Return what `action` reads; it may be called again."""
        with self._lock:
            return _patiently(lambda: action(self._open().connection))[0]

    def write(
        self, action: Callable[[sqlite3.Connection], T], *, patience: float | None = None
    ) -> T:
        """Return what `action` does in one transaction; what it wrote is durable afterwards.

        Waits for other processes up to `patience` seconds, `BUSY_SECONDS` by default. Raises
        StoreError where nothing may be written.
        """
        with self._lock:
            try:
                connection = self._begin(patience)
                result = action(connection)
                # Our own tables have been checked by now; the index writes what it has collected.
                with indexing.at_work():
                    _patiently(connection.execute, "COMMIT")
                if self._stamp is not None:
                    self._stamp = stamp(self.path)
            finally:
                self._end()
        return result

    def vacuum(self) -> None:
        """Rewrite the file without what was deleted, and empty its log."""
        with self._lock:
            connection = self._writable(None)
            with self._sharing.shared(BUSY_SECONDS):
                _patiently(connection.execute, "VACUUM")
                until = time.monotonic() + BUSY_SECONDS
                while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    if time.monotonic() > until:
                        break
                    _pause(LATER)
            self._stamp = self._stamp and stamp(self.path)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        with self._lock:
            self._forget()
            self._sharing.close()

    def repair(self, error: sqlite3.Error, *, attempt: int) -> bool:
        """Do what there is to do about an error; say whether trying again may help.

        A file that fails the integrity check is put aside, and a store with what could be salvaged
        takes its place. One that passes is opened afresh at the first attempt, gets a new index at
        the second, and is put aside at the third: something about it is wrong all the same.
        """
        with self._lock:
            if self._file is None or (self._opened is not None and self._opened.refusal):
                return False
            if primary(error) in quarantine.DAMAGE or _schema_is_gone(error):
                return attempt < REPAIRS and self._mend(self._file, error, attempt)
            if primary(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR):
                self._forget()  # moved, made writable, mounted anew: the next one may be better
            return primary(error) == sqlite3.SQLITE_READONLY and attempt == 0

    def before_fork(self) -> None:
        """Close the file, so that a child does not inherit it; wait for a transaction to end."""
        self._paused = self._lock.acquire(timeout=FORK_SECONDS)
        if self._paused and self._file is not None:
            self._forget()
            self._sharing.close()

    def after_fork(self, *, child: bool) -> None:
        """Go on; a child that inherited an open file after all leaves the store alone."""
        if child:
            self._lock = threading.RLock()
            self._orphan = not self._paused and self._file is not None
        elif self._paused:
            self._lock.release()
        self._paused = False

    def _begin(self, patience: float | None) -> sqlite3.Connection:
        """Start a transaction on the file that is at `path` now, and take the shared lock.

        `_end` has to follow, whatever this raises.
        """
        deadline = time.monotonic() + (BUSY_SECONDS if patience is None else patience)
        while True:
            connection = self._writable(patience)
            connection.rollback()  # an interrupt may have come between a BEGIN and its transaction
            if time.monotonic() < self._crowded_until:
                _pause(SOON)
            if _patiently(connection.execute, "BEGIN IMMEDIATE", patience=patience)[1]:
                self._crowded_until = time.monotonic() + SOON_SECONDS
            if self._file is None:
                return connection
            try:
                # Not for long: who holds it alone may wait for the transaction just begun.
                self._sharing.take(SOON_SECONDS)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
            else:
                whole = not self._exchanged() and not quarantine.unfinished(self._file)
                if whole and not self._touched() and version_of(connection) == VERSION:
                    return connection
            self._end()
            self._leave()

    def _end(self) -> None:
        """Roll back what has not been committed, and free the lock."""
        try:
            if self._opened is not None:
                self._opened.connection.rollback()
        finally:
            self._sharing.free()

    def _writable(self, patience: float | None) -> sqlite3.Connection:
        """Return the connection; raise StoreError if nothing may be written.

        It may be one to a file that has been exchanged: `_begin` looks once it has its turn.
        """
        opened = self._opened
        if opened is None or self._pid != os.getpid():
            opened = _patiently(self._open, patience=patience)[0]
        if opened.refusal:
            self._forget()  # it may have become writable
            opened = _patiently(self._open, patience=patience)[0]
        if opened.refusal:
            message = f"session store {self.path}: {opened.refusal}"
            raise StoreError(message)
        return opened.connection

    def _open(self) -> Opened:
        """Return the connection, made anew if the file is another one than it was."""
        inherited = self._opened is not None and self._pid != os.getpid()
        if self._orphan or (inherited and self._file is not None):
            # Forked behind Python's back: SQLite's bookkeeping of locks is the parent's.
            self._orphan = True
            self._forget()
            message = f"session store {self.path}: not available in a process forked from its user"
            raise StoreError(message)
        if self._opened is not None and self._file is not None and self._exchanged():
            self._leave()
        if self._opened is None:
            self._opened = open_memory() if self._file is None else self._open_file(self._file)
            self._pid = os.getpid()
            forks.watch(self)
        return self._opened

    def _open_file(self, file: Path) -> Opened:
        try:
            make_private(file.parent)
            if quarantine.unfinished(file):
                with self._sharing.exclusive(REPAIR_SECONDS):
                    self._finish(file)
            # Opening may write: a new schema, a new log.
            with self._sharing.shared(BUSY_SECONDS):
                return open_file(self.path)
        except (sqlite3.OperationalError, OSError) as error:
            if not _forbidden(error) or not file.exists():
                raise
            return open_read_only(self.path, f"it cannot be written ({error})")

    def _mend(self, file: Path, error: sqlite3.Error, attempt: int) -> bool:
        before = self._opened.identity if self._opened is not None else None
        self._forget()
        self.incidents += 1
        with self._sharing.exclusive(REPAIR_SECONDS):
            if self._finish(file) or before not in (None, identity(self.path)):
                return True  # another process was faster
            if quarantine.is_newer(file):
                return False
            index = isinstance(error, indexing.BrokenIndex)
            if attempt < REPAIRS - 1 and quarantine.is_sound(file):
                if not index and attempt == 0:
                    return True
                if quarantine.with_new_index(file):
                    self._warn(f"the search index of {file.name} was damaged and is made anew")
                    return True
            self._warn(quarantine.replace_damaged(file))
        return True

    def _finish(self, file: Path) -> bool:
        """Finish an exchange that a killed process left half done, if there is one."""
        if not quarantine.unfinished(file):
            return False
        aside = quarantine.finish(file)
        self._warn(f"{file.name} was damaged; the damaged file is kept as {aside.name}")
        return True

    def _exchanged(self) -> bool:
        opened = self._opened
        return (
            opened is None
            or opened.identity != identity(self.path)
            or (not opened.refusal and opened.logs != logs(self.path))
        )

    def _touched(self) -> bool:
        """Say whether others have written a file that has a log, by a checkpoint or otherwise."""
        now, before = stamp(self.path), self._stamp
        if now == before or self._opened is None or self._opened.logs[0] is None:
            return False
        self._stamp, self.doubtful = now, True
        self.incidents += before is not None
        return before is not None

    def _leave(self) -> None:
        """Close the file, which may be another one now, or have another log; say so if it is.

        A log that was removed is still there for those who have it open.
        """
        opened, file = self._opened, Path(self.path)
        if opened is None or opened.refusal or not self._exchanged():
            self._forget()
            return
        log, memory = logs(self.path)
        if opened.identity == identity(self.path) and opened.logs[0] not in (None, log):
            self.incidents += 1
            if log is None or memory == opened.logs[1]:
                with suppress(sqlite3.Error, TimeoutError), self._sharing.exclusive(BUSY_SECONDS):
                    opened.connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1_000:.0f}")
                    opened.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self._warn(f"{file.name}-wal was removed while it was open; what it held is saved")
        self._forget()
        self._sharing.close()
        if opened.identity == identity(self.path):
            return
        self.incidents += 1
        if lost_its_head(self.path):
            return  # what its log holds is saved when it is opened
        with suppress(OSError), self._sharing.exclusive(BUSY_SECONDS):
            if opened.logs[0] is not None and opened.logs == logs(self.path):
                quarantine.put_aside(file, quarantine.LOGS)  # it is not the new file's
        self._warn(
            f"{file.name} was removed or exchanged while it was open; what this kernel has in "
            "memory of its session is written into the one that is there now"
        )

    def _forget(self) -> None:
        """Close the connection; one inherited over a fork is left alone."""
        opened, self._opened = self._opened, None
        if opened is None:
            return
        if self._pid == os.getpid():
            opened.connection.close()
            if self._stamp is not None:  # the last one to close it writes it
                self._stamp = stamp(self.path)
        else:
            _inherited.append(opened)


def _patiently(
    action: Callable[..., T], *arguments: object, patience: float | None = None
) -> tuple[T, bool]:
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
            limit = BUSY_SECONDS if patience is None else patience
            if primary(error) != sqlite3.SQLITE_BUSY or waited > limit or hurried():
                raise
        _pause(_soon(waited) if waited < LATER_SECONDS else LATER)


def _soon(waited: float) -> tuple[float, float]:
    least, most = SOON
    return least, max(4 * least, most * (1 - waited / QUEUE_SECONDS))


def _pause(seconds: tuple[float, float]) -> None:
    time.sleep(random.uniform(*seconds))  # noqa: S311 - jitter, not a secret


def _schema_is_gone(error: sqlite3.Error) -> bool:
    """Say whether a table of ours is missing, as after the file was emptied while it was open."""
    found = re.match(r"no such table: (?:main\.)?(sessions|messages|arrangements)$", str(error))
    return found is not None


def _forbidden(error: sqlite3.Error | OSError) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    return primary(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)
