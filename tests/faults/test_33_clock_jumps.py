"""The clock may jump by a year either way: the order stays, and nothing ends before it began."""

from __future__ import annotations

import time

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

YEAR = 365 * 86_400.0


@pytest.mark.parametrize("jump", [-YEAR, YEAR, -1e9])
def test_33_clock_jumps(tmp_path, monkeypatch, jump):
    store = SqliteStore(tmp_path / "n.db")
    now = time.time()
    first, second = store.start(title="first"), store.start(title="second")
    store.append(second, Message.user("m0"))
    monkeypatch.setattr(time, "time", lambda: now + jump)
    store.append(first, Message.user("m0"))
    store.append(second, Message.user("m1"))
    third = store.start(title="third")
    monkeypatch.setattr(time, "time", lambda: now)
    store.append(second, Message.user("m2"))
    store.append(first, Message.user("m1"))
    before = store.messages(second)
    store.replace(second, [before[0], Message.user("summary"), before[2]])
    store.append(second, Message.user("m3"))
    texts = [message.text for message in store.messages(second)]
    assert texts == ["m0", "summary", "m2", "m3"]
    assert [row.position for row in store.rows(second)] == list(range(5))
    assert [stored.id for stored in store.sessions()] == [second, first, third]
    for session in (first, second, third):
        monkeypatch.setattr(time, "time", lambda: now - YEAR)
        store.end(session)
        stored = store.get(session)
        assert stored.ended >= stored.started and stored.written >= stored.started
    store.close()
