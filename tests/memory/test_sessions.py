"""What only the store on SQLite promises: its file, its threads, its warnings."""

from __future__ import annotations

import sqlite3
import stat
from contextlib import suppress
from dataclasses import replace
from itertools import pairwise

import pytest
from hermes_nb.core.errors import StoreError
from hermes_nb.core.messages import Message, ToolCall, given_id, mend
from hermes_nb.memory.sessions import SqliteStore
from hypothesis import given, settings
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
    for file in (tmp_path / "home").iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_what_the_database_cannot_do_is_a_store_error(store):
    session = store.start()
    with pytest.raises(StoreError, match="too large"):
        store.rows(session, first=10**30)
    with pytest.raises(StoreError, match="surrogates"):
        store.messages("\ud800")

    def fail(connection):
        connection.execute("UPDATE sessions SET title = 'half'")
        raise RuntimeError

    with suppress(RuntimeError):
        store.database.write(fail)
    assert store.get(session).title == ""
    store.database._open().connection.execute("BEGIN IMMEDIATE")  # an interrupt came after it
    store.append(session, Message.user("goes on"))
    assert len(store.messages(session)) == 1


def test_a_row_that_cannot_be_read_is_left_out_with_a_warning(tmp_path):
    path = tmp_path / "n.db"
    store = SqliteStore(path)
    session = store.start()
    for n in range(4):
        store.append(session, Message.user(str(n)))
    store.close()
    connection = sqlite3.connect(path)
    for position, body in ((1, "{"), (2, b"\xff\xfe")):
        connection.execute("UPDATE messages SET body = ? WHERE position = ?", (body, position))
    connection.commit()
    connection.close()
    for _ in range(2):
        assert [message.text for message in store.messages(session)] == ["0", "3"]
        assert [row.position for row in store.rows(session)] == [0, 3]
    assert len(store.warnings) == 1 and "2 stored messages" in store.warnings[0]
    store.close()


calls = st.lists(
    st.builds(ToolCall, id=st.sampled_from("abc"), name=st.just("t")),
    unique_by=lambda call: call.id,
)
rows = st.one_of(
    st.just(Message.user("u")),
    st.builds(Message.assistant, st.sampled_from(["", "text"]), calls=calls),
    st.builds(Message, role=st.just("tool"), call_id=st.sampled_from("abcd"), name=st.just("t")),
)


@given(st.lists(rows, max_size=12))
def test_any_rows_are_mended_into_a_valid_conversation(messages):
    mended = mend(messages, note="lost")
    assert every_call_has_one_result(mended)
    assert not mended or mended[-1].role in ("assistant",)
    assert mend(mended, note="lost") == mended
    spoken, kept = ([m for m in each if m.role != "tool"] for each in (messages, mended))
    said, parts = ([part for m in each for part in m.parts] for each in (spoken, kept))
    assert parts == said  # nothing is lost and nothing changes places
    asked, calls = ([call for m in each for call in m.calls] for each in (spoken, kept))
    assert [replace(call, id=given_id(call.id)) for call in calls] == asked
    assert len({call.id for call in calls}) == len(calls)
    assert not {a.role for a, b in pairwise(mended) if a.role == b.role} - {"tool"}


@pytest.mark.parametrize("other", ["start", "delete"])
@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_sessions_are_in_the_order_they_were_written_to(tmp_path_factory, other, data):
    """By two kernels in turn, whatever each knows of what the other one has written."""
    acts = st.tuples(
        st.integers(0, 1), st.sampled_from("abc"), st.sampled_from(["write", "write", other])
    )
    steps = data.draw(st.lists(acts, max_size=20))
    path = tmp_path_factory.mktemp("home") / "notebook.db"
    stores = [SqliteStore(path) for _ in range(2)]
    expected: dict[str, int] = {}
    for number, (who, name, step) in enumerate(steps):
        store, known = stores[who], expected.get(name)
        if step != "start":
            expected.pop(name, None)
        if step == "write":
            store.append(name, Message.user(str(number)))
            expected[name] = (known or 0) + 1
        elif step == "delete":
            store.delete(name)
        elif known is None:
            store.start(session_id=name)
            expected[name] = 0
        listed = {session.id: session.messages for session in store.sessions()}
        assert listed == expected
        assert list(listed) == [*reversed(expected)]
    for store in stores:
        store.close()


def test_a_session_that_another_process_deleted_begins_anew(tmp_path):
    mine, other = (SqliteStore(tmp_path / "notebook.db") for _ in range(2))
    session = mine.start(title="Penguins")
    mine.append(session, Message.user("one"))
    other.delete(session)
    mine.append(session, Message.user("two"))
    assert [message.text for message in other.messages(session)] == ["two"]
    assert other.get(session).title == "Penguins"
    mine.close()
    other.close()


def test_what_was_deleted_does_not_come_back_and_nothing_ends_before_it_began(store):
    session = store.start(title="Penguins", started=4e9)
    store.end(session)
    found = store.get(session)
    assert found.ended == found.started == 4e9
    store.delete(session)
    store.append(session, Message.user("two"))
    assert store.get(session).title == ""
