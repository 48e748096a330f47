"""A full disk: a structured refusal, and what the agent knows is what is on the disk."""

from __future__ import annotations

import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.core.files import TEMPORARY
from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.tools.stores import memory_tools

from tests.faults.stores import fill
from tests.memory.hermes_format import read_memory
from tests.tools.support import run

DISK = "64k"


def add_many(tool):
    for number in range(40):
        run(tool, action="add", content=f"note {number} " + "y" * 40)


@pytest.mark.parametrize("first", [True, False])
def test_12_disk_full_memory(small_disk, first):
    home = small_disk / "home"
    memory = CuratedMemory(home)
    tool = memory_tools(memory).get("memory")
    if not first:
        run(tool, action="add", content="one")
    filler = fill(small_disk / "filler")
    before = memory.entries("memory"), len(memory.history())
    with pytest.raises(ToolError, match=r"No space left on device.*go on without it"):
        add_many(tool)  # a page of the file system may have had some room
    entries = memory.entries("memory")
    assert entries[: len(before[0])] == before[0]
    assert read_memory(home, "memory") == entries == CuratedMemory(home).entries("memory")
    assert len(memory.history()) == len(entries)
    assert not [each for each in home.rglob("*") if each.name.endswith(TEMPORARY)]
    filler.unlink()
    run(tool, action="add", content="there is room again")
    assert read_memory(home, "memory") == [*entries, "there is room again"]
    assert len(memory.history()) == len(entries) + 1
