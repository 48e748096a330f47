"""However an exchange is interrupted, the next process has the rows, and nobody's are lost."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.schema import salvage
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.storage import opening

from tests.faults.stores import filled, is_intact, killed, names, run_python, set_aside

pytestmark = pytest.mark.slow


@pytest.fixture
def broken(tmp_path):
    path = tmp_path / "n.db"
    ids = filled(path)
    with path.open("r+b") as file:
        file.write(b"\0" * 100)
    return path, ids


class Killed(BaseException):
    """As sudden as a signal: nothing between here and the test catches it."""


@pytest.mark.parametrize("moves", range(8))
def test_an_exchange_that_was_cut_short_is_finished_by_the_next(broken, monkeypatch, moves):
    path, ids = broken
    path.with_name("n.db-wal").write_bytes(b"a log")
    path.with_name("n.db-shm").write_bytes(b"its index")
    left = moves

    def counted(method):
        def move(self, target):
            nonlocal left
            if left == 0:
                raise Killed
            left -= 1
            return method(self, target)

        return move

    with monkeypatch.context() as patch:
        for name in ("rename", "replace"):
            patch.setattr(type(path), name, counted(getattr(type(path), name)))
        store = SqliteStore(path)
        with suppress(Killed):
            store.sessions()
        store.close()
    store = SqliteStore(path)
    assert {session.id for session in store.sessions()} == set(ids)
    assert all(len(store.messages(session)) == 40 for session in ids)
    store.append(ids[0], Message.user("and on"))
    store.close()
    assert is_intact(path)
    assert len([name for name in names(path) if name[-1].isdigit()]) == 1
    assert not opening.unfinished(path)


def test_killed_while_it_saves(tmp_path):
    original = tmp_path / "original" / "n.db"
    ids = filled(original, messages=150)
    with original.open("r+b") as file:
        file.write(b"\0" * 100)
    script = """
    import sys
    from hermes_nb.memory.sessions import SqliteStore
    print("begun", flush=True)
    SqliteStore(sys.argv[1]).sessions()
    """
    for round_ in range(4):
        path = tmp_path / str(round_) / "n.db"
        path.parent.mkdir()
        shutil.copy(original, path)
        killed(run_python(script, path), random.Random(round_).uniform(0.1, 0.5))
        store = SqliteStore(path)
        assert sum(len(store.messages(session)) for session in ids) == 450
        store.close()
        assert len(set_aside(path)) == 1
        assert len(names(path)) == 2
        assert is_intact(path)


def test_compressions_families_and_counters_are_saved_too(tmp_path):
    path, target = tmp_path / "n.db", tmp_path / "saved.db"
    store = SqliteStore(path)
    store.start(session_id="parent")
    store.start(session_id="child", parent="parent")
    for n in range(6):
        store.append("child", Message.user(f"m{n}"))
    before = store.messages("child")
    store.replace("child", [before[0], Message.user("summary"), before[5]])
    after = store.messages("child")
    store.close()
    assert salvage(path, target) == "7 messages of 2 sessions could be saved into a new one"
    saved = SqliteStore(target)
    assert saved.messages("child") == after
    assert saved.get("child").messages == 3
    assert saved.lineage("child") == ["parent", "child"]
    assert saved.restore("child") == before
    saved.close()


def test_messages_without_a_session_get_one(tmp_path):
    path, target = tmp_path / "n.db", tmp_path / "saved.db"
    store = SqliteStore(path)
    store.append("s", Message.user("the walrus"))
    store.database.write(lambda c: c.execute("UPDATE sessions SET title = x'ff'"))
    store.close()
    salvage(path, target)
    saved = SqliteStore(target)
    assert saved.get("s").source == "salvaged"
    assert [hit.session_id for hit in saved.search("walrus")] == ["s"]
    saved.close()
