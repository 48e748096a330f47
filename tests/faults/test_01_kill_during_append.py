"""A process killed while it appends loses nothing it was told is safe."""

from __future__ import annotations

import random

from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import KILLS, WRITER, is_intact, killed, names, run_python


def test_01_kill_during_append(tmp_path):
    path = tmp_path / "n.db"
    for round_ in range(KILLS):
        process = run_python(WRITER, path, round_, 100_000)
        session, *acknowledged = killed(process, random.Random(round_).uniform(0, 0.15))
        store = SqliteStore(path)
        rows = store.rows(session)
        # One more may be there: written, but killed before it could be reported.
        assert len(acknowledged) <= len(rows) <= len(acknowledged) + 1
        assert [row.message.text.split()[0] for row in rows] == [str(i) for i in range(len(rows))]
        assert store.get(session).messages == len(rows)
        assert {hit.position for hit in store.search("walrus", session_id=session)} <= {
            row.position for row in rows
        }
        store.close()
        assert names(path) == {"n.db"}
    assert is_intact(path)
