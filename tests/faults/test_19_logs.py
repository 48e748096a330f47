"""A log of garbage, a log from before, a missing index of the log: the store opens."""

from __future__ import annotations

import random

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import filled, is_intact, names


@pytest.mark.parametrize(
    "log", [b"", b"garbage", random.Random(1).randbytes(100_000)], ids=["empty", "text", "bytes"]
)
def test_19_garbage_in_the_log(tmp_path, log):
    path = tmp_path / "n.db"
    ids = filled(path)
    path.with_name("n.db-wal").write_bytes(log)
    path.with_name("n.db-shm").write_bytes(log)
    store = SqliteStore(path)
    store.append(ids[0], Message.user("and on"))
    assert len(store.messages(ids[0])) == 41
    store.close()
    assert store.warnings == []
    assert is_intact(path)
    assert names(path) == {"n.db"}


def test_19_what_a_killed_process_left(tmp_path):
    path, copy = tmp_path / "a" / "n.db", tmp_path / "b" / "n.db"
    store = SqliteStore(path)
    session = store.start()
    for n in range(20):
        store.append(session, Message.user(f"m{n}"))
    copy.parent.mkdir()
    for suffix in ("", "-wal"):  # and no -shm
        source = path.with_name(path.name + suffix)
        copy.with_name(copy.name + suffix).write_bytes(source.read_bytes())
    store.close()
    again = SqliteStore(copy)
    assert len(again.messages(session)) == 20
    again.close()
    assert names(copy) == {"n.db"}


def test_19_the_log_does_not_grow_without_bound(tmp_path):
    path = tmp_path / "n.db"
    store = SqliteStore(path)
    session = store.start()
    for _ in range(30):
        store.append(session, Message.user("x" * 1_000_000))
    assert path.with_name("n.db-wal").stat().st_size < 8_000_000
    store.close()
    assert names(path) == {"n.db"}
