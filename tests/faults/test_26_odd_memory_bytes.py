"""MEMORY.md with bytes that are not in the format: readable, and copied before it is rewritten."""

from __future__ import annotations

import pytest
from hermes_nb.memory.curated import CuratedMemory

from tests.memory.hermes_format import read_memory

CASES = {
    "invalid UTF-8": (b"caf\xe9\n\xc2\xa7\nuses vim", ["caf\ufffd", "uses vim"]),
    "NUL": (b"tea\0time\n\xc2\xa7\nuses vim", ["tea\ufffdtime", "uses vim"]),
    "BOM": (b"\xef\xbb\xbftea\n\xc2\xa7\nuses vim", ["tea", "uses vim"]),
    "CRLF": (b"tea\r\n\xc2\xa7\r\nuses vim\r\n", ["tea", "uses vim"]),
    "UTF-16": ("tea\n§\nuses vim\n".encode("utf-16"), ["tea", "uses vim"]),
    "only NULs": (bytes(200), ["\ufffd" * 200]),
}


@pytest.mark.parametrize("case", CASES)
def test_26_odd_memory_bytes(home, case):
    data, readable = CASES[case]
    path = home / "memories/MEMORY.md"
    path.parent.mkdir(parents=True)
    path.write_bytes(data)
    memory = CuratedMemory(home)
    assert memory.entries("memory") == readable
    assert readable[0] in memory.snapshot().memory
    assert path.read_bytes() == data  # reading changes nothing
    assert [each.name for each in path.parent.iterdir()] == ["MEMORY.md"]
    outcome = memory.apply("memory", [{"action": "add", "content": "new"}])
    assert outcome.applied
    (copy,) = path.parent.glob("MEMORY.md.bak.*")
    assert copy.read_bytes() == data
    assert copy.name in outcome.message
    assert read_memory(home, "memory") == [*readable, "new"]
    assert memory.apply("memory", [{"action": "add", "content": "newer"}])
    assert len(list(path.parent.glob("MEMORY.md.bak.*"))) == 1
