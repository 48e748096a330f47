"""A newer schema, a dumped copy, another program's file: not written, and what to do is said."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest
from hermes_nb import Hermes
from hermes_nb.core.errors import StoreError
from hermes_nb.core.messages import Message
from hermes_nb.memory.schema import VERSION
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel

from tests.faults.stores import filled, names


def run(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_78_newer_while_it_is_open(home):
    path = home / "notebook.db"
    with Hermes(ScriptedModel(["one", "two", "three"]), home=home) as hermes:
        hermes.ask("before")
        run(path, f"PRAGMA user_version = {VERSION + 1}")
        assert [hermes.ask("after").reason, hermes.ask("and on").reason] == ["answered"] * 2
        (warning,) = hermes.warnings
        assert "upgrade hermes_nb and restart the kernel" in warning
        with closing(SqliteStore(path)) as store:
            assert len(store.messages(hermes.session_id)) == 2
        run(path, f"PRAGMA user_version = {VERSION}")
        hermes.ask("back again")
        with closing(SqliteStore(path)) as store:
            assert store.messages(hermes.session_id) == hermes.messages
    assert len(hermes.messages) == 8


def test_78_dumped(tmp_path):
    """The remedy that is named makes the copy usable; its index is made anew."""
    ids = filled(tmp_path / "n.db")
    copy = tmp_path / "copy" / "n.db"
    copy.parent.mkdir()
    run(tmp_path / "n.db", "DROP TABLE search_text")  # which only the command line can dump
    with closing(sqlite3.connect(tmp_path / "n.db")) as connection:
        lines = [line for line in connection.iterdump() if "sqlite_sequence" not in line]
    with closing(sqlite3.connect(copy)) as connection:
        connection.executescript("".join(line for line in lines if "search_text" not in line))
    before = copy.read_bytes()
    with closing(SqliteStore(copy)) as store:
        for _ in range(2):
            with pytest.raises(StoreError) as error:
                store.append(ids[0], Message.user("x"))
        assert copy.read_bytes() == before
        _, place, _, remedy, _ = str(error.value).rsplit("'", 4)
        assert place == str(copy)
        run(copy, remedy)
        store.append(ids[0], Message.user("and on"))
        assert len(store.messages(ids[0])) == 41
        assert store.search("walrus")
        assert store.warnings == []


@pytest.mark.parametrize("mark", [(), ("PRAGMA application_id = 77", "PRAGMA user_version = 3")])
def test_78_foreign(home, mark):
    home.mkdir()
    path = home / "notebook.db"
    run(
        path, "CREATE TABLE sessions (id, recipe)", "INSERT INTO sessions VALUES (1, 'soup')", *mark
    )
    before = path.read_bytes()
    with Hermes(ScriptedModel(["one", "two"]), home=home) as hermes:
        assert [hermes.ask("a").reason, hermes.ask("b").reason] == ["answered"] * 2
    (warning,) = hermes.warnings
    assert "another program's database: move it away" in warning
    assert path.read_bytes() == before
    assert names(path) == {"notebook.db", "SOUL.md"}
