"""The nine examples replay anywhere, and each fails when, and only when, its story changes."""

from __future__ import annotations

import shutil

import nbformat
import papermill
import pytest
from hermes_nb.testing import cassette_for, run_notebook

from tests.examples.runs import NAMES, ROOT, copied, isolated, nbval

pytestmark = [pytest.mark.kernel, pytest.mark.slow, pytest.mark.timeout(1_200)]

CPU_SECONDS = 240
"""What a replay of all may take; on two cores it is done in less than that of time."""


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.glob("[0-9][0-9]_*")}


def test_there_are_nine_and_each_is_recorded():
    assert [name[:2] for name in NAMES] == [f"{n:02}" for n in range(1, 10)]
    for name in NAMES:
        assert cassette_for(ROOT / "notebooks" / name).stat().st_size > 0


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


def changed(path, old, new):
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def test_one_character_changes_fail_exactly_the_notebooks_they_concern(tmp_path, monkeypatch):
    monkeypatch.delenv("CI", raising=False)  # it changes how pytest reports
    folder = copied(tmp_path)
    package = tmp_path / "package"
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "hermes_nb", package / "hermes_nb", ignore=ignored)
    shutil.copytree(ROOT / "skills", package / "skills", ignore=ignored)
    # A prompt and a context file that one notebook uses, and the schema of a tool that is in the
    # set 04 chooses and in the whole set, which 01 leaves as it is.
    changed(folder / "02_live_notebook.ipynb", "How complete is this table?", "How complete is it?")
    changed(folder / "data" / "orchard" / "AGENTS.md", "fewer than 20 trees", "fewer than 21 trees")
    changed(
        package / "hermes_nb" / "tools" / "stores.py",
        '"""Search past sessions;',
        '"""Search old sessions;',
    )
    outcome = nbval(folder, NAMES, isolated(tmp_path, package))
    assert set(outcome.failed) == {
        "01_first_turn.ipynb",
        "02_live_notebook.ipynb",
        "03_project_context.ipynb",
        "04_memory_and_recall.ipynb",
    }, outcome.output[-4_000:]
    whole, prompt, context, schema = (outcome.failed[name] for name in sorted(outcome.failed))
    assert "02_live_notebook.ipynb::Cell" in prompt
    assert "this table?" in prompt and "is it?" in prompt
    assert "20 trees" in context and "21 trees" in context
    for text in (whole, schema):
        assert "the tools are others (changed: session_search)" in text


def test_papermill_and_run_notebook_replay_too(tmp_path, monkeypatch):
    folder = copied(tmp_path)
    env = isolated(tmp_path)
    name = "03_project_context.ipynb"
    for key, value in env.items():
        monkeypatch.setenv(key, value)
    monkeypatch.setenv("HERMES_NB_CASSETTE", "replay")
    monkeypatch.setenv("HERMES_NB_CASSETTE_FILE", str(cassette_for(folder / name)))
    out = tmp_path / "out.ipynb"
    papermill.execute_notebook(folder / name, out, cwd=folder, progress_bar=False)
    ran, saved = (nbformat.read(path, as_version=4) for path in (out, folder / name))
    for now, then in zip(ran.cells, saved.cells, strict=True):
        if then.source.startswith("%%hermes"):
            assert [output.data["text/markdown"].split("\n\n")[0] for output in now.outputs] == [
                output.data["text/markdown"].split("\n\n")[0] for output in then.outputs
            ]
    run_notebook(folder / "05_skills.ipynb")
