"""`jupyter hermes verify` and `%hermes verify` compare outputs with those of a fresh kernel."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.loopback import Loopback, calls, says

ROOT = Path(__file__).parents[3]
PLOT = "import matplotlib.pyplot as plt\nplt.figure()\nplt.plot({values})\nplt.show()"


def notebook(folder: Path, *sources: str, name: str = "n.ipynb", run: bool = True) -> Path:
    """Write a notebook that has run from the top."""
    nb = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in sources])
    if run:
        NotebookClient(nb, allow_errors=True, resources={"metadata": {"path": folder}}).execute()
    file = folder / name
    nbformat.write(nb, file)
    return file


def edited(file: Path, cell: int, text: str) -> None:
    """Replace the text of a cell's first output in the file."""
    nb = nbformat.read(file, as_version=4)
    output = nb.cells[cell].outputs[0]
    if "data" in output:
        output.data["text/plain"] = text
    else:
        output.text = text
    nbformat.write(nb, file)


def verify(file: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "hermes_nb.cli", "verify", str(file), *words],
        env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_a_notebook_that_shows_the_same_passes_and_is_not_changed(tmp_path):
    file = notebook(
        tmp_path,
        "import random, time, tempfile\nrandom.seed(4)",
        "print(random.random(), random.choice('abc'))",
        "time.time(), object(), tempfile.mkdtemp()",
        "import datetime; datetime.datetime.now()",
        PLOT.format(values="[1, 3, 2]"),
        "import numpy as np; np.random.default_rng(3).normal(size=3)",
        "{'b', 'a', 'c'} and 1/3",
    )
    before = file.read_bytes()
    done = verify(file, "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("n.ipynb: verified: ")
    assert "7 code cells in a fresh kernel" in done.stdout
    assert file.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["n.ipynb"]


def test_each_difference_is_named_by_its_kind(tmp_path):
    file = notebook(
        tmp_path,
        "total = 41\nprint('total', total)",
        "import random; print(random.random())",
        PLOT.format(values="[1, 2]"),
        "round(2 / 3, 4)",
        "round(2 / 3, 4)",
        "print('same')",
    )
    edited(file, 0, "total 42\n")
    edited(file, 3, "0.6668")
    edited(file, 4, "0.7")
    nb = nbformat.read(file, as_version=4)
    nb.cells[2].source = PLOT.format(values="[2, 1]")
    nb.cells[5].source = "print('sam' + undefined)"
    nbformat.write(nb, file)
    done = verify(file, "--yes")
    assert done.returncode == 1
    lines = done.stdout.splitlines()
    assert lines[0] == "cell 1: differs: total 42 → total 41"
    assert lines[1].startswith("cell 2: random, no seed: ")
    assert lines[2] == "cell 3: plot differs"
    assert lines[3] == "cell 5: differs: 0.7 → 0.6667"
    assert lines[4] == "cell 6: failed: NameError: name 'undefined' is not defined"
    assert lines[5].startswith(
        "n.ipynb: not verified: 1 numbers differ in the last digit, 2 differs"
    )


def test_hidden_state_is_found(tmp_path):
    """A cell that only worked because of a variable that no cell makes any more."""
    file = notebook(tmp_path, "rate = 3", "print(rate * 2)")
    nb = nbformat.read(file, as_version=4)
    nb.cells[0].source = "# rate = 3"
    nbformat.write(nb, file)
    done = verify(file, "--yes")
    assert done.returncode == 1
    assert "cell 2: failed: NameError" in done.stdout


def test_cells_that_ask_a_model_are_replayed_or_not_run(tmp_path):
    file = notebook(tmp_path, "%load_ext hermes_nb", "%%hermes\nHow are you?", "1 + 1", run=False)
    nb = nbformat.read(file, as_version=4)
    for count, cell in enumerate(nb.cells, 1):
        cell.execution_count = count
    printed = (
        "Hermes is loaded. Start a cell with %%hermes, or ask in the panel (%hermes panel). "
        "%hermes help lists the commands.\n"
    )  # only where a user works
    nb.cells[0].outputs = [nbformat.v4.new_output("stream", name="stdout", text=printed)]
    nb.cells[2].outputs = [
        nbformat.v4.new_output("execute_result", {"text/plain": "2"}, execution_count=3)
    ]
    nbformat.write(nb, file)
    done = verify(
        file, "--yes", OPENAI_API_KEY="never-used", HERMES_NB_BASE_URL="http://127.0.0.1:9/v1"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 not run" in done.stdout and "differs" not in done.stdout


@pytest.mark.parametrize("mode", ["ask", "all"])
def test_a_recording_runs_code_only_in_a_mode_that_the_user_allowed(tmp_path, mode):
    """Agreeing to run the notebook's cells is not agreeing to calls that no cell shows."""
    turn = "%%hermes --approve all --no-context\nSummarise the data."
    code = {"code": "open('made.txt', 'w').write('x')"}
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HERMES_HOME": str(tmp_path / "author")}
    with Loopback(calls(("run_python", code)), says("Done.")) as server:
        recording = {
            "HERMES_NB_CEILING": "all",
            "HERMES_NB_CASSETTE": "record",
            "HERMES_NB_CASSETTE_FILE": str(tmp_path / "n.hermes.jsonl"),
            "HERMES_NB_BASE_URL": server.url,
            "HERMES_NB_MODEL": "m",
        }
        file = notebook(tmp_path, "%load_ext hermes_nb", turn, run=False)
        nb = nbformat.read(file, as_version=4)
        NotebookClient(nb, resources={"metadata": {"path": tmp_path}}).execute(
            env=environment | recording
        )
    nbformat.write(nb, file)
    (tmp_path / "made.txt").unlink()
    home = str(tmp_path / "home")
    done = verify(file, "--yes", HERMES_HOME=home, HERMES_NB_APPROVE=mode)
    assert (tmp_path / "made.txt").exists() == (mode == "all")
    assert ("1 not run" in done.stdout) == (mode == "ask"), done.stdout + done.stderr


def test_it_asks_first_and_says_what_runs(tmp_path):
    file = notebook(
        tmp_path,
        "open('made.txt', 'w').write('x')",
        "import requests\nrequests.get('http://127.0.0.1:9')",
        run=False,
    )
    done = verify(file)
    assert done.returncode == 2
    assert "write files (code cell 1), use the network (code cell 2)" in done.stderr
    assert not (tmp_path / "made.txt").exists()


def test_a_run_that_takes_too_long_is_stopped_and_does_not_pass(tmp_path):
    file = notebook(tmp_path, "1 + 1", "import time; time.sleep(600)", "2 + 2", run=False)
    done = verify(file, "--yes", "--timeout", "10")
    assert done.returncode == 1
    assert "stopped at cell 2" in done.stdout


@pytest.mark.parametrize("changed", ["metadata", "pixels"])
def test_plots_are_compared_by_their_pixels(tmp_path, changed):
    file = notebook(tmp_path, PLOT.format(values="[1, 2]"))
    nb = nbformat.read(file, as_version=4)
    output = next(each for each in nb.cells[0].outputs if "image/png" in each.get("data", {}))
    png = base64.b64decode(output.data["image/png"])
    if changed == "metadata":
        text = b"tEXtDate\x002001"
        chunk = (len(text) - 4).to_bytes(4, "big") + text + b"\0\0\0\0"
        png = png[:33] + chunk + png[33:]
    else:
        at = png.index(b"IDAT") + 40
        png = png[:at] + bytes([png[at] ^ 1]) + png[at + 1 :]
    output.data["image/png"] = base64.b64encode(png).decode()
    nbformat.write(nb, file)
    assert verify(file, "--yes").returncode == (0 if changed == "metadata" else 1)


def test_the_command_in_a_notebook_stores_its_result_until_the_next_edit(tmp_path):
    file = notebook(tmp_path, "print('hello')")
    nb = nbformat.read(file, as_version=4)
    nb.cells += [nbformat.v4.new_code_cell("%hermes verify --yes")]
    nbformat.write(nb, file)
    run = nbformat.v4.new_notebook(
        cells=[
            nbformat.v4.new_code_cell(each)
            for each in ("%load_ext hermes_nb", "%hermes verify --yes", "%hermes status")
        ]
    )
    home = tmp_path / "home"
    env = os.environ | {
        "PYTHONPATH": str(ROOT),
        "HERMES_HOME": str(home),
        "JPY_SESSION_NAME": str(file),
    }
    NotebookClient(run, resources={"metadata": {"path": tmp_path}}).execute(env=env)
    shown = ["".join(json.dumps(each) for each in cell.outputs) for cell in run.cells]
    assert "verified: " in shown[1]
    assert "2 code cells in a fresh kernel" in shown[1]
    assert "verified" in shown[2]
    stored = json.loads((home / "verified.json").read_text())
    assert list(stored) == [str(file)]
    nb.cells[0].source = "print('hello, you')"
    nbformat.write(nb, file)
    run.cells = [
        nbformat.v4.new_code_cell("%load_ext hermes_nb"),
        nbformat.v4.new_code_cell("%hermes status"),
    ]
    NotebookClient(run, resources={"metadata": {"path": tmp_path}}).execute(env=env)
    assert "not since the last edit" in json.dumps(run.cells[1].outputs)
