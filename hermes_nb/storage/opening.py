"""Opens a database file so that what is committed stays: durable, private, in the right journal.

A write-ahead log where the file system can do it, else a rollback journal; read-only where nothing
may be written, or where a newer version of this package made the schema.
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
"""What the log may keep of the disk after a checkpoint, in bytes: as much as SQLite lets it grow
between two checkpoints (1,000 pages of 4 KiB)."""
NO_WAL = frozenset({sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PROTOCOL, sqlite3.SQLITE_CANTOPEN})
"""What SQLite answers where the file system lacks the locks or the shared memory of a WAL."""
MOUNTS = Path("/proc/self/mounts")
"""The mount table, as in fstab(5); only Linux has it."""
PLACED = 3
"""Fields of a line of it that are read: device, place and type."""
NETWORK = frozenset(
    "9p acfs afs beegfs ceph cifs coda davfs fuse gfs2 glusterfs gpfs lustre ncpfs nfs nfs3 nfs4 "
    "ocfs2 orangefs pvfs2 smb3 smbfs vboxsf vmhgfs wekafs".split()
)
LOCAL_FUSE = frozenset("fuse.ntfs fuse.ntfs-3g fuse.exfat fuse.fuse-overlayfs".split())

FINE, COARSE = 0.05, 2.0
"""Seconds between two changes of a folder that its time surely tells apart: Linux stamps with the
last tick, at most 10 ms ago, FAT counts in twos, and whole seconds hint at such a file system."""

READY = ".salvaged"
"""How the name of a file ends that is to take the place of a damaged one."""
INDEX_FAULTS = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT})
"""What SQLite answers when the tables of an index contradict each other. Locks, a full disk and
the like are no fault of the index."""

Identity = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """The tables of a file, for those who open and mend it without knowing them.

    The n-th of the `steps` takes a file from version n to n + 1, within a transaction.
    `PRAGMA user_version` counts the steps it has taken; all that are missing are taken in one
    transaction: a killed process leaves the old schema or the new one. `application` is what the
    header says of whose file it is, and one more where the file system cannot share memory.

    `tables` are those of a whole file, `first` those that every version has. `salvage` writes what
    is left of a damaged file into a new one and says how much that is. `rebuild` makes anew what
    can be made from the tables, whose name for the user is `index`.
    """

    name: str
    application: int
    steps: tuple[Callable[[sqlite3.Connection], None], ...]
    tables: tuple[str, ...]
    first: tuple[str, ...]
    salvage: Callable[[Path, Path], str]
    rebuild: Callable[[sqlite3.Connection], None]
    index: str = "search index"

    @property
    def version(self) -> int:
        """The version that this code writes."""
        return len(self.steps)

    def migrate(self, connection: sqlite3.Connection) -> None:
        """Take the steps that are missing; a schema that is newer or the same stays as it is."""
        if version_of(connection) >= self.version and _pragma(connection, "application_id"):
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            for step in self.steps[version_of(connection) :]:  # another process may be faster
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
    """A connection, the file it leads to (None in memory), and why it cannot write, if so.

    `logs` are the write-ahead log and the memory shared for it, None each without a log.
    """

    connection: sqlite3.Connection
    identity: Identity | None = None
    logs: tuple[Identity | None, ...] = (None, None)
    refusal: str = ""


def run_script(connection: sqlite3.Connection, script: str) -> None:
    """Run a script within the transaction; `executescript` would commit it."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            connection.execute(statement)
            statement = ""


def version_of(connection: sqlite3.Connection) -> int:
    """Return how many steps the file has taken."""
    return _pragma(connection, "user_version")


def data_version(connection: sqlite3.Connection) -> int:
    """Return a number that stays the same for as long as no other connection changes the file."""
    return _pragma(connection, "data_version")


def forbidden(error: sqlite3.Error | OSError) -> bool:
    """Say whether an error means that the file may not be written."""
    if isinstance(error, OSError):
        return error.errno in (errno.EACCES, errno.EPERM, errno.EROFS)
    return primary(error) in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM)


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


def surroundings(folder: str, path: str) -> tuple[int, ...] | None:
    """Return what tells a file and the names in its folder from what they are after any change.

    None while a name was added or taken away so lately that another change may not show.
    """
    status = _status(folder)
    if status is None:
        return None
    young = COARSE if status.st_mtime_ns % 1_000_000_000 == 0 else FINE
    if time.time() - status.st_mtime < young:
        return None
    return status.st_ino, status.st_mtime_ns, *stamp(path)


def lost_its_head(path: str) -> bool:
    """Say whether the file is empty or gone but its log is not; SQLite would delete the log."""
    return not stamp(path)[0] and stamp(path + "-wal")[0] > 0


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


def open_memory(schema: Schema) -> Opened:
    """Open a database that keeps nothing."""
    connection = connect(":memory:")
    connection.execute("PRAGMA foreign_keys = ON")
    schema.migrate(connection)
    return Opened(connection=connection)


def open_file(path: str, schema: Schema) -> Opened:
    """Open the file, made with mode 0600 if it is not there yet; its directory has to be.

    Raises sqlite3.Error or OSError; a file that is not intact raises sqlite3.DatabaseError. Raises
    StoreError where files cannot be locked: two processes would damage it.
    """
    if identity(path) is not None and not os.access(path, os.W_OK):
        # SQLite would open it too, and leave files beside it that are as little to be written.
        raise PermissionError(errno.EACCES, "no permission to write", path)
    if lost_its_head(path):
        # As SQLite says of what is no database.
        error = sqlite3.DatabaseError(f"{Path(path).name} is empty beside a log that is not")
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
    """Open a file that cannot be written, because of `refusal`; raise sqlite3.Error if unreadable.

    Without a log beside it the file is all there is, so that it can be read even where SQLite may
    not create the files it shares a log with.
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
            # Not before SQLite did, with a descriptor of ours: closing that would free the locks
            # of any other connection that this process has to the file (POSIX).
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
    # What is deleted is gone from the file, and salvaging a damaged one cannot bring it back.
    connection.execute("PRAGMA secure_delete = ON")


def _check_whose(connection: sqlite3.Connection, path: str, schema: Schema) -> None:
    """Raise StoreError, which says what to do, for a file that is not ours or not known to be."""
    known = (0, schema.application, schema.application + 1)
    ours = _pragma(connection, "application_id") in known
    tables = {row["name"] for row in connection.execute("SELECT name FROM sqlite_master")}
    if ours and (version_of(connection) or not tables):
        return
    message = f"{path} is another program's database: move it away, or set HERMES_HOME"
    if ours and tables.issuperset(schema.tables):
        message = (
            f"{path} says no version, as a copy made by `.dump`; if it is one of a store of today, "
            f"sqlite3 '{path}' 'PRAGMA user_version = {schema.version}' makes it usable"
        )
    raise StoreError(message)


def _leave_wal(connection: sqlite3.Connection, path: str, schema: Schema) -> None:
    """Turn to a rollback journal for good; with exclusive locks a WAL needs no shared memory.

    The connection must not have tried to read by way of a WAL: it would try again.
    """
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")
    _check_whose(connection, path, schema)
    connection.execute("PRAGMA journal_mode = DELETE").fetchone()
    connection.execute(f"PRAGMA application_id = {schema.application + 1}")
    connection.execute("PRAGMA locking_mode = NORMAL")
    connection.execute("SELECT count(*) FROM sqlite_master").fetchone()  # lets go of the lock


def on_network(path: Path) -> bool:
    """Say whether `path` lies on a network file system, as far as the system tells.

    SQLite's WAL needs memory shared by all who have the file open, which none of those offers.
    """
    real = os.path.realpath(path)
    if real.startswith("\\\\"):  # a share by its name on Windows
        return True
    kind = mounted_as(real)
    return kind in NETWORK or (kind.startswith("fuse.") and kind not in LOCAL_FUSE)


def mounted_as(real: str) -> str:
    """Return the type of the file system that holds an absolute path without links, or ""."""
    try:
        table = MOUNTS.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    best, found = "", ""
    for line in table.splitlines():
        fields = line.split(" ")
        if len(fields) < PLACED:
            continue
        # Octal escapes: a blank is written as one.
        place = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), fields[1])
        inside = real == place or real.startswith(place.rstrip("/") + "/")
        if inside and len(place) >= len(best):  # of two mounts in one place the later one counts
            best, found = place, fields[2]
    return found


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])


def _status(path: str) -> os.stat_result | None:
    try:
        return os.stat(path)  # noqa: PTH116 - on the way of every write
    except FileNotFoundError:
        return None


def unfinished(path: Path) -> bool:
    """Say whether a killed process left an exchange half done."""
    return os.access(f"{path}{READY}", os.F_OK)  # no exception, on the way of every write


class BrokenIndex(sqlite3.DatabaseError):
    """The index, and nothing else, has to be made anew."""


@contextmanager
def only_index() -> Iterator[None]:
    """Raise `BrokenIndex` for what goes wrong inside, where only the index is read or written."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if primary(error) not in INDEX_FAULTS:
            raise
        broken = BrokenIndex(*error.args)
        broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT_VTAB
        raise broken from error
