"""The examples replay anywhere, and each fails when, and only when, its story changes."""

from __future__ import annotations

import re

import nbformat
import pytest
from hermes_nb.testing import cassette_for

from tests.examples.runs import NAMES, ROOT, changed, copied, isolated, nbval, reworded

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(1_200)]

LARGEST_PLOT = 60_000
"""Maximum size of a plot in an output, in bytes."""
CPU_SECONDS = 240
"""What a replay of all may take; on two cores it is done in less than that of time."""


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("[0-9][0-9]_*")}


def test_each_is_listed_and_recorded():
    listed = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")
    assert re.findall(r"notebooks/(\d\d_\w+\.ipynb)", listed) == NAMES
    for name in NAMES:
        assert cassette_for(ROOT / "notebooks" / name).stat().st_size > 0


@pytest.mark.parametrize("name", NAMES)
def test_its_outputs_are_small_and_plain(name):
    """A reader on GitHub sees all of it: no large plots, and no reprs of NumPy scalars."""
    notebook = nbformat.read(ROOT / "notebooks" / name, as_version=4)
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            assert len(data.get("image/png", "")) * 3 // 4 < LARGEST_PLOT
            assert "np.float64(" not in f"{data.get('text/markdown')}{data.get('text/plain')}"


def test_all_replay_without_network_in_any_home_and_order(tmp_path):
    """In order, and as nobody's CI, they are run by `make notebooks` and by the test below."""
    folder = copied(tmp_path)
    before = contents(folder)
    outcome = nbval(folder, NAMES[::-1], isolated(tmp_path) | {"CI": "true"})
    assert not outcome.failed, outcome.output[-6_000:]
    assert outcome.passed == set(NAMES)
    assert outcome.seconds < CPU_SECONDS
    assert contents(folder) == before  # a replay writes neither notebook nor cassette
    assert sorted(path.name for path in folder.iterdir() if "penguins-notes" in path.name) == []


def test_what_is_asked_fails_the_notebooks_it_concerns_and_other_descriptions_none(
    tmp_path, monkeypatch
):
    """A prompt and a context file that one notebook uses, among tools that are all described
    otherwise, with one more. What commands show of descriptions and their sizes is another."""
    monkeypatch.delenv("CI", raising=False)  # it changes how pytest reports
    folder = copied(tmp_path)
    changed(folder / "02_live_notebook.ipynb", "How complete is this table?", "How complete is it?")
    changed(folder / "data" / "orchard" / "AGENTS.md", "fewer than 20 trees", "fewer than 21 trees")
    outcome = nbval(folder, NAMES, isolated(tmp_path, reworded(tmp_path)))
    concerned = {"02_live_notebook.ipynb", "03_project_context.ipynb"}
    missed = {name for name, said in outcome.failed.items() if "no recording in" in said}
    assert missed == concerned, outcome.output[-4_000:]
    prompt, context = (outcome.failed[name] for name in sorted(concerned))
    assert "02_live_notebook.ipynb::Cell" in prompt
    assert "this table?" in prompt and "is it?" in prompt
    assert "20 trees" in context and "21 trees" in context
