"""One connection of a process to a PostgreSQL server: bounded in time, made anew when it is lost.

A lost connection is made again a few times within a second or two; what fails then comes out as
`StoreError`, and for a moment at once, so that nobody waits for each call of a turn. A server that
does not answer, as one that was stopped or cut off, counts as lost after a while.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import LiteralString, TypeVar
from urllib.parse import urlsplit

import psycopg
from psycopg import Connection, errors
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import TransactionStatus
from psycopg.rows import DictRow, dict_row

from hermes_nb.core.errors import StoreError
from hermes_nb.core.threads import hurried

T = TypeVar("T")
Action = Callable[[Connection[DictRow]], T]

PAUSES = (0.1, 0.3, 0.9)
"""Seconds between attempts when the server is lost."""
REST = 2.0
"""Seconds after the last attempt in which calls fail at once."""
CONNECT_SECONDS = 3
PATIENCE = 4.0
"""Seconds after which no further attempt begins."""
STATEMENT_SECONDS = 5
"""After which the server ends a statement by itself."""
ANSWER_SECONDS = STATEMENT_SECONDS + 1.0
"""How long a server may take to answer at all."""

_SETUP: LiteralString = (
    "SELECT pg_catalog.set_config('search_path', 'pg_catalog', false),"  # no function of others'
    " set_config('statement_timeout', %(most)s, false),"
    " set_config('lock_timeout', %(most)s, false),"
    " set_config('idle_in_transaction_session_timeout', '60s', false),"
    " CASE current_setting('synchronous_commit') WHEN 'off'"
    " THEN set_config('synchronous_commit', 'on', false) END,"
    " session_user::text AS owner"
)


class _Bounded(Connection[DictRow]):
    """A connection whose server has to answer within `seconds`."""

    seconds = ANSWER_SECONDS

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        return super().wait(gen, interval, self.seconds if timeout is None else timeout)


class Server:
    """The connection of this process to the server at `url`.

    `checked` is given each new connection and its role, and returns why nothing may be written, ""
    where it may; it raises StoreError for less. `made` counts connections.
    """

    def __init__(
        self, url: str, *, password: str, checked: Callable[[Connection[DictRow], str], str]
    ) -> None:
        self.name = shown(url)
        self.made = 0
        self._url, self._password = url, password
        self._checked = checked
        self._lock = threading.RLock()
        self._connection: _Bounded | None = None
        self._pid = os.getpid()
        self._refusal = ""
        self._lost: tuple[float, str] = (0.0, "")

    def run(
        self, action: Action[T], *, writes: bool = False, again: bool = True, seconds: float = 0.0
    ) -> T:
        """Return what `action` does; raise StoreError.

        Where the connection was lost it is called again, unless it is not to be done `again`: it
        may have been done. `seconds` are for what takes longer than others do.
        """
        if self._pid != os.getpid():  # libpq leaves a parent's connection alone
            self._pid, self._lock, self._connection = os.getpid(), threading.RLock(), None
        with self._lock:
            until, why = self._lost
            if time.monotonic() < until:
                raise StoreError(why)
            deadline = time.monotonic() + PATIENCE
            # A stale connection is always worth a second attempt.
            for pause in (*(PAUSES[:1] if hurried() else PAUSES), None):
                reached = False
                try:
                    connection = self._open()
                    reached = True
                    if writes and self._refusal:
                        raise StoreError(f"{self.name}: {self._refusal}")
                    connection.seconds = seconds or ANSWER_SECONDS
                    return action(connection)
                except (psycopg.Error, UnicodeError, OverflowError) as error:
                    told = StoreError(f"{self.name}: {' '.join(str(error).split())}")
                    lost = not reached or self._is_lost(error)
                    if not lost and not isinstance(error, errors.DeadlockDetected):
                        raise told from error
                    if lost:
                        self.close()
                    last = pause is None or time.monotonic() > deadline
                    if last or (reached and not again):
                        self._lost = time.monotonic() + REST, str(told)
                        raise told from error
                time.sleep(pause or 0.0)
            raise AssertionError

    def _open(self) -> _Bounded:
        if self._connection is not None and not self._connection.closed:
            if self._connection.info.transaction_status == TransactionStatus.IDLE:
                return self._connection
            self.close()  # an interrupt came within a transaction
        address = with_password(self._url, self._password)
        # What is sent once is sent again: a plan costs more than the statement.
        connection = _Bounded.connect(
            address, autocommit=True, prepare_threshold=0, row_factory=dict_row
        )
        try:
            row = connection.execute(_SETUP, {"most": f"{STATEMENT_SECONDS}s"}).fetchone() or {}
            self._refusal = self._checked(connection, row["owner"])
        except BaseException:
            connection.close()
            raise
        self._connection, self.made = connection, self.made + 1
        return connection

    def _is_lost(self, error: BaseException) -> bool:
        # The last one: tables are others than those for which the server has a plan.
        gone = errors.AdminShutdown | errors.CrashShutdown | errors.FeatureNotSupported
        connection = self._connection
        return (
            connection is None
            or connection.closed
            or isinstance(error, gone)
            or connection.info.transaction_status == TransactionStatus.ACTIVE  # no answer
        )

    def close(self) -> None:
        """Close the connection; the next call makes another one, at once."""
        with self._lock, suppress(psycopg.Error):
            self._lost = 0.0, ""
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


def with_password(url: str, password: str) -> str:
    """Return what libpq connects to; without a password it looks for one in its own files."""
    more = {"password": password} if password else {}
    return make_conninfo(
        url,
        client_encoding="utf8",
        connect_timeout=CONNECT_SECONDS,
        application_name="hermes_nb",
        **more,
    )


def shown(url: str) -> str:
    """Return an address as it may be shown: without a password, and what follows its path."""
    parts = urlsplit(url)
    user, at, servers = parts.netloc.rpartition("@")
    return f"postgresql://{user.partition(':')[0]}{at}{servers}{parts.path}"
