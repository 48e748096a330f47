"""What everything that keeps rows in the store's file has in common: repair, errors, warnings."""

from __future__ import annotations

import functools
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from hermes_nb.core.errors import StoreError
from hermes_nb.memory.store import quarantine
from hermes_nb.memory.store.database import Database

Method = TypeVar("Method", bound=Callable[..., Any])


class Guarded:
    """The file at `path`, with methods that are `guarded`; `:memory:` keeps nothing.

    `warn` is told once of each thing the user has to know, such as a damaged file put aside;
    without it (it may also be set later) the sentences collect in `warnings`.
    """

    def __init__(self, path: str | Path, *, warn: Callable[[str], None] | None = None) -> None:
        self.path = str(path)
        self.warn = warn
        self.warnings: list[str] = []
        self.database = Database(self.path, self.warnings.append)
        self._looking: threading.Thread | None = None

    def close(self) -> None:
        """Close the file; a later call opens it again."""
        if self._looking is not None:
            self._looking.join()
        self.database.close()

    def incidents(self) -> int:
        """Return how often something happened that may have cost messages.

        Waits for the look through the file that follows when it was opened, or written by others.
        """
        if self._looking is not None:
            self._looking.join()
        self.deliver()
        return self.database.incidents

    def look(self) -> None:
        """Look through the tables in the background if there is reason to."""
        busy = self._looking is not None and self._looking.is_alive()
        if self.database.doubtful and not busy:
            self.database.doubtful = False
            self._looking = threading.Thread(target=self._check, name="hermes-store", daemon=True)
            self._looking.start()

    def _check(self) -> None:
        """Mend the file if a table is damaged; a connection apart keeps nobody waiting."""
        try:
            with closing(Database(self.path, self.warnings.append)) as apart:
                apart.read(quarantine.check)
        except sqlite3.Error as error:
            with suppress(sqlite3.Error, OSError, StoreError):
                self.database.repair(error, attempt=0)
        except (OSError, StoreError):  # whoever needs the file hears of it
            return

    def deliver(self) -> None:
        """Hand the warnings that have collected to `warn`, if there is somebody to hear them."""
        while self.warn is not None:
            try:
                sentence = self.warnings.pop(0)
            except IndexError:  # another thread may have been faster
                return
            self.warn(sentence)


def guarded(method: Method) -> Method:
    """Try again after a repair; turn what remains of database faults into `StoreError`."""

    @functools.wraps(method)
    def wrapper(self: Guarded, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - passed on
        attempt = 0
        try:
            while True:
                try:
                    return method(self, *args, **kwargs)
                except sqlite3.Error as error:
                    if not self.database.repair(error, attempt=attempt):
                        raise
                attempt += 1
        except (sqlite3.Error, OSError, UnicodeError, OverflowError) as error:
            message = f"session store {self.path}: {error}"
            raise StoreError(message) from error
        finally:
            self.deliver()
            self.look()

    return cast("Method", wrapper)
