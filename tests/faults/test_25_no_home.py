"""A home that is a file, or below one, is an error that says so, and no turn fails over it."""

from __future__ import annotations

import pytest
from hermes_nb.agent.recorder import Recorder
from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import MessageAdded, TurnEnded
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore


@pytest.mark.parametrize("below", ["n.db", "deeper/n.db"])
def test_25_no_home(tmp_path, below):
    (tmp_path / "home").write_text("a file", encoding="utf-8")
    store, warnings = SqliteStore(tmp_path / "home" / below), []
    with pytest.raises(StoreError, match="home"):
        store.sessions()
    recorder = Recorder(store, "s", warnings.append)
    recorder.begin()
    recorder(MessageAdded(Message.user("m")))
    recorder(TurnEnded("answered"))
    assert len(warnings) == 1 and recorder.unsaved == 2
    (tmp_path / "home").unlink()
    recorder(TurnEnded("answered"))
    assert recorder.unsaved == 0
    assert [message.text for message in store.messages("s")] == ["m"]
    store.close()


def test_25_a_directory_in_the_place_of_the_file(tmp_path):
    (tmp_path / "n.db").mkdir()
    store = SqliteStore(tmp_path / "n.db")
    with pytest.raises(StoreError):
        store.start()
    store.close()
