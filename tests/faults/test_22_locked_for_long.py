"""A database that another program keeps locked costs a turn one wait; it is saved later."""

from __future__ import annotations

import sqlite3
import time

import pytest
from hermes_nb.agent.recorder import Recorder
from hermes_nb.core.events import MessageAdded, TurnEnded
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.storage import database


def play(path):
    """Take a turn while the file is locked; return how long it took and what happened after."""
    store, warnings = SqliteStore(path), []
    session = store.start()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    recorder = Recorder(store, session, warnings.append)
    begun = time.monotonic()
    for n in range(5):
        recorder(MessageAdded(Message.user(str(n))))
    took = time.monotonic() - begun
    assert recorder.unsaved == 5
    recorder(TurnEnded("answered"))
    other.execute("ROLLBACK")
    other.close()
    recorder(TurnEnded("answered"))
    assert recorder.unsaved == 0
    assert len(warnings) == 1 and "locked" in warnings[0]
    assert [message.text for message in store.messages(session)] == list("01234")
    store.close()
    return took


def test_22_locked_for_long(tmp_path, monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.3)
    assert play(tmp_path / "n.db") < 3


@pytest.mark.slow
def test_22_the_wait_is_bounded(tmp_path):
    assert play(tmp_path / "n.db") < 2 * database.BUSY_SECONDS
