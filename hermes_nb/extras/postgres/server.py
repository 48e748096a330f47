"""One connection per process to a PostgreSQL server, with timeouts and automatic reconnection.

After a lost connection, a call reconnects a few times within about two seconds. If that fails, it
raises `StoreError`. For `REST` seconds after that, all calls raise it immediately, so that a turn
does not wait on every call. A server that does not answer, because it is stopped or unreachable,
counts as lost after a timeout.
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
"""Seconds between attempts to reconnect."""
REST = 2.0
"""Seconds after the last attempt during which calls fail immediately."""
CONNECT_SECONDS = 3
PATIENCE = 4.0
"""Seconds after the start of a call during which further attempts to reconnect are made."""
STATEMENT_SECONDS = 5
"""Seconds after which the server cancels a statement."""
ANSWER_SECONDS = STATEMENT_SECONDS + 1.0
"""Seconds to wait for any response from the server."""

_SETUP: LiteralString = (
    # The search path excludes other users' functions.
    "SELECT pg_catalog.set_config('search_path', 'pg_catalog', false),"
    " set_config('statement_timeout', %(most)s, false),"
    " set_config('lock_timeout', %(most)s, false),"
    " set_config('idle_in_transaction_session_timeout', '60s', false),"
    " CASE current_setting('synchronous_commit') WHEN 'off'"
    " THEN set_config('synchronous_commit', 'on', false) END,"
    " session_user::text AS owner"
)


class _Bounded(Connection[DictRow]):
    """A connection whose server must answer within `seconds`."""

    seconds = ANSWER_SECONDS

    def wait(self, gen: PQGen[T], interval: float = 0.1, timeout: float | None = None) -> T:
        return super().wait(gen, interval, self.seconds if timeout is None else timeout)


class Server:
    """The process's connection to the server at `url`.

    `checked` is called with each new connection and its role. It returns the reason the server is
    read-only, or "" if it is writable, and raises StoreError if it is not even readable. `made`
    counts connections.
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
        """Return the result of `action`; raise StoreError if it fails.

        The action is retried after a lost connection. Set `again=False` if it is not idempotent,
        because it may have been executed before the connection was lost.

        Args:
            action: Called with the connection.
            writes: Whether the action writes.
            again: Whether the action can be executed twice.
            seconds: Timeout for a long action; 0 for the default.
        """
        if self._pid != os.getpid():  # libpq must not touch the parent's connection
            self._pid, self._lock, self._connection = os.getpid(), threading.RLock(), None
        with self._lock:
            until, why = self._lost
            if time.monotonic() < until:
                raise StoreError(why)
            deadline = time.monotonic() + PATIENCE
            # A connection may be stale, so there is always a second attempt, even in a hurry.
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
            self.close()  # an interrupt occurred during a transaction
        address = with_password(self._url, self._password)
        # Prepare every statement, since planning costs more than executing it.
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
        # The last error occurs if the server has a cached plan for tables that have since changed.
        gone = errors.AdminShutdown | errors.CrashShutdown | errors.FeatureNotSupported
        connection = self._connection
        return (
            connection is None
            or connection.closed
            or isinstance(error, gone)
            or connection.info.transaction_status == TransactionStatus.ACTIVE  # timed out
        )

    def close(self) -> None:
        """Close the connection; the next call reconnects immediately."""
        with self._lock, suppress(psycopg.Error):
            self._lost = 0.0, ""
            connection, self._connection = self._connection, None
            if connection is not None:
                connection.close()


def with_password(url: str, password: str) -> str:
    """Return the connection string; without a password, libpq looks in its own files."""
    more = {"password": password} if password else {}
    return make_conninfo(
        url,
        client_encoding="utf8",
        connect_timeout=CONNECT_SECONDS,
        application_name="hermes_nb",
        **more,
    )


def shown(url: str) -> str:
    """Return an address for display, without the password and the query string."""
    parts = urlsplit(url)
    user, at, servers = parts.netloc.rpartition("@")
    return f"postgresql://{user.partition(':')[0]}{at}{servers}{parts.path}"
