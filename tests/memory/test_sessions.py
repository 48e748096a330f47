"""The session store keeps what it acknowledged, whatever happens to the process."""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import threading
import time

import pytest
from hermes_nb.core.errors import StoreError
from hermes_nb.core.messages import Image, Message, ToolCall, Usage, mend
from hermes_nb.memory.sessions import MIGRATIONS, SqliteStore
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import every_call_has_one_result


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path / "home" / "notebook.db")
    yield store
    store.close()


def test_nothing_is_written_before_the_first_call(tmp_path, store):
    assert not (tmp_path / "home").exists()
    store.start()
    assert stat.S_IMODE((tmp_path / "home").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "home" / "notebook.db").stat().st_mode) == 0o600


def test_messages_come_back_as_they_were(store):
    call = ToolCall(id="1", name="read_file", arguments={"path": "a"}, text='{"path":"a"}')
    messages = [
        Message.user("look at this", images=[Image("aGk=")]),
        Message.assistant("sure", calls=[call], reasoning="hm"),
        Message.tool(call, "no such file", failed=True),
        Message.assistant("half an ans", interrupted=True),
        Message.user("lone surrogate \ud800, NUL \0, emoji 🦊"),
        Message(role="assistant", echo={"reasoning_details": [{"x": float("inf")}]}),
    ]
    session = store.start(title="t")
    for message in messages:
        store.append(session, message)
    assert store.messages(session) == messages
    assert store.get(session).messages == len(messages)


def test_sessions_are_listed_by_notebook_and_last_use(store):
    first = store.start(notebook="/w/a.ipynb", started=1.0)
    second = store.start(notebook="/w/b.ipynb", started=2.0)
    third = store.start(notebook="/w/a.ipynb", started=3.0)
    store.append(first, Message.user("again"))
    assert [session.id for session in store.sessions()] == [first, third, second]
    assert [session.id for session in store.sessions(notebook="/w/a.ipynb")] == [first, third]
    store.end(third)
    assert store.get(third).ended is not None
    assert store.get("nobody") is None


def test_counters_add_up_and_an_unknown_cost_is_not_zero(store):
    session = store.start()
    store.count(session, Usage(input=100, output=5, cached=60, requests=1))
    assert store.get(session).usage.cost is None
    store.count(session, Usage(input=10, output=5, requests=1, cost=0.25))
    assert store.get(session).usage == Usage(input=110, output=10, cached=60, requests=2, cost=0.25)


def test_a_reopened_store_goes_on(tmp_path):
    path = tmp_path / "n.db"
    first = SqliteStore(path)
    session = first.start()
    first.append(session, Message.user("one"))
    first.close()
    second = SqliteStore(path)
    second.append(session, Message.assistant("two"))
    assert [message.text for message in second.messages(session)] == ["one", "two"]
    second.close()


def test_a_newer_schema_is_read_but_never_written(tmp_path):
    path = tmp_path / "n.db"
    store = SqliteStore(path)
    session = store.start(title="kept")
    store.close()
    with sqlite3.connect(path) as connection:
        connection.execute(f"PRAGMA user_version = {len(MIGRATIONS) + 1}")
    connection.close()
    newer = SqliteStore(path)
    assert newer.get(session).title == "kept"
    with pytest.raises(StoreError, match="readonly"):
        newer.start()
    newer.close()


def test_faults_are_store_errors(tmp_path):
    (tmp_path / "n.db").write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match="not a database"):
        SqliteStore(tmp_path / "n.db").start()
    (tmp_path / "file").write_text("x", encoding="utf-8")
    with pytest.raises(StoreError):
        SqliteStore(tmp_path / "file" / "n.db").start()


def test_threads_share_a_store(store):
    session = store.start()

    def write(n):
        for i in range(20):
            store.append(session, Message.user(f"{n}.{i}"))

    threads = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.messages(session)) == 80


def test_a_forked_child_opens_its_own_connection(store):
    session = store.start()
    store.append(session, Message.user("parent"))
    inherited = store._connection
    pid = os.fork()
    if pid == 0:
        store.append(session, Message.user("child"))
        os._exit(0 if store._connection is not inherited else 1)
    assert os.waitpid(pid, 0)[1] == 0
    store.append(session, Message.user("parent again"))
    assert [m.text for m in store.messages(session)] == ["parent", "child", "parent again"]


WRITER = """
import sys
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
store = SqliteStore(sys.argv[1])
session = store.start(title=sys.argv[2])
print(session, flush=True)
for i in range(int(sys.argv[3])):
    store.append(session, Message.user(str(i)))
    print(i, flush=True)
"""


def spawn(path, name, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)],
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_killed_writer_loses_nothing_it_was_told_is_safe(tmp_path):
    path = tmp_path / "n.db"
    for round_ in range(5):
        process = spawn(path, str(round_), 100_000)
        session = process.stdout.readline().strip()
        time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        acknowledged = [line for line in process.stdout.read().splitlines() if line]
        process.stdout.close()
        process.wait()
        store = SqliteStore(path)
        kept = [message.text for message in store.messages(session)]
        assert kept[: len(acknowledged)] == acknowledged
        assert store._open().execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        store.close()


def test_many_processes_write_one_file(tmp_path):
    path = tmp_path / "n.db"
    processes = [spawn(path, str(n), 25) for n in range(4)]
    for process in processes:
        process.stdout.read()
        process.stdout.close()
        assert process.wait() == 0
    store = SqliteStore(path)
    assert [session.messages for session in store.sessions()] == [25] * 4
    store.close()


roles = st.sampled_from(["user", "assistant", "tool"])
calls = st.sets(st.sampled_from("abc")).map(
    lambda ids: [ToolCall(id=id_, name="t") for id_ in sorted(ids)]
)


@st.composite
def rows(draw):
    role = draw(roles)
    if role == "assistant":
        return Message.assistant(draw(st.sampled_from(["", "text"])), calls=draw(calls))
    if role == "tool":
        return Message(role="tool", call_id=draw(st.sampled_from("abcd")), name="t")
    return Message.user("u")


@given(st.lists(rows(), max_size=12))
def test_any_rows_are_mended_into_a_valid_conversation(messages):
    mended = mend(messages, note="lost")
    assert every_call_has_one_result(mended)
    assert not mended or mended[-1].role in ("assistant",)
    assert mend(mended, note="lost") == mended
    spoken = [message for message in messages if message.role != "tool"]
    assert [m for m in mended if m.role != "tool"][: len(spoken)] == spoken
