"""Tells a fault of the search index from one of the store: the former only needs a new index."""

from __future__ import annotations

import sqlite3
from types import TracebackType

FAULTS = frozenset({sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT})
"""What SQLite answers when the tables of an index contradict each other. Locks, a full disk and
the like are no fault of the index."""


class BrokenIndex(sqlite3.DatabaseError):
    """The search index has to be made anew."""


class _AtWork:
    """A class, not a generator: every write passes through it."""

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if not isinstance(error, sqlite3.DatabaseError):
            return
        if int(getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in FAULTS:
            broken = BrokenIndex(*error.args)
            broken.sqlite_errorcode = sqlite3.SQLITE_CORRUPT_VTAB
            raise broken from error


_AT_WORK = _AtWork()


def at_work() -> _AtWork:
    """Raise `BrokenIndex` for what goes wrong inside where only the index is read or written."""
    return _AT_WORK
