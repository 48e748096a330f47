"""A database whose header is gone is put aside, and its rows are saved into a new one."""

from __future__ import annotations

import time

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import WRITER, filled, finished, is_intact, names, run_python, set_aside


def test_15_header_zeroed(tmp_path):
    path = tmp_path / "n.db"
    ids = filled(path)
    before = path.read_bytes()
    with path.open("r+b") as file:
        file.write(b"\0" * 100)
    warnings = []
    store = SqliteStore(path, warn=warnings.append)
    assert [session.id for session in store.sessions()] == ids[::-1]
    assert [session.title for session in store.sessions()] == [f"session {n}" for n in (2, 1, 0)]
    for number, session in enumerate(ids):
        texts = [message.text for message in store.messages(session)]
        assert [text.split()[0] for text in texts] == [f"{number}.{i}" for i in range(40)]
    assert {hit.session_id for hit in store.search("walrus", limit=120)} == set(ids)
    store.append(ids[0], Message.user("and on"))
    store.close()
    (aside,) = set_aside(path)
    assert aside.read_bytes()[100:] == before[100:]
    assert len(warnings) == 1 and aside.name in warnings[0] and "120 messages" in warnings[0]
    assert names(path) == {"n.db", aside.name}
    assert is_intact(path)
    assert path.stat().st_mode & 0o777 == 0o600


def test_15_two_kernels_meet_the_damage_at_once(tmp_path):
    path = tmp_path / "n.db"
    ids = filled(path)
    with path.open("r+b") as file:
        file.write(b"\0" * 100)
    script = """
    import sys
    from hermes_nb.core.messages import Message
    from hermes_nb.memory.sessions import SqliteStore
    store = SqliteStore(sys.argv[1], warn=print)
    store.append(sys.argv[2], Message.user("from " + sys.argv[3]))
    """
    told = []
    for process in [run_python(script, path, ids[0], n) for n in range(4)]:
        told += finished(process)
    assert len(told) == 1
    assert len(set_aside(path)) == 1
    store = SqliteStore(path)
    assert {message.text for message in store.messages(ids[0])[-4:]} == {
        f"from {n}" for n in range(4)
    }
    store.close()


@pytest.mark.slow
def test_15_while_others_write(tmp_path):
    path = tmp_path / "n.db"
    filled(path, sessions=4, messages=100)
    processes = [run_python(WRITER, path, n, 200) for n in range(4)]
    time.sleep(1.5)
    with path.open("r+b") as file:
        file.write(b"\0" * 100)
    acknowledged = [finished(process) for process in processes]
    store = SqliteStore(path)
    for session, *lines in acknowledged:
        texts = [message.text.split()[0] for message in store.messages(session)]
        assert texts == [line.split()[0] for line in lines] == [str(n) for n in range(200)]
    store.close()
    # None, if every page that was read after the damage was in the log or in memory.
    assert len(set_aside(path)) <= 1
    assert is_intact(path)
