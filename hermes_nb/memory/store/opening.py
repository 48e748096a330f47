"""Opens the database file the way the store needs it: durable, private, in the right journal mode.

WAL where the file system can do it, else a rollback journal; read-only where nothing may be
written, or where a newer version of this package made the schema.
"""

from __future__ import annotations

import errno
import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from hermes_nb.core.errors import StoreError
from hermes_nb.memory.store.filesystem import on_network
from hermes_nb.memory.store.migrations import (
    APPLICATION,
    VERSION,
    WITHOUT_SHARED_MEMORY,
    migrate,
    pragma,
    version_of,
)

WAL_LIMIT = 4_194_304
"""What the log may keep of the disk after a checkpoint, in bytes: as much as SQLite lets it grow
between two checkpoints (1,000 pages of 4 KiB)."""
NO_WAL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_CANTOPEN})
"""What SQLite answers where the file system lacks the locks or the shared memory of a WAL."""

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A connection, the file it leads to (None in memory), and why it cannot write, if so.

    `logs` are the write-ahead log and the memory shared for it, None each without a log.
    """

    connection: sqlite3.Connection
    identity: Identity | None = None
    logs: tuple[Identity | None, ...] = (None, None)
    refusal: str = ""


def identity(path: str) -> Identity | None:
    """Return what tells the file at `path` from any other, None if there is none."""
    status = _status(path)
    return (status.st_dev, status.st_ino) if status else None


def logs(path: str) -> tuple[Identity | None, ...]:
    """Return what tells the log at `path`, and the memory shared for it, from any others."""
    return identity(path + "-wal"), identity(path + "-shm")


def stamp(path: str) -> tuple[int, int]:
    """Return the size of the file and when it was written: beside a log, only checkpoints do."""
    status = _status(path)
    return (status.st_size, status.st_mtime_ns) if status else (0, 0)


def open_memory() -> Opened:
    """Open a database that keeps nothing."""
    connection = connect(":memory:")
    connection.execute("PRAGMA foreign_keys = ON")
    migrate(connection)
    return Opened(connection=connection)


def open_file(path: str) -> Opened:
    """Open the file, made with mode 0600 if it is not there yet; its directory has to be.

    Raises sqlite3.Error or OSError; a file that is not intact raises sqlite3.DatabaseError.
    """
    before = identity(path)
    if before is not None and not os.access(path, os.W_OK):
        # SQLite would open it too, and leave files beside it that are as little to be written.
        raise PermissionError(errno.EACCES, "no permission to write", path)
    if lost_its_head(path):
        raise _headless(path)
    try:
        return _opened(path)
    except sqlite3.OperationalError as error:
        if primary(error) not in NO_WAL or not _size(path):
            raise
        with closing(connect(path)) as alone:
            _leave_wal(alone, path)
        return _opened(path)


def _opened(path: str) -> Opened:
    """Open the file, made if it is not there yet, with a log where that can be."""
    before = identity(path)
    connection = connect(path)
    try:
        if before is None:
            # Not before SQLite did, with a descriptor of ours: closing that would free the locks
            # of any other connection that this process has to the file (POSIX).
            Path(path).chmod(0o600)
        version = version_of(connection)
        if version > VERSION:
            connection.execute("PRAGMA query_only = ON")
            return Opened(connection=connection, identity=identity(path), refusal=_newer(version))
        _check_whose(connection, version, path)
        _set_up(connection, path)
        migrate(connection)
    except BaseException:
        connection.close()
        raise
    return Opened(connection=connection, identity=identity(path), logs=logs(path))


def open_read_only(path: str, refusal: str) -> Opened:
    """Open a file that cannot be written, because of `refusal`; raise sqlite3.Error if unreadable.

    Without a log beside it the file is all there is, so that it can be read even where SQLite may
    not create the files it shares a log with.
    """
    address = f"file:{quote(str(Path(path).absolute()))}?mode=ro"
    if not _size(path + "-wal"):
        address += "&immutable=1"
    connection = connect(address)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA user_version").fetchone()
    except BaseException:
        connection.close()
        raise
    return Opened(connection=connection, identity=identity(path), refusal=refusal)


def connect(address: str, *, timeout: float = 0.0) -> sqlite3.Connection:
    """Return a connection in autocommit mode, with `sqlite3.Row` and text that always decodes.

    `timeout` is how long SQLite itself waits for a lock, in seconds; `Database` has its own way.
    """
    connection = sqlite3.connect(
        address,
        timeout=timeout,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=256,
        uri=address.startswith("file:"),
    )
    connection.row_factory = sqlite3.Row
    connection.text_factory = partial(str, encoding="utf-8", errors="replace")
    return connection


def lost_its_head(path: str) -> bool:
    """Say whether the file is empty or gone but its log is not; SQLite would delete the log."""
    return not _size(path) and _size(path + "-wal") > 0


def _headless(path: str) -> sqlite3.DatabaseError:
    """Return the error for a log without its file, as SQLite raises it for what is no database."""
    error = sqlite3.DatabaseError(f"{Path(path).name} is empty beside a log that is not")
    error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
    return error


def _set_up(connection: sqlite3.Connection, path: str) -> None:
    """Choose the journal and what makes a returned commit durable."""
    if _journal(connection, path) == "wal":
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
    else:
        connection.execute("PRAGMA synchronous = EXTRA")  # the journal's removal is the commit
    connection.execute("PRAGMA foreign_keys = ON")
    # What is deleted is gone from the file, and salvaging a damaged one cannot bring it back.
    connection.execute("PRAGMA secure_delete = ON")


def _check_whose(connection: sqlite3.Connection, version: int, path: str) -> None:
    """Raise StoreError, which says what to do, for a file that is not ours or not known to be."""
    ours = pragma(connection, "application_id") in (0, APPLICATION, WITHOUT_SHARED_MEMORY)
    tables = {row["name"] for row in connection.execute("SELECT name FROM sqlite_master")}
    if ours and (version or not tables):
        return
    message = f"{path} is another program's database: move it away, or set HERMES_HOME"
    if ours and {"sessions", "messages", "arrangements", "claims"} <= tables:
        message = (
            f"{path} says no version, as a copy made by `.dump`; if it is one of a store of today, "
            f"sqlite3 '{path}' 'PRAGMA user_version = {VERSION}' makes it usable"
        )
    raise StoreError(message)


def _journal(connection: sqlite3.Connection, path: str) -> str:
    known = pragma(connection, "application_id") == WITHOUT_SHARED_MEMORY
    wanted = "DELETE" if known or on_network(Path(path)) else "WAL"
    (mode,) = connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()
    if mode not in ("wal", "delete"):
        _leave_wal(connection, path)
        mode = "delete"
    return str(mode)


def _leave_wal(connection: sqlite3.Connection, path: str) -> None:
    """Turn to a rollback journal for good; with exclusive locks a WAL needs no shared memory.

    The connection must not have tried to read by way of a WAL: it would try again.
    """
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    _check_whose(connection, version_of(connection), path)
    connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    connection.execute(f"PRAGMA application_id = {WITHOUT_SHARED_MEMORY}")
    connection.execute("PRAGMA locking_mode = NORMAL")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # lets go of the lock


def primary(error: sqlite3.Error) -> int:
    """Return SQLite's primary result code, 0 where the error has none."""
    return int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF


def _newer(version: int) -> str:
    return (
        f"it was made by a newer hermes_nb (schema {version}, this one knows {VERSION}): it can be "
        "read but not written; upgrade hermes_nb and restart the kernel to save sessions again"
    )


def _size(path: str) -> int:
    return stamp(path)[0]


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - on the way of every write
    except FileNotFoundError:
        return None
