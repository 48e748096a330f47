"""After the file was emptied, the session's row is there again before its next message."""

from __future__ import annotations

from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import filled, is_intact, set_aside


def test_18_emptied(tmp_path):
    path = tmp_path / "n.db"
    filled(path)
    path.write_bytes(b"")
    store = SqliteStore(path)
    session = store.start(title="new")
    store.append(session, Message.user("first"))
    assert [stored.title for stored in store.sessions()] == ["new"]
    store.close()
    assert is_intact(path)


def test_18_emptied_while_open(tmp_path):
    path = tmp_path / "n.db"
    store = SqliteStore(path)
    session = store.start(title="the walrus", notebook="/w/a.ipynb", system_prompt="p")
    for n in range(3):
        store.append(session, Message.user(f"m{n}"))
    path.write_bytes(b"")
    for n in range(3, 6):
        store.append(session, Message.user(f"m{n}"))
    stored = store.get(session)
    assert (stored.title, stored.notebook, stored.system_prompt) == (
        "the walrus",
        "/w/a.ipynb",
        "p",
    )
    assert [message.text for message in store.messages(session)][-3:] == ["m3", "m4", "m5"]
    store.close()
    assert is_intact(path)


def test_18_removed_while_open(tmp_path):
    path = tmp_path / "n.db"
    store = SqliteStore(path)
    session = store.start(title="the walrus")
    store.append(session, Message.user("m0"))
    for each in tmp_path.iterdir():
        each.unlink()
    store.append(session, Message.user("m1"))
    assert store.get(session).title == "the walrus"
    assert [message.text for message in store.messages(session)] == ["m1"]
    store.close()


def test_18_the_log_of_an_emptied_file_is_saved(tmp_path):
    path, copy = tmp_path / "a" / "n.db", tmp_path / "b" / "n.db"
    store = SqliteStore(path)
    session = store.start(title="the walrus")
    for n in range(5):
        store.append(session, Message.user(f"m{n}"))
    copy.parent.mkdir()
    copy.write_bytes(b"")
    copy.with_name("n.db-wal").write_bytes(path.with_name("n.db-wal").read_bytes())
    store.close()
    again = SqliteStore(copy)
    assert [message.text for message in again.messages(session)] == [f"m{n}" for n in range(5)]
    assert again.get(session).title == "the walrus"
    assert len(again.warnings) == 1 and len(set_aside(copy)) == 1
    again.close()
