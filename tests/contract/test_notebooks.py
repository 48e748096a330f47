"""Notebooks and cassettes of an earlier version replay as they are.

`data/notebooks` is a copy of the examples and what they read, as of the version before the commands
were confined. Nothing in it is ever recorded anew: users have such files. `make notebooks` replays
all nine.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import nbformat
import pytest
from hermes_nb.testing import cassette_for

from tests.examples.runs import isolated, nbval, reworded

HERE = Path(__file__).parent / "data" / "notebooks"
NAMES = sorted(path.name for path in HERE.glob("*.ipynb"))
REPLAYED = ["02_live_notebook.ipynb", "04_memory_and_recall.ipynb", "06_long_session.ipynb"]
"""Cells that are edited and run; memory and the search through past sessions; compression."""
MAY_DIFFER = Path(__file__).parent / "data" / "nbval.cfg"
"""What a later version may show otherwise: sizes, and which facts a compression keeps."""


def test_all_nine_are_there_with_their_cassettes():
    assert [name[:2] for name in NAMES] == [f"{n:02}" for n in range(1, 10)]
    for name in NAMES:
        assert cassette_for(HERE / name).stat().st_size > 0
        nbformat.validate(nbformat.read(HERE / name, as_version=4))


@pytest.mark.kernel
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_of_them_replay_with_all_tools_described_otherwise(tmp_path):
    folder = shutil.copytree(HERE, tmp_path / "notebooks")
    before = {path.name: path.read_bytes() for path in folder.glob("[0-9]*")}
    env = isolated(tmp_path, reworded(tmp_path))
    outcome = nbval(folder, REPLAYED, env, f"--nbval-sanitize-with={MAY_DIFFER}")
    assert "no recording in" not in outcome.output, outcome.output[-6_000:]
    assert outcome.passed == set(REPLAYED), outcome.output[-6_000:]
    assert {path.name: path.read_bytes() for path in folder.glob("[0-9]*")} == before
