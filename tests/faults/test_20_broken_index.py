"""A broken search index is made anew, once, and nothing else is touched."""

from __future__ import annotations

import sqlite3

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import filled, is_intact, set_aside

TABLES = ("search_text_data", "search_text_idx", "search_text_config")


@pytest.mark.parametrize("statement", ["UPDATE {} SET {} = x'00'", "DELETE FROM {}"])
@pytest.mark.parametrize("table", TABLES)
def test_20_broken_index(tmp_path, table, statement):
    path = tmp_path / "n.db"
    ids = filled(path)
    connection = sqlite3.connect(path, isolation_level=None)
    column = connection.execute(f"SELECT name FROM pragma_table_info('{table}')").fetchall()[-1][0]
    connection.execute(statement.format(table, column))
    connection.close()
    store = SqliteStore(path)
    for n in range(3):
        store.append(ids[0], Message.user(f"{n} the walrus said"))
        store.search("walrus")
    assert [m.text for m in store.messages(ids[0])][-1] == "2 the walrus said"
    assert len(store.rows(ids[1])) == 40
    store.close()
    assert set_aside(path) == []
    assert len(store.warnings) <= 1
    assert is_intact(path)
