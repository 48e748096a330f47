"""A process that is killed while it writes a notebook leaves one whole version of it."""

from __future__ import annotations

import random
import signal
import time

import pytest

from tests.faults.notebooks import STREAM, tools_on, use, valid, written
from tests.faults.stores import KILLS, run_python

WRITER = """
import asyncio, sys
from pathlib import Path
from hermes_nb.notebook.document.file import FileDocument

async def edit():
    document = FileDocument(Path(sys.argv[1]), keep=Path(sys.argv[2]))
    for number in range(10_000):
        cell = await document.insert(f"n = {number}\\n" + "x" * 20_000, index=0)
        await document.set_outputs(cell.id, [{
            "output_type": "stream", "name": "stdout", "text": f"ran {number}"}])
        print(number, flush=True)

asyncio.run(edit())
"""


@pytest.mark.slow
def test_every_acknowledged_cell_is_there_and_nothing_is_half(shell, tmp_path):
    chance = random.Random(4)
    for kill in range(KILLS):
        path = written(tmp_path / f"{kill}.ipynb", "a = 1")
        keep = tmp_path / "keep"
        process = run_python(WRITER, path, keep)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(chance.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        out = process.stdout.read()  # by the reader that has the first line, and maybe more
        process.communicate(timeout=60)
        acknowledged = len(out.split()) + 1
        cells = valid(path)["cells"]
        assert cells[-1]["outputs"] == [STREAM]
        numbers = [int("".join(cell["source"]).split()[2]) for cell in cells[:-1]]
        assert numbers == list(range(len(numbers)))[::-1]
        assert acknowledged <= len(numbers) <= acknowledged + 1
        use(tools_on(shell, path, keep=keep), "insert_cell", source="the lock is free")
        assert "the lock is free" in path.read_text(encoding="utf-8")
