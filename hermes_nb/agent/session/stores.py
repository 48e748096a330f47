"""Open the session store that the settings name, and delete what is older than they keep."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from threading import Thread
from typing import cast
from urllib.parse import urlsplit

from hermes_nb.agent.session.retention import forget, gather, older
from hermes_nb.agent.settings.config import Settings
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import STORES, SessionStore, StoreSetup
from hermes_nb.memory.sessions import Ledger, SqliteStore


def keep_days(store: SessionStore, settings: Settings) -> None:
    """Forget what is older, by a connection apart; the next to use `store` hears of it."""
    days = settings.keep_days
    with suppress(HermesError, OSError), closing(own_store(settings)) as apart:
        if old := older(apart, days):
            what = gather(apart, settings.home, old)
            forget(apart, settings.home, what, days=days)
            if isinstance(store, Ledger):
                told = f"deleted {what} older than {days} days (store.keep_days)"
                store.database.warnings.append(told)


def own_store(settings: Settings, warn: Callable[[str], None] | None = None) -> SessionStore:
    """Return the store that the settings name; raise `ConfigError` for one that is not installed.

    Claims, and whatever else is of one machine alone, stay in the home's file in any case.
    """
    file, url = settings.home / "notebook.db", settings.session_store
    if not url:
        return SqliteStore(file, warn=warn)
    point = next(iter(plugins(STORES, urlsplit(url).scheme)), None)
    if point is None:
        raise ConfigError(f"nothing that is installed keeps sessions at {urlsplit(url).scheme}:")
    make = cast("Callable[[StoreSetup], SessionStore]", loaded(point))
    return make(StoreSetup(url=url, claims=file, password=settings.store_password, warn=warn))


def is_stored(settings: Settings) -> bool:
    """Say whether there may be sessions: to look is no reason to make a file."""
    return bool(settings.session_store) or (settings.home / "notebook.db").exists()


def open_store(settings: Settings, warn: Callable[[str], None]) -> SessionStore:
    """Return the session store; nothing is created before something is stored.

    `warn` hears of damage that was repaired, and of what could not be; and, as this is done once,
    of settings that nothing reads, and of those that the administrator's policy does not let count.
    """
    for line in (*settings.unknown, *settings.held.values()):
        warn(line)
    store = own_store(settings, warn)
    if settings.keep_days and is_stored(settings):
        Thread(target=keep_days, args=(store, settings), name="hermes-forget", daemon=True).start()
    return store
