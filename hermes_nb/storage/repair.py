"""Put another file in the place of a damaged one.

The exchange can be killed at any moment: until the salvaged file is whole the damaged one stays
where it is, and from then on `finish` only moves files, which the next process does over if need
be. All of it happens under the exclusive lock.
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
"""How long a check waits for those who read the file; nobody writes it."""
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""What SQLite answers when the file itself is at fault."""
LOGS = ("-wal", "-journal", "-shm")
"""What SQLite keeps beside the file while it is in use."""
_UNREADY = ".salvaged.hermes-tmp"


def is_sound(path: Path, schema: Schema) -> bool:
    """Say whether the file is intact, or an empty one that can become so.

    Raises sqlite3.Error when it cannot be told: locked, not allowed to be opened.
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
    """Raise the error of a damaged file if one of its tables is damaged, or an index of one.

    The search index is left out, which takes the longest and is mended when a search meets the
    damage. A quick check would not see rows that an index misses, and takes as long (0.2 s of CPU
    for 60,000 messages).
    """
    for table in schema.tables:
        (verdict,) = connection.execute(f"PRAGMA integrity_check({table})").fetchone()
        if verdict != "ok":
            error = sqlite3.DatabaseError(verdict)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error


def with_new_index(path: Path, schema: Schema) -> bool:
    """Make the index anew; say whether that could be done."""
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
    """Say whether the header, if there is one, tells of a schema that this code does not know."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        head = file.read(64)
    return head.startswith(MAGIC) and int.from_bytes(head[60:64], "big") > schema.version


def replace_damaged(path: Path, schema: Schema) -> str:
    """Exchange the damaged file for one with what could be salvaged; return what happened."""
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
    """Put the damaged file aside and the salvaged one in its place; return the former's new name.

    The log goes first: beside the new file it would be taken for the new file's own.
    """
    aside = put_aside(path, (*LOGS, ""))
    path.with_name(path.name + READY).replace(path)
    _sync(path.parent)
    return aside


def put_aside(path: Path, parts: Sequence[str]) -> Path:
    """Rename those parts of a database, and return its new name."""
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
