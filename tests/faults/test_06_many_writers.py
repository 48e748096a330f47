"""Eight processes write one file: every row is there, and nobody waits for long."""

from __future__ import annotations

import pytest
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import ROUNDS, WRITER, finished, is_intact, names, run_python

WRITERS, MESSAGES = 8, 40
TRIES = 3
"""What else the machine does delays a writer too; unfairness among writers shows every time."""


@pytest.mark.slow
def test_06_many_writers(tmp_path):
    for round_ in range(ROUNDS):
        waits = []
        for attempt in range(TRIES):
            waits.append(longest_wait(tmp_path / f"{round_}-{attempt}" / "n.db"))
            if waits[-1] < 0.25:
                break
        assert min(waits) < 0.25, waits


def longest_wait(path):
    """Return what 99 of 100 appends took at most, in seconds."""
    processes = [run_python(WRITER, path, n, MESSAGES) for n in range(WRITERS)]
    waits = []
    for process in processes:
        _, *lines = finished(process)
        waits += [float(line.split()[1]) for line in lines]
    store = SqliteStore(path)
    assert [session.messages for session in store.sessions()] == [MESSAGES] * WRITERS
    store.close()
    assert is_intact(path)
    assert names(path) == {"n.db"}
    return sorted(waits)[len(waits) * 99 // 100]
