"""A database lost while it is open: what memory holds is written back, and one line says so."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3

import pytest
from hermes_nb import Hermes
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel

from tests.faults.stores import filled, is_intact, run_python, set_aside

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
