"""A kernel of an earlier version that has the file open goes on in what later versions make of it.

`statements_6.json` has every statement that version 0.1's store ran, once it had opened the file,
for a session that was written, searched, compressed, restored, renamed and claimed in, and for
another one that was deleted (`Connection.set_trace_callback`, on a store as the one below).
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import is_intact

STATEMENTS = Path(__file__).parent / "data" / "statements_6.json"
ADDED = "ALTER TABLE {} ADD COLUMN added TEXT NOT NULL DEFAULT 'x'"


@pytest.mark.parametrize("added", [(), ("sessions", "messages", "arrangements")])
def test_an_open_kernel_of_the_version_before_goes_on_writing(tmp_path, added):
    path = tmp_path / "notebook.db"
    with closing(SqliteStore(path)) as store:
        store.start(session_id="first", title="pumpkins", notebook="/w/garden.ipynb")
        store.start(session_id="gone", parent="first")
        store.append("first", Message.user("A garden."))
        store.search("garden")
        with closing(sqlite3.connect(path, isolation_level=None)) as earlier:
            earlier.execute("PRAGMA foreign_keys = ON")
            for table in added:
                earlier.execute(ADDED.format(table))
            for statement in json.loads(STATEMENTS.read_text(encoding="utf-8")):
                earlier.execute(statement).fetchall()
        store.append("early", Message.assistant("A pole."))
        texts = [message.text for message in store.messages("early")]
        assert texts[0] == "How heavy is the pumpkin?"
        assert texts[3:] == ["4.2 kilograms.", "And the beans?", "A pole."]
        assert store.get("early").title == "renamed"
        assert store.get("early").notebook == store.get("first").notebook == "/w/moved.ipynb"
        assert (store.get("early").usage.input, store.get("gone")) == (10, None)
        assert [claim.state for claim in store.claims("run")] == ["done"]
        assert {hit.session_id for hit in store.search("pumpkin")} == {"early"}
        assert store.search("forget me") == []
        assert store.warnings == []
    assert is_intact(path)
