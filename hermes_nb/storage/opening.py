"""Open SQLite database files so that they are durable, private and use a suitable journal.

The journal is a write-ahead log (WAL) if the file system supports it, otherwise a rollback journal.
A file is opened read-only if it can't be written, or if a newer version of this package created it.
"""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from urllib.parse import quote

from hermes_nb.core.errors import StoreError
from hermes_nb.storage.locks import has_locks, primary

WAL_LIMIT = 4_194_304
"""Maximum size of the WAL file after a checkpoint, in bytes: as large as SQLite lets it grow
between two checkpoints (1,000 pages of 4 KiB)."""
NO_WAL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_CANTOPEN})
"""SQLite's errors on a file system that lacks the locks or shared memory that a WAL needs."""
MOUNTS = Path("/proc/self/mounts")
"""The mount table, as in fstab(5); only Linux has it."""
PLACED = 3
"""Number of fields read from a line of the mount table: device, mount point and type."""
NETWORK = frozenset(
    "9p acfs afs beegfs ceph cifs coda davfs fuse gfs2 glusterfs gpfs lustre ncpfs nfs nfs3 nfs4 "
    "ocfs2 orangefs pvfs2 smb3 smbfs vboxsf vmhgfs wekafs".split()
)
LOCAL_FUSE = frozenset("fuse.ntfs fuse.ntfs-3g fuse.exfat fuse.fuse-overlayfs".split())

FINE, COARSE = 0.05, 2.0
"""Age, in seconds, from which a folder's modification time reliably reveals later changes. Linux
timestamps lag by up to 10 ms (FINE). Whole seconds suggest FAT, with steps of two (COARSE)."""

READY = ".salvaged"
"""Suffix of a salvaged file that is about to replace the damaged one."""
INDEX_FAULTS = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT})
"""SQLite's errors when an index's tables contradict each other.

Other errors, such as locks or a full disk, don't mean that the index is faulty.
"""

Identity = tuple[int, int]
"""Device and inode of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A database's tables, as needed to open and repair it."""

    name: str
    """Name of the database in error messages."""
    application: int
    """`PRAGMA application_id` of the file. This number plus one marks a file on a file system
    without shared memory."""
    steps: tuple[Callable[[sqlite3.Connection], None], ...]
    """Migrations: the n-th takes the file from version n to n + 1. `PRAGMA user_version` counts
    them. All missing steps run in one transaction, so a killed process leaves the old or the new
    schema."""
    tables: tuple[str, ...]
    """Tables in a file of the current version."""
    first: tuple[str, ...]
    """Tables in a file of any version."""
    salvage: Callable[[Path, Path], str]
    """Writes a damaged file's readable rows to a new one, and returns a report."""
    rebuild: Callable[[sqlite3.Connection], None]
    """Rebuilds the index from the tables."""
    index: str = "search index"
    """Name of the index in messages to the user."""

    @property
    def version(self) -> int:
        """The schema version that this code writes."""
        return len(self.steps)

    def migrate(self, connection: sqlite3.Connection) -> None:
        """Run the missing migrations; do nothing if the schema is current or newer."""
        if version_of(connection) >= self.version and _pragma(connection, "application_id"):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            for step in self.steps[version_of(connection) :]:  # empty if another process was faster
                step(connection)
            connection.execute(f"PRAGMA user_version = {self.version}")
            if not _pragma(connection, "application_id"):
                connection.execute(f"PRAGMA application_id = {self.application}")
            connection.execute("COMMIT")
        except BaseException:
            connection.rollback()
            raise


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """An open database."""

    connection: sqlite3.Connection
    """The connection."""
    identity: Identity | None = None
    """Identity of the file; None in memory."""
    logs: tuple[Identity | None, ...] = (None, None)
    """Identities of the write-ahead log and its shared memory; None for either that doesn't
    exist."""
    refusal: str = ""
    """Why the database can't be written, or ""."""


def run_script(connection: sqlite3.Connection, script: str) -> None:
    """Run a script inside the current transaction, which `executescript` would commit."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def version_of(connection: sqlite3.Connection) -> int:
    """Return the file's schema version."""
    return _pragma(connection, "user_version")


def data_version(connection: sqlite3.Connection) -> int:
    """Return a number that changes whenever another connection changes the file."""
    return _pragma(connection, "data_version")


def forbidden(error: sqlite3.Error | OSError) -> bool:
    """Return whether an error means that the file must not be written."""
    if isinstance(error, OSError):
        return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    return primary(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


def identity(path: str) -> Identity | None:
    """Return the identity of the file at `path`, or None if it doesn't exist."""
    status = _status(path)
    return (status.st_dev, status.st_ino) if status else None


def logs(path: str) -> tuple[Identity | None, ...]:
    """Return the identities of a database's write-ahead log and of its shared memory."""
    return identity(path + "-wal"), identity(path + "-shm")


def stamp(path: str) -> tuple[int, int]:
    """Return the file's size and modification time; with a WAL, only checkpoints change them."""
    status = _status(path)
    return (status.st_size, status.st_mtime_ns) if status else (0, 0)


def surroundings(folder: str, path: str) -> tuple[int, ...] | None:
    """Return a value that changes whenever a file or the names in its folder change.

    Returns None if the folder was changed so recently that a further change might go unnoticed.
    """
    status = _status(folder)
    if status is None:
        return None
    young = COARSE if status.st_mtime_ns % 1_000_000_000 == 0 else FINE
    if time.time() - status.st_mtime < young:
        return None
    return status.st_ino, status.st_mtime_ns, *stamp(path)


def lost_its_head(path: str) -> bool:
    """Return whether a log has data but its file is missing or empty: SQLite would delete it."""
    return not stamp(path)[0] and stamp(path + "-wal")[0] > 0


def connect(address: str, *, timeout: float = 0.0) -> sqlite3.Connection:
    """Open a connection in autocommit mode, with `sqlite3.Row` and invalid UTF-8 replaced.

    `timeout` is how many seconds SQLite waits for a lock; `Database` does its own waiting.
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


def open_memory(schema: Schema) -> Opened:
    """Open a temporary database in memory."""
    connection = connect(":memory:")
    connection.execute("PRAGMA foreign_keys = ON")
    schema.migrate(connection)
    return Opened(connection=connection)


def open_file(path: str, schema: Schema) -> Opened:
    """Open the database file, creating it with mode 0600 if needed. Its directory must exist.

    Raises:
        sqlite3.DatabaseError: The file is damaged.
        sqlite3.Error: SQLite can't open it for another reason.
        OSError: The file can't be accessed.
        StoreError: The file system has no locks, so two processes could damage the file, or the
            file belongs to another program.
    """
    if identity(path) is not None and not os.access(path, os.W_OK):
        # SQLite would open it anyway, and leave log files that can't be written either.
        raise PermissionError(errno.EACCES, "no permission to write", path)
    if lost_its_head(path):
        # The error that SQLite raises for files that aren't databases.
        error = sqlite3.DatabaseError(f"{Path(path).name} is empty, but its log is not")
        error.sqlite_errorcode = sqlite3.SQLITE_NOTADB
        raise error
    try:
        return _opened(path, schema)
    except sqlite3.OperationalError as error:
        if primary(error) == sqlite3.SQLITE_BUSY and not has_locks(Path(path).parent):
            message = (
                f"the file system of {path} has no file locks; set HERMES_HOME to a folder on "
                "another disk and restart the kernel"
            )
            raise StoreError(message) from error
        if primary(error) not in NO_WAL or not stamp(path)[0]:
            raise
        with closing(connect(path)) as alone:
            _leave_wal(alone, path, schema)
        return _opened(path, schema)


def open_read_only(path: str, refusal: str) -> Opened:
    """Open a file that can't be written; raise sqlite3.Error if it can't be read either.

    `refusal` is the reason. Without a log, the file is opened as immutable: this works even if
    SQLite may not create the files that accompany a log.
    """
    address = f"file:{quote(str(Path(path).absolute()))}?mode=ro"
    if not stamp(path + "-wal")[0]:
        address += "&immutable=1"
    connection = connect(address)
    try:
        connection.execute("PRAGMA query_only = ON")
        connection.execute("PRAGMA user_version").fetchone()
    except BaseException:
        connection.close()
        raise
    return Opened(connection=connection, identity=identity(path), refusal=refusal)


def _opened(path: str, schema: Schema) -> Opened:
    before = identity(path)
    connection = connect(path)
    try:
        if before is None:
            # Let SQLite create the file: closing a descriptor of our own would free the locks of
            # all other connections that this process has to the file (POSIX).
            Path(path).chmod(0o600)
        version = version_of(connection)
        if version > schema.version:
            connection.execute("PRAGMA query_only = ON")
            refusal = (
                f"it was made by a newer hermes_nb (schema {version}, this one knows "
                f"{schema.version}): it can be read but not written; upgrade hermes_nb and restart "
                "the kernel to save sessions again"
            )
            return Opened(connection=connection, identity=identity(path), refusal=refusal)
        _check_whose(connection, path, schema)
        _set_up(connection, path, schema)
        schema.migrate(connection)
    except BaseException:
        connection.close()
        raise
    return Opened(connection=connection, identity=identity(path), logs=logs(path))


def _set_up(connection: sqlite3.Connection, path: str, schema: Schema) -> None:
    without_wal = _pragma(connection, "application_id") == schema.application + 1
    wanted = "DELETE" if without_wal or on_network(Path(path)) else "WAL"
    (mode,) = connection.execute(f"PRAGMA journal_mode = {wanted}").fetchone()
    if mode not in ("wal", "delete"):
        _leave_wal(connection, path, schema)
    if mode == "wal":
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA journal_size_limit = {WAL_LIMIT}")
    else:
        connection.execute("PRAGMA synchronous = EXTRA")  # the journal's removal is the commit
    connection.execute("PRAGMA foreign_keys = ON")
    # Overwrite deleted data, so that salvaging a damaged file can't bring it back.
    connection.execute("PRAGMA secure_delete = ON")


def _check_whose(connection: sqlite3.Connection, path: str, schema: Schema) -> None:
    """Raise StoreError, which suggests a solution, if the file isn't one of this database's."""
    known = (0, schema.application, schema.application + 1)
    ours = _pragma(connection, "application_id") in known
    tables = {row["name"] for row in connection.execute("SELECT name FROM sqlite_master")}
    if ours and (version_of(connection) or not tables):
        return
    message = f"{path} is the database of another program: move it away, or set HERMES_HOME"
    if ours and tables.issuperset(schema.tables):
        message = (
            f"{path} has no version number, like a copy made with `.dump`; if it is a copy of a "
            f"current store, set the number: sqlite3 '{path}' 'PRAGMA user_version = "
            f"{schema.version}'"
        )
    raise StoreError(message)


def _leave_wal(connection: sqlite3.Connection, path: str, schema: Schema) -> None:
    """Switch permanently to a rollback journal. With exclusive locks, a WAL needs no shared memory.

    The connection must not have tried to read with a WAL before, or it would try again.
    """
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    _check_whose(connection, path, schema)
    connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    connection.execute(f"PRAGMA application_id = {schema.application + 1}")
    connection.execute("PRAGMA locking_mode = NORMAL")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # releases the lock


def on_network(path: Path) -> bool:
    """Return whether `path` is known to be on a network file system.

    A WAL needs memory that all processes with the open file share. No network file system provides
    that.
    """
    real = os.path.realpath(path)
    if real.startswith("\\\\"):  # UNC path of a Windows share
        return True
    kind = mounted_as(real)
    return kind in NETWORK or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)


def mounted_as(real: str) -> str:
    """Return the file system type of an absolute path without symlinks, or ""."""
    try:
        table = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    best, found = "", ""
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) < PLACED:
            continue
        # Spaces in paths are written as octal escapes.
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):  # a later mount hides an earlier one
            best, found = place, fields[2]
    return found


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - faster, and every write calls it
    except FileNotFoundError:
        return None


def unfinished(path: Path) -> bool:
    """Return whether a killed process left the replacement of a damaged file unfinished."""
    return os.access(f"{path}{READY}", os.F_OK)  # raises no exception, and every write calls it


class BrokenIndex(sqlite3.DatabaseError):
    """Only the index is damaged and must be rebuilt."""


@contextmanager
def only_index() -> Iterator[None]:
    """Turn index errors in the block into `BrokenIndex`. The block must access only the index."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if primary(error) not in INDEX_FAULTS:
            raise
        broken = BrokenIndex(*error.args)
        broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT_VTAB
        raise broken from error
