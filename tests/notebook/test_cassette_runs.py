"""A notebook that was recorded runs without a model, and fails when its story changes."""

from __future__ import annotations

import os
import subprocess
import sys

import nbformat
import papermill
import pytest
from hermes_nb.testing import NotebookDiffers, cassette_for, run_notebook
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from papermill.exceptions import PapermillExecutionError

from tests.loopback import Loopback, calls, says

pytestmark = [pytest.mark.kernel, pytest.mark.slow]

STORY = (
    *("%load_ext hermes_nb", "rows = [1, 2, 3]"),
    *("%%hermes --approve all\nHow many rows are there?", "print(counted)", "%hermes And now?"),
)


def replies():
    code = (
        "import time, tempfile\ncounted = len(rows)\n"
        "print(counted, tempfile.mkdtemp(), time.time())"
    )
    counts = calls(("run_python", {"code": code}))
    return counts, says("There are **3** rows."), says("Still three.")


@pytest.fixture(autouse=True)
def apart(monkeypatch, tmp_path):
    """Keep IPython's own files, and a mode that the tests themselves run in, out of this."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("HERMES_NB_CASSETTE", raising=False)


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "story"
    path.mkdir()
    return path


def write(path, *sources):
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel}), path)
    return path


@pytest.fixture
def recorded(folder):
    """Return a notebook that was recorded with a server which is gone now."""
    path = write(folder / "n.ipynb", *STORY)
    with Loopback(*replies()) as server:
        env = {"HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": "loopback-model"}
        run_notebook(path, mode="record", env=env)
        assert len(server.bodies) == 3
    return path


def test_a_recorded_notebook_is_replayed_twice_and_shows_the_same(recorded):
    assert cassette_for(recorded).name == "n.hermes.jsonl"
    before = cassette_for(recorded).read_bytes()
    for _ in range(2):
        run = run_notebook(recorded)
        assert "There are **3** rows." in run.notebook.cells[2].outputs[0]["data"]["text/markdown"]
        assert run.notebook.cells[3].outputs[0]["text"] == "3\n"
    assert cassette_for(recorded).read_bytes() == before
    assert b"<tmp>/<temporary> <time>" in before  # what run_python printed


def test_plain_nbclient_finds_the_cassette_and_its_story_may_not_change(
    recorded, monkeypatch, tmp_path
):
    monkeypatch.setenv("HERMES_NB_CASSETTE", "replay")
    resources = {"metadata": {"path": str(recorded.parent)}}

    def run(change=lambda _: None):
        monkeypatch.setenv("HERMES_HOME", str(tmp_path / os.urandom(4).hex()))
        notebook = nbformat.read(recorded, as_version=4)
        change(notebook)
        NotebookClient(notebook, timeout=60, resources=resources).execute()
        return notebook

    assert "3** rows" in str(run().cells[2].outputs)

    def other_data(notebook):
        notebook.cells[1].source = "rows = [1, 2, 3, 4]"

    with pytest.raises(
        CellExecutionError,
        match=r"message 2 \(user\) differs; recorded: .*3 items.* now: .*4 items",
    ):
        run(other_data)

    def other_question(notebook):
        notebook.cells[2].source = "%%hermes --approve all\nHow many columns are there?"

    with pytest.raises(CellExecutionError, match=r"recorded: .*rows.*now: .*columns"):
        run(other_question)


def test_somebody_elses_memory_is_no_part_of_the_story(recorded, tmp_path):
    home = tmp_path / "theirs"
    (home / "memories").mkdir(parents=True)
    (home / "memories" / "MEMORY.md").write_text("Likes penguins.\n§\nUses SI units.")
    (home / "SOUL.md").write_text("You are a pirate.\n")
    run_notebook(recorded, home=home)


def test_an_output_that_is_not_the_models_is_compared_too(recorded):
    notebook = nbformat.read(recorded, as_version=4)
    notebook.cells[3].outputs[0]["text"] = "4\n"
    nbformat.write(notebook, recorded)
    with pytest.raises(NotebookDiffers, match=r"cell 4 \(print\(counted\)\)"):
        run_notebook(recorded)
    notebook.cells[3].metadata["tags"] = ["nbval-ignore-output"]
    nbformat.write(notebook, recorded)
    run_notebook(recorded)


def test_papermill_and_nbval_replay_it(recorded, monkeypatch, folder):
    monkeypatch.setenv("HERMES_NB_CASSETTE", "replay")
    notebook = nbformat.read(recorded, as_version=4)
    notebook.cells[1].metadata["tags"] = ["parameters"]  # papermill's word for where they go
    nbformat.write(notebook, recorded)

    def papermill_runs(**parameters):
        papermill.execute_notebook(
            recorded, folder / "out.ipynb", parameters, cwd=folder, progress_bar=False
        )

    papermill_runs(rows=[1, 2, 3])
    with pytest.raises(
        PapermillExecutionError,
        match=r"message 2 \(user\) differs; recorded: .*3 items.* now: .*4 items",
    ):
        papermill_runs(rows=[1, 2, 3, 4])
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval-lax", "-q", "-p", "no:cacheprovider", "n.ipynb"],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "5 passed" in done.stdout, done.stdout + done.stderr
