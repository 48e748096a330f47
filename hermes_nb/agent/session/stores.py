"""Opens the session store in the settings, and deletes sessions older than `keep_days`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing, suppress
from threading import Thread
from typing import cast
from urllib.parse import urlsplit

from hermes_nb.agent.settings.config import Settings
from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.core.plugins import loaded, plugins
from hermes_nb.core.protocols import STORES, SessionStore, StoreSetup
from hermes_nb.memory.sessions import Ledger, SqliteStore


def keep_days(store: SessionStore, settings: Settings) -> None:
    """Delete old sessions on a separate connection; the next user of `store` is notified."""
    from hermes_nb.agent.session.retention import forget, gather, older

    days = settings.keep_days
    with suppress(HermesError, OSError), closing(own_store(settings)) as apart:
        if old := older(apart, days):
            what = gather(apart, settings.home, old)
            forget(apart, settings.home, what, days=days)
            if isinstance(store, Ledger):
                text = f"deleted {what} older than {days} days (store.keep_days)"
                store.database.warnings.append(text)


def own_store(settings: Settings, warn: Callable[[str], None] | None = None) -> SessionStore:
    """Return the store in the settings; raise `ConfigError` if its package is not installed.

    Claims and other data about this machine are always stored in the Hermes directory's file.
    """
    file, url = settings.home / "notebook.db", settings.session_store
    if not url:
        return SqliteStore(file, warn=warn)
    point = next(iter(plugins(STORES, urlsplit(url).scheme)), None)
    if point is None:
        raise ConfigError(
            f"no installed package provides a session store for {urlsplit(url).scheme}: addresses"
        )
    make = cast("Callable[[StoreSetup], SessionStore]", loaded(point))
    return make(StoreSetup(url=url, claims=file, password=settings.store_password, warn=warn))


def is_stored(settings: Settings) -> bool:
    """Return whether there may be stored sessions, without creating a file."""
    return bool(settings.session_store) or (settings.home / "notebook.db").exists()


def open_store(settings: Settings, warn: Callable[[str], None]) -> SessionStore:
    """Return the session store, which is created by the first write.

    `warn` is called for damage, whether or not it could be repaired. Because each process opens the
    store once, `warn` is also called for unknown settings and for those that the administrator's
    policy overrides.
    """
    for line in (*settings.unknown, *settings.held.values()):
        warn(line)
    store = own_store(settings, warn)
    if settings.keep_days and is_stored(settings):
        Thread(target=keep_days, args=(store, settings), name="hermes-forget", daemon=True).start()
    return store
