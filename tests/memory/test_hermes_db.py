from __future__ import annotations

import json
import os
import random
import sqlite3
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hermes_nb.memory.hermes_agent import HermesDatabase
from hypothesis import given
from hypothesis import strategies as st

from tests.memory.hermes_format import FTS, MESSAGES, OLDEST, SESSIONS, add_session, make_state

ROOT = Path(__file__).parents[2]
CALLS = json.dumps(
    [{"id": "c1", "type": "function", "function": {"name": "terminal", "arguments": '{"a": 1}'}}]
)
TALK = [
    ("system", "You are Hermes"),
    ("user", "How do we deploy the website?"),
    ("assistant", {"content": None, "tool_calls": CALLS}),
    ("tool", {"content": "deployed with rsync", "tool_name": "terminal", "tool_call_id": "c1"}),
    ("assistant", "We deployed it with rsync to the blue server."),
]


@pytest.fixture
def path(tmp_path):
    folder = tmp_path / "a b%41?mode=rwc#x"
    folder.mkdir()
    return folder / "state.db"


@pytest.fixture
def notes():
    return []


@pytest.fixture
def database(path, notes):
    return HermesDatabase(path, note=notes.append)


@pytest.fixture(params=["closed", "open", "rollback journal", "no index", "oldest schema"])
def filled(request, path):
    """A database with two sessions, in each of the states it is found in."""
    schemas = {"no index": SESSIONS + MESSAGES, "oldest schema": OLDEST}
    schema = schemas.get(request.param, SESSIONS + MESSAGES + FTS)
    connection = make_state(path, wal=request.param != "rollback journal", schema=schema)
    talk, more = TALK, {"parent_session_id": "s1"}
    if schema is OLDEST:
        talk, more = [(role, said) for role, said in TALK if isinstance(said, str)], {}
    add_session(connection, "s1", talk)
    add_session(connection, "s2", [("user", "bake bread")], started=1_700_100_000.0, **more)
    if request.param != "open":
        connection.close()
    yield path
    connection.close()


def around(path):
    return sorted(each.name for each in path.parent.iterdir())


def test_messages_are_found_and_nothing_is_left_beside_the_file(filled, database, notes):
    before = around(filled)
    hits = database.search("deploying websites?")
    assert {hit.session_id for hit in hits} == {"s1"}
    assert hits[0].role == "user" and "website" in hits[0].snippet
    assert hits[0].position == 0
    assert hits[0].when == 1_700_000_060.0
    assert [hit.session_id for hit in database.search("breads")] == ["s2"]
    assert [session.id for session in database.sessions()] == ["s2", "s1"]
    assert database.get("nobody") is None
    assert around(filled) == before
    assert notes == []


def test_rows_are_messages(path, database):
    columns = ", active INTEGER DEFAULT 1, compacted INTEGER DEFAULT 0\n);"
    connection = make_state(path, schema=SESSIONS + MESSAGES.replace("\n);", columns) + FTS)
    add_session(connection, "s1", TALK, title="Website")
    parts = json.dumps([{"type": "text", "text": "bread two"}, {"type": "image_url"}, 5])
    messages = [
        {"content": "bread one", "active": 0, "compacted": 1},
        {"content": "bread undone", "active": 0},
        parts,
        "\0json:" + parts,
    ]
    add_session(connection, "s2", [("user", each) for each in messages])
    connection.close()
    said = [row.message.text for row in database.rows("s2")]
    assert said == ["bread one", "bread two", "bread two"]
    hits = sorted(database.search("bread"), key=lambda hit: hit.position)
    assert [hit.position for hit in hits] == [0, 1, 2]
    assert hits[0].snippet == "bread one"
    rows = database.rows("s1")
    roles = [(row.position, row.message.role) for row in rows]
    assert roles == list(enumerate("user assistant tool assistant".split()))
    assert rows[1].message.calls[0].name == "terminal"
    assert rows[1].message.calls[0].arguments == {"a": 1}
    assert rows[2].message.call_id == "c1" and rows[2].message.name == "terminal"
    assert [row.position for row in database.rows("s1", first=1, last=2)] == [1, 2]
    session = database.get("s1")
    assert (session.title, session.source, session.messages) == ("Website", "cli", 4)
    assert session.written == 1_700_000_240.0


def test_filters_work_before_the_cap(path, database):
    connection = make_state(path)
    for number in range(30):
        add_session(connection, f"s{number}", [("user", "bread"), ("assistant", "bread indeed")])
    connection.close()
    (hit,) = database.search("bread", session_id="s7", limit=1)
    assert hit.session_id == "s7"
    others = {f"s{number}" for number in range(30)} - {"s3"}
    assert {hit.session_id for hit in database.search("bread", exclude=others, limit=2)} == {"s3"}


CONTENTS = {
    "empty": lambda data: b"",
    "text": lambda data: b"hello " * 100,
    "zeroed": lambda data: bytes(100) + data[100:],
    "truncated": lambda data: data[: len(data) // 2],
    "nonsense": lambda data: data[:4096] + random.Random(5).randbytes(len(data) - 4096),
    "log without index": bytes,
}


@pytest.mark.parametrize("damage", [*CONTENTS, "absent", "directory", "pipe", "other tables"])
def test_whatever_is_wrong_means_no_results_and_at_most_one_note(path, database, notes, damage):
    connection = make_state(path)
    add_session(connection, "s1", [("user", "bread " + "x" * 5_000)] * 40)
    connection.close()
    data = path.read_bytes()
    path.unlink()
    if damage in CONTENTS:
        path.write_bytes(CONTENTS[damage](data))
    elif damage == "directory":
        path.mkdir()
    elif damage == "pipe":
        os.mkfifo(path)
    elif damage == "other tables":
        make_state(path, schema="CREATE TABLE other (a)").close()
    if damage == "log without index":
        path.with_name("state.db-wal").write_bytes(b"x" * 100)
    before = around(path)
    started = time.monotonic()
    for _ in range(2):
        database.search("bread")
        database.rows("s1")
        database.get("s1")
        database.sessions()
    assert time.monotonic() - started < 8
    assert len(notes) == (damage not in ("absent", "empty"))
    assert around(path) == before


def test_a_writer_in_the_middle_of_something_costs_at_most_a_second(path, database, notes):
    writer = make_state(path, wal=False)
    add_session(writer, "s1", [("user", "bread")])
    writer.execute("BEGIN EXCLUSIVE")
    writer.execute("UPDATE messages SET content = 'cake'")
    started = time.monotonic()
    assert database.search("bread") == []
    assert time.monotonic() - started < 4  # sqlite's own patience is 5 s
    assert "locked" in notes[0]
    writer.rollback()
    writer.close()
    assert len(database.search("bread")) == 1


WRITER = """
import sys
sys.path.insert(0, sys.argv[1])
import sqlite3
from tests.memory.hermes_format import add_session
for number in range(200):
    connection = sqlite3.connect(sys.argv[2])
    for part in range(number % 3 + 1):
        add_session(connection, f"s{number}.{part}", [("user", f"bread {number}")])
    connection.close()
"""


def test_what_is_read_while_hermes_agent_writes_is_whole(path, database):
    """Its log appears and disappears; a reader neither disturbs it nor reads nonsense."""
    make_state(path).close()
    with subprocess.Popen([sys.executable, "-c", WRITER, ROOT, path]) as writer:
        found = 0
        while writer.poll() is None:
            for hit in database.search("bread", limit=5):
                assert hit.snippet.startswith("bread ")
                found += 1
    assert writer.returncode == 0
    assert found
    assert len(database.search("bread", limit=1_000)) == 399
    check = sqlite3.connect(path)
    assert check.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    check.close()


@given(st.text())
def test_no_query_raises(tmp_path_factory, query):
    path = tmp_path_factory.getbasetemp() / "queries.db"
    if not path.exists():
        connection = make_state(path)
        add_session(connection, "s1", TALK)
        connection.close()
    notes = []
    HermesDatabase(path, note=notes.append).search(query)
    assert notes == []
