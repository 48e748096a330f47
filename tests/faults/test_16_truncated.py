"""Of a database cut in half, the half that is there is saved, also while it is in use."""

from __future__ import annotations

import os

from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import filled, is_intact, set_aside


def cut(path):
    os.truncate(path, path.stat().st_size // 2)


def saved(store, ids):
    return sum(len(store.rows(session)) for session in ids)


def test_16_truncated(tmp_path):
    path = tmp_path / "n.db"
    ids = filled(path, messages=60)
    cut(path)
    store = SqliteStore(path)
    store.append(ids[0], Message.user("and on"))
    assert store.messages(ids[0])[-1].text == "and on"
    assert saved(store, ids) > 60
    assert store.search("carpenter")
    store.close()
    assert len(set_aside(path)) == 1
    assert len(store.warnings) == 1
    assert is_intact(path)


def test_16_truncated_while_open(tmp_path):
    path = tmp_path / "n.db"
    ids = filled(path, messages=60)
    store = SqliteStore(path)
    store.append(ids[0], Message.user("before"))
    cut(path)
    for n in range(300):
        store.append(ids[2], Message.user(f"{n} after " + "x" * 500))
    texts = [message.text.split()[0] for message in store.messages(ids[2])]
    assert texts[-300:] == [str(n) for n in range(300)]
    store.search("carpenter")
    saved(store, ids)
    store.close()
    assert len(store.warnings) == len(set_aside(path)) <= 1
