"""Opening somebody else's SQLite file without leaving a trace beside it.

A WAL database needs `-wal` and `-shm` files even to be read, and SQLite makes them where they are
missing; a reader that may not write cannot remove them again. So there are two ways in. While its
owner is at it, there is a log or a journal, and the file is opened read-only, its shared memory
too (`readonly_shm`). Otherwise the file alone is the whole truth: it is read as it lies, without
locks, and whether it stayed as it was is checked afterwards.

The file is never opened by hand: closing a descriptor of it would take away the locks that another
connection in this process holds (POSIX advisory locks).
"""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.parse import quote

BUSY_SECONDS = 0.3


class Unreadable(Exception):  # noqa: N818 - a state of the file
    """The file is there and cannot be read; the text says why."""


class Changed(Unreadable):
    """The file was written while it was read; what was read may be wrong, try again."""


@contextmanager
def connect(path: Path) -> Iterator[sqlite3.Connection]:
    """Yield a connection that reads `path`.

    Raises FileNotFoundError where there is nothing yet, Unreadable, sqlite3.Error. What was read
    counts only if the block ends without an exception: its end may raise Changed.
    """
    status = os.stat(path)  # noqa: PTH116 - as below
    if not stat.S_ISREG(status.st_mode):
        message = f"{path.name} is not a regular file"
        raise Unreadable(message)
    if not status.st_size:
        raise FileNotFoundError(path)
    logged = bool(_size(path, "-wal"))
    if logged and _size(path, "-shm") is None:
        message = f"{path.name} was not closed properly; its owner repairs it when it starts"
        raise Unreadable(message)
    alone = not logged and _size(path, "-journal") is None
    options = "mode=ro&readonly_shm=1" + ("&immutable=1" if alone else "")
    uri = f"file:{quote(os.fsencode(path.absolute()))}?{options}"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS)) as connection:
            connection.row_factory = sqlite3.Row
            connection.text_factory = lambda data: data.decode("utf-8", "replace")
            connection.execute("PRAGMA query_only = ON")
            yield connection
    finally:
        if alone and _stamp(os.stat(path)) != _stamp(status):  # noqa: PTH116
            message = f"{path.name} is being written; try again in a moment"
            raise Changed(message)


def _stamp(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_ino, status.st_size, status.st_mtime_ns


def _size(path: Path, suffix: str) -> int | None:
    """Return the size of the file beside `path`, None where there is none."""
    try:
        return path.with_name(path.name + suffix).stat().st_size
    except OSError:
        return None
