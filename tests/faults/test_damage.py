"""Databases that are damaged, cut, emptied or lost: what is there is saved, and a line says so."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import time
from contextlib import closing

import pytest
from hermes_nb import Hermes
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.storage import opening

from tests.faults.stores import WRITER, filled, finished, is_intact, names, run_python, set_aside


# 15: A database whose header is gone is put aside, and its rows are saved into a new one.
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


# 16: Of a database cut in half, the half that is there is saved, also while it is in use.
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


# 17: Random bytes all over a database cost the rows they hit and nothing else.
@pytest.mark.parametrize("seed", range(6))
def test_17_random_bytes(tmp_path, seed):
    path = tmp_path / "n.db"
    ids = filled(path)
    dice = random.Random(seed)
    data = bytearray(path.read_bytes())
    spots = [dice.randrange(100 * (seed % 2), len(data) - 64) for _ in range(6)]
    for spot in spots:
        data[spot : spot + 64] = dice.randbytes(64)
    path.write_bytes(data)
    store = SqliteStore(path)
    store.append(ids[0], Message.user("and on"))
    assert store.messages(ids[0])[-1].text == "and on"
    store.search("walrus")
    kept = sum(len(store.rows(session)) for session in ids)
    # A hit on a row's page may cost all rows of that page (about ten), one on a long message it.
    assert kept >= 121 - 12 * len(spots)
    for session in ids:
        store.messages(session)
    store.close()
    store = SqliteStore(path)
    assert sum(len(store.rows(session)) for session in ids) == kept
    assert store.warnings == [] or "can no longer be read" in store.warnings[0]
    store.close()
    if list(tmp_path.glob("*.damaged-*")):
        assert is_intact(path)


@pytest.mark.parametrize("table", ["sessions", "messages"])
@pytest.mark.parametrize("spot", range(3))
def test_17_an_index_that_misses_rows(tmp_path, table, spot):
    """Random bytes in an open file: SQLite answers as if the rows were not there."""
    path = tmp_path / "n.db"
    ids = filled(path, messages=5)
    with closing(sqlite3.connect(path)) as connection:
        query = "SELECT rootpage FROM sqlite_master WHERE name = ?"
        (page,) = connection.execute(query, (f"sqlite_autoindex_{table}_1",)).fetchone()
    store = SqliteStore(path)
    store.sessions()
    data = path.read_bytes()
    size = int.from_bytes(data[16:18], "big")
    leaf = data[(page - 1) * size : page * size]
    at = leaf.index(ids[spot].encode())
    with path.open("r+b") as file:
        file.seek((page - 1) * size + at)
        file.write(random.Random(spot).randbytes(8))
    store.append(ids[0], Message.user("after"))
    store.incidents()  # by now it was looked through
    store.close()
    store = SqliteStore(path)
    assert [store.get(each) is not None for each in ids] == [True] * 3
    assert [len(store.messages(each)) for each in ids] == [6, 5, 5]
    store.close()
    assert is_intact(path)


# 18: After the file was emptied, the session's row is there again before its next message.
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


# 19: A log of garbage, a log from before, a missing index of the log: the store opens.
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


# 20: A broken search index is made anew, once, and nothing else is touched.
TABLES = ("search_text_data", "search_text_idx", "search_text_config")


@pytest.mark.parametrize("statement", ["UPDATE {} SET {} = x'00'", "DELETE FROM {}"])
@pytest.mark.parametrize("table", TABLES)
def test_20_broken_index(tmp_path, table, statement):
    path = tmp_path / "n.db"
    ids = filled(path)
    connection = sqlite3.connect(path, isolation_level=None)
    column = connection.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchall()[-1][0]
    connection.execute(statement.format(table, column))
    connection.close()
    store = SqliteStore(path)
    for n in range(3):
        store.append(ids[0], Message.user(f"{n} the walrus said"))
        store.search("walrus")
    assert [m.text for m in store.messages(ids[0])][-1] == "2 the walrus said"
    assert len(store.rows(ids[1])) == 40
    store.close()
    assert set_aside(path) == []
    assert len(store.warnings) <= 1
    assert is_intact(path)


# 76: A database lost while it is open: what memory holds is written back, and one line says so.
OTHER = """
import json, sys
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel
with Hermes(ScriptedModel([f"other answer {n}" for n in range(4)]), home=sys.argv[1]) as hermes:
    for line in sys.stdin:
        hermes.ask(line.strip())
        print(json.dumps([hermes.session_id, hermes.warnings]), flush=True)
"""


def truncated(path):
    os.truncate(path, path.stat().st_size // 2)


def overwritten(path):
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(b"not a database " * (size // 15))


def deleted(path):
    path.unlink()


def emptied(path):
    os.truncate(path, 0)


def swapped(path):
    other = path.with_name("other.db")
    filled(other, sessions=1, messages=2)
    other.replace(path)


def folder_gone(path):
    shutil.rmtree(path.parent)


def log_gone(path):
    path.with_name(path.name + "-wal").unlink(missing_ok=True)


def damaged_page(path):
    """Fill a page in the middle of the messages with zeros; nothing says that it was written."""
    with sqlite3.connect(f"file:{path}?mode=ro", uri=True) as connection:
        query = "SELECT pageno FROM dbstat WHERE name = 'messages' AND pagetype = 'leaf'"
        pages = [page for (page,) in connection.execute(query)]
        (size,) = connection.execute("PRAGMA page_size").fetchone()
    connection.close()
    with path.open("r+b") as file:
        file.seek((pages[len(pages) // 2] - 1) * size)
        file.write(b"\0" * size)


def settle():
    """Let so much time pass that the folder is believed to show every change from now on."""
    time.sleep(2 * opening.FINE)


LOSSES = (truncated, overwritten, deleted, emptied, swapped, folder_gone, log_gone, damaged_page)
DAMAGED = (truncated, overwritten, emptied, damaged_page)


@pytest.fixture
def path(home):
    """Return a store whose file holds more than its log."""
    path = home / "notebook.db"
    filled(path)
    return path


def stored(path, session):
    store = SqliteStore(path)
    texts = [message.text for message in store.messages(session)]
    store.close()
    assert store.warnings == []
    assert is_intact(path)
    return texts


@pytest.mark.parametrize("loss", LOSSES)
def test_76_open(path, loss):
    with Hermes(ScriptedModel([f"answer {n}" for n in range(9)]), home=path.parent) as hermes:
        for n in range(3):
            hermes.ask(f"question {n}")
            settle()
        loss(path)
        assert hermes.ask("and now?").reason == "answered"
        texts = [message.text for message in hermes.messages]
        assert len(texts) == 8
        assert stored(path, hermes.session_id) == texts, "after the turn in which it was noticed"
        hermes.ask("and on?")
        texts = [message.text for message in hermes.messages]
    assert stored(path, hermes.session_id) == texts
    assert len(hermes.warnings) == 1
    assert len(set_aside(path)) == (loss in DAMAGED)


@pytest.mark.parametrize("loss", LOSSES)
def test_76_closed(path, loss):
    loss(path)
    with Hermes(ScriptedModel(["one", "two"]), home=path.parent) as hermes:
        hermes.ask("question")
        hermes.ask("question")
    assert len(stored(path, hermes.session_id)) == 4
    assert len(hermes.warnings) == (loss in DAMAGED and loss is not emptied)


@pytest.mark.parametrize("loss", LOSSES)
def test_76_two_kernels(path, loss):
    other = run_python(OTHER, path.parent)

    def ask_other(prompt):
        other.stdin.write(prompt + "\n")
        other.stdin.flush()
        return json.loads(other.stdout.readline())

    with other, Hermes(ScriptedModel([f"answer {n}" for n in range(9)]), home=path.parent) as one:
        for n in range(3):
            one.ask(f"question {n}")
            ask_other(f"other question {n}")
            settle()
        loss(path)
        one.ask("and now?")
        session, told = ask_other("and you?")
        one.ask("and on?")
        other.stdin.close()
    assert stored(path, one.session_id) == [message.text for message in one.messages]
    said = zip(
        ["other question 0", "other question 1", "other question 2", "and you?"],
        range(4),
        strict=True,
    )
    assert stored(path, session) == [text for q, n in said for text in (q, f"other answer {n}")]
    assert len(one.warnings) == 1
    assert len(told) <= 1
    assert len(set_aside(path)) == (loss in DAMAGED)
