"""Replace a damaged database file with a salvaged one.

The process may be killed at any time. The damaged file stays in place until the salvaged one is
complete. After that, `finish` only moves files, which the next process repeats if necessary. All
steps happen under the exclusive lock.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

from hermes_nb.core.files import beside
from hermes_nb.storage.locks import primary
from hermes_nb.storage.opening import READY, Schema, connect, lost_its_head
from hermes_nb.storage.salvage import MAGIC

BUSY_SECONDS = 5.0
"""Seconds that a check waits for processes reading the file; none can write in the meantime."""
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""SQLite's errors when the file itself is damaged."""
LOGS = ("-wal", "-journal", "-shm")
"""Suffixes of the files that SQLite keeps next to a database in use."""
_UNREADY = ".salvaged.hermes-tmp"


def is_sound(path: Path, schema: Schema) -> bool:
    """Return whether the file is intact, or a new one without tables.

    Raises:
        sqlite3.Error: The state is unknown, because the file is locked or can't be opened.
    """
    if lost_its_head(str(path)):
        return False
    try:
        with closing(connect(str(path), timeout=BUSY_SECONDS)) as connection:
            if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                return False
            if connection.execute("PRAGMA user_version").fetchone()[0]:
                for table in schema.first:
                    connection.execute(f"SELECT 1 FROM {table} LIMIT 1")  # noqa: S608 - ours
    except sqlite3.DatabaseError as error:
        if primary(error) in DAMAGE or "no such table" in str(error):
            return False
        raise
    return True


def check(connection: sqlite3.Connection, schema: Schema) -> None:
    """Raise a corruption error if one of the tables, or a table's regular index, is damaged.

    The search index is not checked: that takes the longest, and a search repairs it when needed. A
    quick check would miss rows that aren't in an index, and takes just as long (0.2 s of CPU for
    60,000 messages).
    """
    for table in schema.tables:
        (verdict,) = connection.execute(f"PRAGMA integrity_check({table})").fetchone()
        if verdict != "ok":
            error = sqlite3.DatabaseError(verdict)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error


def with_new_index(path: Path, schema: Schema) -> bool:
    """Rebuild the search index; return whether that succeeded."""
    try:
        with closing(connect(str(path), timeout=BUSY_SECONDS)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            schema.rebuild(connection)
            connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        if primary(error) in DAMAGE:
            return False
        raise
    return True


def is_newer(path: Path, schema: Schema) -> bool:
    """Return whether the file's header shows a schema version that this code doesn't know."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        head = file.read(64)
    return head.startswith(MAGIC) and int.from_bytes(head[60:64], "big") > schema.version


def replace_damaged(path: Path, schema: Schema) -> str:
    """Replace the damaged file with a new one that contains the rows that could be read.

    Returns a message for the user.
    """
    unready = path.with_name(path.name + _UNREADY)
    unready.unlink(missing_ok=True)
    try:
        saved = schema.salvage(path, unready)
        unready.chmod(0o600)
        _sync(unready)
        unready.replace(path.with_name(path.name + READY))
    finally:
        unready.unlink(missing_ok=True)
    aside = finish(path)
    return f"{path.name} was damaged: {saved}. The damaged file is kept as {aside.name}"


def finish(path: Path) -> Path:
    """Move the damaged file aside and the salvaged one into place; return the damaged file's path.

    The log is moved first: SQLite would otherwise apply it to the new file.
    """
    aside = put_aside(path, (*LOGS, ""))
    path.with_name(path.name + READY).replace(path)
    _sync(path.parent)
    return aside


def put_aside(path: Path, parts: Sequence[str]) -> Path:
    """Rename the given parts of a database, and return the database's new path."""
    aside = beside(path, "damaged-")
    for suffix in parts:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def _sync(path: Path) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
