"""A process killed while it remembers leaves the old file or the new one, and nothing else."""

from __future__ import annotations

import random

import pytest
from hermes_nb.core.files import TEMPORARY
from hermes_nb.memory.curated import CuratedMemory

from tests.faults.stores import KILLS, killed, run_python
from tests.memory.hermes_format import read_memory

WRITER = """
import sys
from hermes_nb.memory.curated import CuratedMemory
memory = CuratedMemory(sys.argv[1])
name = sys.argv[2]
print("ready", flush=True)
for i in range(100_000):
    old = f"{name} counted to {i - 1}"
    step = {"action": "replace", "old_text": old} if i else {"action": "add"}
    pad = "x" * (i * 37 % 600)
    outcome = memory.apply("memory", [{**step, "content": f"{name} counted to {i} {pad}"}])
    assert outcome.applied, outcome.message
    print(i, flush=True)
"""


@pytest.mark.slow
def test_02_kill_during_memory_write(home):
    kept = []
    for round_ in range(KILLS):
        name = f"writer{round_}"
        process = run_python(WRITER, home, name)
        _, *acknowledged = killed(process, random.Random(round_).uniform(0, 0.25))
        memory = CuratedMemory(home)
        assert not [each for each in home.rglob("*") if each.name.endswith(TEMPORARY)]
        entries = memory.entries("memory")
        assert entries == read_memory(home, "memory")
        assert entries[: len(kept)] == kept
        own = [int(entry.split()[3]) for entry in entries[len(kept) :]]
        done = len(acknowledged)
        # One more may be there: written, but killed before it could be reported.
        assert own in ([], [0]) if not done else own in ([done - 1], [done])
        recorded = [r.changes[0].after for r in memory.history() if name in r.changes[0].after]
        assert set(entries[len(kept) :]) <= set(recorded)
        # The next writer gets the lock and finds a file to go on with.
        assert memory.apply("memory", [{"action": "add", "content": f"after {round_}"}])
        newest = [record for record in memory.history() if name in record.changes[0].after][:1]
        assert [r.changes[0].after for r in newest] == entries[len(kept) :]
        if own:
            assert memory.apply("memory", [{"action": "remove", "old_text": f"{name} "}])
        kept.append(f"after {round_}")
        assert memory.entries("memory") == kept
        assert not list((home / "memories").glob("*.bak.*"))
