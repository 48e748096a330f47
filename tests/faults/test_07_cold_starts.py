"""Eight processes that meet no database, or an old one, at the same moment all get to write."""

from __future__ import annotations

import pytest
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import ROUNDS, WRITER, finished, is_intact, run_python


@pytest.mark.slow
def test_07_cold_starts(tmp_path):
    for round_ in range(ROUNDS):
        path = tmp_path / f"home {round_}" / "n.db"
        for process in [run_python(WRITER, path, n, 1) for n in range(8)]:
            finished(process)
        store = SqliteStore(path)
        assert len(store.sessions()) == 8
        assert len(store.search("walrus")) == 8
        store.close()
        assert is_intact(path)
