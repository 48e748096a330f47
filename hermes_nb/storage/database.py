"""A process's access to a database file: connection, transactions and repair.

The connection is opened on first use, guarded by a lock, closed before a fork and reopened if the
file was replaced. Calls wait for other processes for a limited time, with random pauses. Damage is
repaired, or the damaged file is moved aside and replaced, and the call is retried. Other errors are
raised as `StoreError`.
"""

from __future__ import annotations

import os
import re
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import closing, suppress
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

from hermes_nb.core.errors import StoreError
from hermes_nb.core.files import make_private
from hermes_nb.storage import repair
from hermes_nb.storage.locks import (
    LATER,
    SharedLock,
    WriterQueue,
    pause,
    primary,
    retry_while_locked,
)
from hermes_nb.storage.opening import (
    BrokenIndex,
    Opened,
    Schema,
    data_version,
    forbidden,
    identity,
    logs,
    lost_its_head,
    only_index,
    open_file,
    open_memory,
    open_read_only,
    stamp,
    surroundings,
    unfinished,
    version_of,
)

T = TypeVar("T")
Action = Callable[[sqlite3.Connection], T]
Warn = Callable[[str], None]

BUSY_SECONDS = 5.0
"""How many seconds a call waits for another process's transaction. After that, the turn keeps the
unsaved messages and tries again later."""
SHARE_SECONDS = 1.0
"""How many seconds a transaction waits while another process replaces the file. This is short,
since the replacement may itself be waiting for this transaction."""
REPAIRS = 3
"""Maximum number of repairs before a call fails."""
REPAIR_SECONDS = 30.0
"""How many seconds a process waits for another one to repair the same damage."""
FORK_SECONDS = 2.0
"""How many seconds a fork waits for a transaction in another thread."""

_inherited: list[Opened] = []
"""Connections inherited from a parent process. They are neither used nor closed, since both would
affect the parent's locks."""
_databases: weakref.WeakSet[Database] = weakref.WeakSet()
"""Databases to close around a fork. SQLite tracks its locks in the memory of the process. A child
would inherit that state and assume that it holds its parent's locks, even for a new connection. The
only clean solution is to have no file open during the fork; both processes then reopen theirs."""
_forking = threading.Lock()
"""A lock that is held while the process is forking."""


class Database:
    """A process's connection to the database file at `path`, or to a temporary one for `:memory:`.

    The file is created on first use, readable only by its owner. If its schema is newer than this
    code, it is read but never written. `edition` is a number that changes with every commit by any
    process; read it inside a transaction, where it is up to date.

    Args:
        path: Path of the file.
        schema: The expected tables.
        warn: Receives each warning for the user once, for example about a damaged file. Without it,
            they are collected in `warnings`.
    """

    def __init__(self, path: str | Path, schema: Schema, *, warn: Warn | None = None) -> None:
        self.path = str(path)
        self.warnings: list[str] = []
        self.edition = 0
        self._schema = schema
        self._warn = warn
        self._file = None if self.path == ":memory:" else Path(path)
        self._lock = threading.RLock()
        self._opened: Opened | None = None
        self._pid = 0
        self._sharing, self._queue = SharedLock(Path(path)), WriterQueue(Path(path))
        self._paused = False
        self._orphan = False
        self._stamp: tuple[int, int] | None = None
        # The folder is checked rather than the log: reading the log's times makes Linux update
        # them on each later write, which would cost half as much as an append.
        self._folder = str(Path(path).parent)
        self._seen: tuple[int, ...] | None = None
        self._version: int | None = None
        self._incidents = 0
        self._doubtful = False  # just opened, or written by other processes: should be checked
        self._looking: threading.Thread | None = None
        _hear_of_forks()
        with _forking:  # before it opens a file: another thread may be forking
            _databases.add(self)

    def read(self, action: Action[T]) -> T:
        """Return the result of `action`, which only reads and may be retried; raise StoreError."""
        return self._mending(partial(self._read, action))

    def write(self, action: Action[T], *, patience: float | None = None) -> T:
        """Run `action` in one transaction and return its result; its changes are then durable.

        `action` may be called repeatedly. Waits for other processes for up to `patience` seconds
        (default: BUSY_SECONDS). Raises StoreError, including when the file can't be written.
        """
        wait = BUSY_SECONDS if patience is None else patience
        return self._mending(partial(self._write, action, wait))

    def vacuum(self) -> None:
        """Rewrite the file without deleted data, and empty its log; raise StoreError."""
        self._mending(self._vacuum)

    def close(self) -> None:
        """Close the file; the next call opens it again."""
        self._wait_for_check()
        with self._lock:
            self._forget()
            self._sharing.close()
            self._queue.close()

    def incidents(self) -> int:
        """Return the number of events that may have lost saved data, such as repairs.

        If the check of a file that was just opened, or written by another process, is still
        running, this waits for it.
        """
        self._wait_for_check()
        self._deliver()
        return self._incidents

    def tell(self, sentence: str) -> None:
        """Pass a warning to `warn`, or collect it in `warnings`."""
        self.warnings.append(sentence)
        self._deliver()

    def _mending(self, call: Callable[[], T]) -> T:
        """Return the result of `call`; if the file is damaged, repair it and retry."""
        attempt = 0
        try:
            while True:
                try:
                    return call()
                except sqlite3.Error as error:
                    if not self._repair(error, attempt):
                        raise
                attempt += 1
        except (sqlite3.Error, OSError, UnicodeError, OverflowError) as error:
            raise StoreError(f"{self._schema.name} {self.path}: {error}") from error
        finally:
            self._deliver()
            self._check_in_thread()

    def _read(self, action: Action[T]) -> T:
        with self._lock:
            return retry_while_locked(
                lambda: action(self._open().connection), patience=BUSY_SECONDS
            )

    def _write(self, action: Action[T], patience: float) -> T:
        with self._lock:
            try:
                connection = self._begin(patience)
                result = action(connection)
                # The tables' constraints have been checked; the index now writes its entries.
                with only_index():
                    retry_while_locked(connection.execute, "COMMIT", patience=BUSY_SECONDS)
                self.edition += 1
                if self._stamp is not None:
                    self._stamp = stamp(self.path)
            finally:
                self._end()
        return result

    def _vacuum(self) -> None:
        with self._lock:
            connection = self._writable(BUSY_SECONDS)
            with self._sharing.shared(BUSY_SECONDS):
                retry_while_locked(connection.execute, "VACUUM", patience=BUSY_SECONDS)
                until = time.monotonic() + BUSY_SECONDS
                while connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
                    if time.monotonic() > until:
                        break
                    pause(LATER)
            self._stamp = self._stamp and stamp(self.path)

    def _deliver(self) -> None:
        while self._warn is not None:
            try:
                sentence = self.warnings.pop(0)
            except IndexError:  # another thread was faster
                return
            self._warn(sentence)

    def _check_in_thread(self) -> None:
        if self._doubtful and not (self._looking is not None and self._looking.is_alive()):
            self._doubtful = False
            looking = threading.Thread(target=self._check, name="hermes-store", daemon=True)
            looking.start()
            self._looking = looking  # only after the start, since other threads join it

    def _check(self) -> None:
        """Repair the file if a table is damaged.

        A separate connection avoids blocking other calls.
        """
        try:
            with closing(Database(self.path, self._schema)) as apart:
                apart.warnings = self.warnings
                apart._read(lambda connection: repair.check(connection, self._schema))  # noqa: SLF001
        except sqlite3.Error as error:
            with suppress(sqlite3.Error, OSError, StoreError):
                self._repair(error, 0)
        except (OSError, StoreError):  # the next call reports it
            return

    def _wait_for_check(self) -> None:
        if self._looking is not None:
            self._looking.join()

    def _begin(self, patience: float) -> sqlite3.Connection:
        """Start a transaction on the current file, using the queue and the shared lock.

        The caller must call `_end`, even after an exception.
        """
        deadline = time.monotonic() + patience
        while True:
            connection = self._writable(patience)
            connection.rollback()  # an interrupt may have left a transaction open
            if self._file is None:
                connection.execute("BEGIN")
                return connection
            self._queue.take(max(0.0, deadline - time.monotonic()))
            retry_while_locked(
                connection.execute, "BEGIN IMMEDIATE", patience=deadline - time.monotonic()
            )
            try:
                # Only briefly: the exclusive holder may be waiting for this transaction.
                self._sharing.take(SHARE_SECONDS)
            except TimeoutError:
                if time.monotonic() > deadline:
                    raise
            else:
                if self._current(self._file, connection):
                    return connection
            self._end()
            self._leave()

    def _current(self, file: Path, connection: sqlite3.Connection) -> bool:
        """Return whether the connection is to the file at `path`, intact and of our version."""
        now = surroundings(self._folder, self.path)
        if now is None or now != self._seen:
            intact = not (self._exchanged() or unfinished(file) or self._touched())
            self._seen = now if intact else None
            if not intact:
                return False
        version = data_version(connection)
        if version != self._version:
            if version_of(connection) != self._schema.version:
                return False
            self._version = version
            self.edition += 1
        return True

    def _end(self) -> None:
        """Roll back an uncommitted transaction and release the locks."""
        try:
            if self._opened is not None:
                self._opened.connection.rollback()
        finally:
            self._sharing.free()
            self._queue.free()

    def _writable(self, patience: float) -> sqlite3.Connection:
        """Return the connection; raise StoreError if the file can't be written.

        The file may be replaced later; `_begin` checks that once it has reached the front of the
        queue.
        """
        opened = self._opened
        if opened is None or self._pid != os.getpid():
            opened = retry_while_locked(self._open, patience=patience)
        if opened.refusal:
            self._forget()  # retry: the file may have become writable
            opened = retry_while_locked(self._open, patience=patience)
        if opened.refusal:
            raise StoreError(f"{self._schema.name} {self.path}: {opened.refusal}")
        return opened.connection

    def _open(self) -> Opened:
        """Return the connection, reopened if the file was replaced."""
        inherited = self._opened is not None and self._pid != os.getpid()
        if self._orphan or (inherited and self._file is not None):
            # Forked without Python's fork hooks: SQLite's lock state is the parent's.
            self._orphan = True
            self._forget()
            why = "not available in a forked process"
            raise StoreError(f"{self._schema.name} {self.path}: {why}")
        if self._opened is not None and self._file is not None:
            known = self._seen is not None and self._seen == surroundings(self._folder, self.path)
            if not known and self._exchanged():
                self._leave()
        if self._opened is None:
            file = self._file
            self._opened = open_memory(self._schema) if file is None else self._open_file(file)
            self._pid = os.getpid()
        return self._opened

    def _open_file(self, file: Path) -> Opened:
        try:
            make_private(file.parent)
            if unfinished(file):
                with self._sharing.exclusive(REPAIR_SECONDS):
                    self._finish(file)
            # Opening may write a new schema or a new log.
            with self._sharing.shared(BUSY_SECONDS):
                return open_file(self.path, self._schema)
        except (sqlite3.OperationalError, OSError) as error:
            if not forbidden(error) or not file.exists():
                raise
            return open_read_only(self.path, f"it cannot be written ({error})")

    def _repair(self, error: sqlite3.Error, attempt: int) -> bool:
        """React to an error; return whether a retry may succeed.

        A file that fails the integrity check is moved aside and replaced by one with the rows that
        can still be read. A file that passes is reopened at the first attempt, gets a new index at
        the second and is replaced at the third, since it must be damaged.
        """
        with self._lock:
            if self._file is None or (self._opened is not None and self._opened.refusal):
                return False
            if primary(error) in repair.DAMAGE or self._schema_is_gone(error):
                return attempt < REPAIRS and self._repair_or_replace(self._file, error, attempt)
            if primary(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR):
                self._forget()  # moved, made writable, remounted: a new connection may work
            return primary(error) == sqlite3.SQLITE_READONLY and attempt == 0

    def _repair_or_replace(self, file: Path, error: sqlite3.Error, attempt: int) -> bool:
        before = self._opened.identity if self._opened is not None else None
        self._forget()
        self._incidents += 1
        schema = self._schema
        with self._sharing.exclusive(REPAIR_SECONDS):
            if self._finish(file) or before not in (None, identity(self.path)):
                return True  # another process was faster
            if repair.is_newer(file, schema):
                return False
            if attempt < REPAIRS - 1 and repair.is_sound(file, schema):
                if not isinstance(error, BrokenIndex) and attempt == 0:
                    return True
                if repair.with_new_index(file, schema):
                    self.warnings.append(
                        f"the {schema.index} of {file.name} was damaged and is being rebuilt"
                    )
                    return True
            self.warnings.append(repair.replace_damaged(file, schema))
        return True

    def _schema_is_gone(self, error: sqlite3.Error) -> bool:
        found = re.match(r"no such table: (?:main\.)?(\w+)$", str(error))
        return found is not None and found[1] in self._schema.tables

    def _finish(self, file: Path) -> bool:
        """Complete a replacement that a killed process left unfinished; return whether one was."""
        if half_done := unfinished(file):
            aside = repair.finish(file)
            text = f"{file.name} was damaged; the damaged file is kept as {aside.name}"
            self.warnings.append(text)
        return half_done

    def _exchanged(self) -> bool:
        opened = self._opened
        return (
            opened is None
            or opened.identity != identity(self.path)
            or (not opened.refusal and opened.logs != logs(self.path))
        )

    def _touched(self) -> bool:
        """Return whether another process has written to a file that uses a log."""
        now, before = stamp(self.path), self._stamp
        if now == before or self._opened is None or self._opened.logs[0] is None:
            return False
        self._stamp, self._doubtful = now, True
        self._incidents += before is not None
        return before is not None

    def _leave(self) -> None:
        """Close the connection, and warn if the file or its log was removed or replaced.

        A removed log still exists for the processes that have it open.
        """
        opened, file = self._opened, Path(self.path)
        if opened is None or opened.refusal or not self._exchanged():
            self._forget()
            return
        log, memory = logs(self.path)
        if opened.identity == identity(self.path) and opened.logs[0] not in (None, log):
            self._incidents += 1
            if log is None or memory == opened.logs[1]:
                with suppress(sqlite3.Error, TimeoutError), self._sharing.exclusive(BUSY_SECONDS):
                    opened.connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1_000:.0f}")
                    opened.connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            self.warnings.append(
                f"{file.name}-wal was removed while it was open; its content is saved"
            )
        self._forget()
        self._sharing.close()
        self._queue.close()
        if opened.identity == identity(self.path):
            return
        self._incidents += 1
        if lost_its_head(self.path):
            return  # opening it will salvage the contents of its log
        with suppress(OSError), self._sharing.exclusive(BUSY_SECONDS):
            if opened.logs[0] is not None and opened.logs == logs(self.path):
                repair.put_aside(file, repair.LOGS)  # the log doesn't belong to the new file
        self.warnings.append(
            f"{file.name} was removed or replaced while it was open; this kernel saves the "
            "part of its session that is in memory to the new file"
        )

    def _forget(self) -> None:
        """Close the connection; if it was inherited through a fork, only set it aside."""
        opened, self._opened, self._version = self._opened, None, None
        if opened is None:
            return
        if self._pid == os.getpid():
            opened.connection.close()
            if self._stamp is not None:  # closing the last connection writes a checkpoint
                self._stamp = stamp(self.path)
        else:
            _inherited.append(opened)

    def before_fork(self) -> None:
        """Wait for a running transaction and close the file, so that a child doesn't inherit it."""
        self._paused = self._lock.acquire(timeout=FORK_SECONDS)
        if self._paused and self._file is not None:
            self._forget()
            self._sharing.close()
            self._queue.close()

    def after_fork(self, *, child: bool) -> None:
        """Resume after a fork; a child never uses an open file that it has inherited."""
        if child:
            self._lock = threading.RLock()
            self._orphan = not self._paused and self._file is not None
        elif self._paused:
            self._lock.release()
        self._paused = False


@cache
def _hear_of_forks() -> None:
    """Register hooks that close databases around forks; only once, as hooks can't be removed."""

    def before() -> None:
        _forking.acquire()
        for each in list(_databases):
            each.before_fork()

    def after(*, child: bool) -> None:
        for each in list(_databases):
            each.after_fork(child=child)
        _forking.release()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=before,
            after_in_parent=partial(after, child=False),
            after_in_child=partial(after, child=True),
        )
