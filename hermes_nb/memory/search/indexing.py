"""Tells a fault of the search index from one of the store: the former only needs a new index."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

FAULTS = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT})
"""What SQLite answers when the tables of an index contradict each other. Locks, a full disk and
the like are no fault of the index."""


class BrokenIndex(sqlite3.DatabaseError):
    """The search index has to be made anew."""


@contextmanager
def at_work() -> Iterator[None]:
    """Raise `BrokenIndex` for what goes wrong inside where only the index is read or written."""
    try:
        yield
    except sqlite3.DatabaseError as error:
        if int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF not in FAULTS:
            raise
        broken = BrokenIndex(*error.args)
        broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT_VTAB
        raise broken from error
