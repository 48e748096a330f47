"""The index hears of messages some at a time; whoever searches finds them all the same."""

from __future__ import annotations

import sqlite3

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory import rows
from hermes_nb.memory.search import index
from hermes_nb.memory.sessions import SqliteStore
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.faults.stores import finished, run_python

APPENDER = """
import sys, time
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
store = SqliteStore(sys.argv[1])
session = store.start(session_id=sys.argv[2])
for n in range(int(sys.argv[3])):
    store.append(session, Message.user(f"{n} walrus {sys.argv[2]}"))
print(session, flush=True)
time.sleep(float(sys.argv[4]))
"""


@pytest.fixture
def path(tmp_path):
    return tmp_path / "n.db"


@pytest.fixture
def store(path):
    store = SqliteStore(path)
    yield store
    store.close()


def behind(path):
    """Return how many messages the index of a file does not have."""
    connection = sqlite3.connect(path)
    try:
        (newest,) = connection.execute("SELECT coalesce(max(id), 0) FROM messages").fetchone()
        return newest - (index.last_indexed(connection) or 0)
    finally:
        connection.close()


def found(store, query, **options):
    return {(hit.session_id, hit.position) for hit in store.search(query, limit=1_000, **options)}


def test_messages_are_indexed_together(store, path):
    session = store.start()
    for n in range(index.TOGETHER - 1):
        store.append(session, Message.user(f"{n} walrus"))
    assert behind(path) == index.TOGETHER - 1
    store.append(session, Message.user("one more"))
    store.close()  # waits for the thread that indexes
    assert behind(path) == 0
    store.append(session, Message.user("late walrus"))
    assert behind(path) == 1
    assert (session, index.TOGETHER) in found(store, "late")
    assert behind(path) == 0
    store.append(session, Message.user("small"))
    store.append(session, Message.user("walrus " * index.LARGE))  # which does not wait
    store.close()
    assert behind(path) == 0


def test_documents_are_made_while_others_write(store, path, monkeypatch):
    session = store.start()
    store.append(session, Message.user("an indexed walrus"))
    store.search("walrus")
    store.append(session, Message.user("a heron"))
    written = []

    def document(source):
        other = sqlite3.connect(path, timeout=0)
        other.execute("BEGIN IMMEDIATE")  # raises where somebody holds the lock
        other.close()
        written.append(source)
        return made(source)

    made = index._document
    monkeypatch.setattr(index, "_document", document)
    assert found(store, "heron") == {(session, 1)}
    assert len(written) == 1


@pytest.mark.parametrize(("elsewhere", "anew"), [(False, False), (True, False), (False, True)])
def test_what_was_prepared_may_be_outdated(store, path, elsewhere, anew):
    gone, kept = store.start(), store.start()
    store.append(kept, Message.user("a heron"))
    store.append(gone, Message.user("a walrus"))
    prepared = index.made_of(store.database.read(index.waiting))
    other = SqliteStore(path) if elsewhere else store
    other.delete(gone)
    other.append(other.start(session_id=gone), Message.user("a stork"))
    if elsewhere:
        other.close()
    if anew:
        store.database.write(lambda c: index.rebuild(c, prepared))
    store.database.write(lambda c: index.catch_up(c, prepared))
    assert found(store, "walrus") == set()
    assert found(store, "heron") == {(kept, 0)}
    assert found(store, "stork") == {(gone, 0)}


def test_an_append_is_safe_whatever_becomes_of_the_index(store, path, monkeypatch):
    monkeypatch.setattr(index, "TOGETHER", 1)
    monkeypatch.setattr("hermes_nb.memory.sessions.APPEND_SECONDS", 0.0)
    session = store.start()
    append = rows.append

    def overtaken(connection, *arguments):
        due = append(connection, *arguments)
        connection.execute("COMMIT")
        other.execute("BEGIN IMMEDIATE")
        connection.execute("BEGIN")
        return due

    other = sqlite3.connect(path, isolation_level=None, timeout=1)
    with monkeypatch.context() as patch:
        patch.setattr(rows, "append", overtaken)
        store.append(session, Message.user("walrus"))
    store.close()  # waits for the thread that indexes, and cannot
    other.execute("ROLLBACK")
    other.close()
    assert [message.text for message in store.messages(session)] == ["walrus"]
    assert behind(path) == 1
    assert found(store, "walrus") == {(session, 0)}


def test_what_other_processes_left_is_found(store, path):
    finished(run_python(APPENDER, path, "first", 3, 0))
    assert found(store, "walrus") == {("first", n) for n in range(3)}
    with run_python(APPENDER, path, "other", 40, 60) as process:
        process.stdout.readline()
        process.kill()
    assert behind(path) == 40
    assert len(found(store, "walrus")) == 43
    assert behind(path) == 0


def test_a_file_that_cannot_be_written_is_searched_to_its_end(store, path, monkeypatch):
    session = store.start()
    store.append(session, Message.user("an indexed walrus"))
    assert found(store, "walrus") == {(session, 0)}
    store.append(session, Message.user("a later walrus, and a heron"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    monkeypatch.setattr("hermes_nb.memory.sessions.SEARCH_SECONDS", 0.05)
    assert found(store, "walrus") == {(session, 0), (session, 1)}
    assert found(store, '"later walrus"') == {(session, 1)}
    assert found(store, "heron", exclude=[session]) == set()
    assert store.search("heron", limit=1)[0].position == 1
    assert behind(path) == 1
    other.execute("ROLLBACK")
    other.close()
    assert found(store, "walrus") == {(session, 0), (session, 1)}
    assert behind(path) == 0


def test_words_of_a_write_that_failed_are_not_taken_for_known(store):
    session = store.start()
    store.append(session, Message.user("heron"))
    store.search("heron")

    def roll_back(connection):
        connection.execute(
            "INSERT INTO messages (session, position, role, body, at)"
            " VALUES (?, 9, 'user', 'xylophone', 0)",
            (session,),
        )
        index.catch_up(connection)
        connection.execute("ROLLBACK")
        connection.execute("BEGIN")

    store.database.write(roll_back)
    store.append(session, Message.user("a xylophone"))
    assert found(store, "lophon") == {(session, 1)}  # by a part of the word


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("aab"), st.sampled_from(["append", "search", "delete"])),
        max_size=30,
    )
)
def test_every_search_finds_what_is_there(steps):
    store = SqliteStore(":memory:")
    held = {"a": 0, "b": 0}
    for name, step in steps:
        if step == "append":
            store.start(session_id=name)
            store.append(name, Message.user("walrus"))
            held[name] += 1
        elif step == "delete":
            store.delete(name)
            held[name] = 0
        else:
            there = {(session, n) for session, number in held.items() for n in range(number)}
            assert found(store, "walrus") == there
    store.close()
