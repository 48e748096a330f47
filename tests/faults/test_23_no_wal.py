"""Where the file system has no locks or no shared memory, a rollback journal does it."""

from __future__ import annotations

import sqlite3
import sys

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.storage import opening

from tests.faults.stores import filled, is_intact, names


def mode(store):
    return store.database.read(lambda c: c.execute("PRAGMA journal_mode").fetchone()[0])


def use(path):
    store = SqliteStore(path)
    session = store.start()
    for n in range(5):
        store.append(session, Message.user(f"{n} the walrus"))
    assert mode(store) == "delete"
    assert len(store.search("walrus", session_id=session)) == 5
    store.close()
    assert store.warnings == []
    return session


@pytest.fixture
def without_locks(monkeypatch):
    """Open every database by SQLite's own driver for file systems without locks."""
    if sys.platform == "win32":
        pytest.skip("the driver is SQLite's for Unix")
    connect = sqlite3.connect

    def plain(address, **options):
        address = address if address.startswith("file:") else f"file:{address}"
        return connect(f"{address}?vfs=unix-none", **options | {"uri": True})

    monkeypatch.setattr(sqlite3, "connect", plain)


def test_23_no_locks(tmp_path, without_locks):
    path = tmp_path / "n.db"
    use(path)
    use(path)
    assert names(path) == {"n.db"}


def test_23_a_wal_meets_a_file_system_without(tmp_path, request):
    path = tmp_path / "n.db"
    ids = filled(path)
    request.getfixturevalue("without_locks")
    use(path)
    store = SqliteStore(path)
    assert len(store.messages(ids[0])) == 40
    store.close()


def test_23_a_network_file_system(tmp_path, monkeypatch):
    path = tmp_path / "n.db"
    ids = filled(path)
    monkeypatch.setattr(opening, "on_network", lambda _: True)
    use(path)
    store = SqliteStore(path)
    assert len(store.messages(ids[0])) == 40
    store.close()
    assert is_intact(path)
    assert names(path) == {"n.db"}
    monkeypatch.undo()
    store = SqliteStore(path)
    store.append(ids[0], Message.user("and on"))
    assert mode(store) == "wal"
    store.close()
