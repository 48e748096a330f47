"""Eight processes that remember at once: what was acknowledged is there, and the limit holds."""

from __future__ import annotations

import json

import pytest
from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.memory.entries import size

from tests.faults.stores import ROUNDS, finished, run_python
from tests.memory.hermes_format import read_memory

pytestmark = pytest.mark.slow

WRITER = """
import json, sys
from hermes_nb.memory.curated import CuratedMemory
memory = CuratedMemory(sys.argv[1])
name = f"writer{sys.argv[2]}"
for i in range(6):
    done = memory.apply("memory", [{"action": "add", "content": f"{name} note {i} ."}])
    print(json.dumps([done.applied, "add", f"{name} note {i} .", done.message]), flush=True)
    if i % 2 and done.applied:
        old = f"{name} note {i - 1} ."
        new = {"action": "replace", "old_text": old, "content": f"{name} kept {i}"}
        out = {"action": "remove", "old_text": f"{name} note {i} ."}
        done = memory.apply("memory", [new, out])
        print(json.dumps([done.applied, "swap", f"{name} kept {i}", done.message]), flush=True)
"""
GREEDY = """
import sys
from hermes_nb.memory.curated import CuratedMemory
memory = CuratedMemory(sys.argv[1])
for i in range(6):
    content = f"writer{sys.argv[2]} note {i} " + "x" * 80
    if memory.apply("user", [{"action": "add", "content": content}]):
        print(content, flush=True)
"""


def test_08_no_update_is_lost(home):
    for round_ in range(ROUNDS):
        processes = [run_python(WRITER, home, f"{round_}.{n}") for n in range(8)]
        answers = [json.loads(line) for each in processes for line in finished(each)]
        assert all(applied for applied, *_ in answers), [a for a in answers if not a[0]]
        memory = CuratedMemory(home)
        wanted = {content for _, action, content, _ in answers if action == "swap"}
        assert set(memory.entries("memory")) == wanted
        assert read_memory(home, "memory") == memory.entries("memory")
        assert len(memory.history("memory")) == len(answers)
        batch = [{"action": "remove", "old_text": entry} for entry in memory.entries("memory")]
        assert memory.apply("memory", batch)
        (home / "memories/.hermes_nb/history.jsonl").unlink()


def test_08_the_limit_is_respected(home):
    for _ in range(ROUNDS):
        processes = [run_python(GREEDY, home, n) for n in range(8)]
        acknowledged = [line for each in processes for line in finished(each)]
        memory = CuratedMemory(home)
        entries = memory.entries("user")
        assert sorted(entries) == sorted(acknowledged)
        assert 1_200 < size(entries) <= 1_375
        assert memory.apply("user", [{"action": "remove", "old_text": e} for e in entries])
