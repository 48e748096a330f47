"""A cell with 200 MB of output: it is read in little memory, and the model reads little of it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.harness import REPOSITORY

SCRIPT = """
import asyncio, json, resource, sys
from pathlib import Path
path = Path(sys.argv[1])
with path.open("w") as file:
    file.write('{"cells": [{"cell_type": "code", "execution_count": 1, "id": "big",')
    file.write('"metadata": {}, "source": ["x"], "outputs": [{"output_type": "stream",')
    file.write('"name": "stdout", "text": [')
    for _ in range(200_000):
        file.write('"' + "x" * 1_000 + '\\\\n",\\n')
    file.write('"end"]}]}], "metadata": {}, "nbformat": 4, "nbformat_minor": 5}')
from IPython.core.interactiveshell import InteractiveShell
from tests.faults.notebooks import tools_on, use, written
shell = InteractiveShell.instance()
small = written(path.with_name("small.ipynb"), "a = 1")
use(tools_on(shell, small), "read_cells")
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1000
before = peak()
tools = tools_on(shell, path)
outline, text = use(tools, "notebook_outline"), use(tools, "read_cells")
print(json.dumps({
    "outline": outline, "shown": len(text), "grown": peak() - before,
}))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss counts kilobytes on Linux")
def test_200_mb_of_output_are_capped(tmp_path):
    import json

    big = tmp_path / "big.ipynb"
    command = [sys.executable, "-c", SCRIPT, big]
    out = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    assert big.stat().st_size > 200_000_000
    big.unlink()
    found = json.loads(out.stdout.splitlines()[-1])
    assert "-> output" in found["outline"]
    assert found["shown"] < 20_000
    assert found["grown"] < 40, "megabytes"
