"""Puts a damaged database aside and what could be salvaged of it in its place.

It can be killed at any moment: until the salvaged store is whole the damaged one stays where it
is, and from then on `finish` only moves files, which the next process does over if need be. All of
it happens under the exclusive lock.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from hermes_nb.core.text import number_of
from hermes_nb.memory.search import index
from hermes_nb.memory.store.migrations import VERSION
from hermes_nb.memory.store.opening import connect, lost_its_head, primary
from hermes_nb.memory.store.salvage import Salvaged, salvage

BUSY_SECONDS = 5.0
"""How long a check waits for those who read the file; nobody writes it."""
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""What SQLite answers when the file itself is at fault."""
LOGS = ("-wal", "-journal", "-shm")
"""What SQLite keeps beside the file while it is in use."""
_READY = ".salvaged"
_UNREADY = ".salvaged.hermes-tmp"


def is_sound(path: Path) -> bool:
    """Say whether the file is an intact store, or an empty one that can become one.

    Raises sqlite3.Error when it cannot be told: locked, not allowed to be opened.
    """
    if lost_its_head(str(path)):
        return False
    connection = connect(str(path), timeout=BUSY_SECONDS)
    try:
        verdict = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if verdict != "ok":
            return False
        if connection.execute("PRAGMA user_version").fetchone()[0]:
            for table in ("sessions", "messages"):
                connection.execute(f"SELECT 1 FROM {table} LIMIT 1")  # noqa: S608 - ours
    except sqlite3.DatabaseError as error:
        if primary(error) in DAMAGE or "no such table" in str(error):
            return False
        raise
    finally:
        connection.close()
    return True


def check(connection: sqlite3.Connection) -> None:
    """Raise the error of a damaged file if a table of conversations is damaged.

    The index is left out, which takes the longest and is mended when a search meets the damage.
    """
    for table in ("sessions", "messages", "arrangements"):
        (verdict,) = connection.execute(f"PRAGMA quick_check({table})").fetchone()
        if verdict != "ok":
            error = sqlite3.DatabaseError(verdict)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error


def with_new_index(path: Path) -> bool:
    """Make the search index anew; say whether that could be done."""
    connection = connect(str(path), timeout=BUSY_SECONDS)
    try:
        connection.execute("BEGIN IMMEDIATE")
        index.rebuild(connection)
        connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        if primary(error) in DAMAGE:
            return False
        raise
    finally:
        connection.close()
    return True


def is_newer(path: Path) -> bool:
    """Say whether the header, if there is one, tells of a schema that this code does not know."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        head = file.read(64)
    return head.startswith(b"SQLite format 3\0") and int.from_bytes(head[60:64], "big") > VERSION


def replace_damaged(path: Path) -> str:
    """Exchange the damaged file for a store with what could be salvaged; return what happened."""
    unready = path.with_name(path.name + _UNREADY)
    unready.unlink(missing_ok=True)
    try:
        found = salvage(path, unready)
        unready.chmod(0o600)
        _sync(unready)
        unready.replace(path.with_name(path.name + _READY))
    finally:
        unready.unlink(missing_ok=True)
    return _told(path, finish(path), found)


def unfinished(path: Path) -> bool:
    """Say whether a killed process left an exchange half done."""
    return os.access(f"{path}{_READY}", os.F_OK)  # no exception, on the way of every write


def finish(path: Path) -> Path:
    """Put the damaged file aside and the salvaged one in its place; return the former's new name.

    The log goes first: beside the new file it would be taken for the new file's own.
    """
    aside = put_aside(path, (*LOGS, ""))
    path.with_name(path.name + _READY).replace(path)
    _sync(path.parent)
    return aside


def put_aside(path: Path, parts: Sequence[str]) -> Path:
    """Rename those parts of a database, and return its new name."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    aside = path.with_name(f"{path.name}.damaged-{stamp}")
    count = 1
    while aside.exists():
        count += 1
        aside = path.with_name(f"{path.name}.damaged-{stamp}-{count}")
    for suffix in parts:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def _told(path: Path, aside: Path, found: Salvaged) -> str:
    lost = f"; {found.unreadable} more could not be read" if found.unreadable else ""
    saved = f"{number_of(found.messages, 'message')} of {number_of(found.sessions, 'session')}"
    return (
        f"{path.name} was damaged: {saved} could be saved into a new one{lost}. "
        f"The damaged file is kept as {aside.name}"
    )


def _sync(path: Path) -> None:
    """Make a file or a directory durable; not every file system lets a directory be synced."""
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
