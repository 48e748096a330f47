"""`jupyter hermes run NOTEBOOK`: exit codes, files, parameters, and nothing left running."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys

import nbformat
import psutil
import pytest
from hermes_nb.cli.main import main
from hermes_nb.cli.run import _parametrise, value_of
from hypothesis import given
from hypothesis import strategies as st

from tests.cli.conftest import gone, numbers_in, start
from tests.loopback import calls, says

KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


@pytest.fixture(autouse=True)
def _own_profile(tmp_path, monkeypatch):
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def made(*sources, tags=(), kernel=KERNEL):
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    if tags:
        cells[0].metadata["tags"] = list(tags)
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": kernel})


def write(path, *sources, **options):
    nbformat.write(made(*sources, **options), path)
    return path


def outputs(path):
    cells = nbformat.read(path, as_version=4).cells
    return ["".join(each.get("text", "") for each in cell.outputs) for cell in cells]


pytestmark = pytest.mark.timeout(300)


@pytest.mark.kernel
def test_a_clean_run_writes_nothing_but_what_is_wanted(tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("JPY_SESSION_NAME", "the-notebook-that-we-are-run-from.ipynb")
    (tmp_path / "sub").mkdir()
    source = "import os; print(os.path.basename(os.getcwd()), 'JPY_SESSION_NAME' in os.environ)"
    file = write(tmp_path / "sub" / "n.ipynb", source)
    before = file.read_bytes()
    assert main(["run", str(file)]) == 0
    assert list(file.parent.iterdir()) == [file]
    assert main(["run", str(file), "--output", str(tmp_path / "out.ipynb")]) == 0
    assert file.read_bytes() == before
    assert outputs(tmp_path / "out.ipynb") == ["sub False\n"]
    nbformat.validate(nbformat.read(tmp_path / "out.ipynb", as_version=4))
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.kernel
def test_a_cell_that_fails_is_named(tmp_path, capsys):
    file = write(tmp_path / "n.ipynb", "1/0", "x = 1\nnope", "print(2)", tags=["raises-exception"])
    assert main(["run", str(file), "--output", str(tmp_path / "out.ipynb")]) == 1
    said = capsys.readouterr().err
    assert said == "cell 2 (x = 1): NameError: name 'nope' is not defined\n"
    assert outputs(tmp_path / "out.ipynb")[2] == ""


@pytest.mark.slow
@pytest.mark.kernel
def test_time_and_death(tmp_path, capsys):
    file = write(tmp_path / "n.ipynb", "import time\ntime.sleep(60)")
    assert main(["run", str(file), "--timeout", "2"]) == 1
    assert "cell 1 (import time): it took more than 2 s" in capsys.readouterr().err
    file = write(tmp_path / "n.ipynb", "import os\nos._exit(1)")
    assert main(["run", str(file)]) == 1
    assert "the kernel died" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.kernel
def test_a_kernel_whose_port_is_taken_is_started_again(tmp_path, capsys, monkeypatch):
    spec = tmp_path / "kernels" / "unlucky"
    spec.mkdir(parents=True)
    first = tmp_path / "first"
    code = (
        "import pathlib, sys; p = pathlib.Path(sys.argv.pop(1)); new = not p.exists(); p.touch();"
        "new and sys.exit('Address already in use');"
        "import runpy; runpy.run_module('ipykernel_launcher', run_name='__main__')"
    )
    argv = [sys.executable, "-c", code, str(first), "-f", "{connection_file}"]
    kernel = {"argv": argv, "display_name": "unlucky", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(kernel))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path))
    file = write(tmp_path / "n.ipynb", "print('ran')", kernel={**KERNEL, "name": "unlucky"})
    out = tmp_path / "out.ipynb"
    assert main(["run", str(file), "--output", str(out)]) == 0, capsys.readouterr().err
    assert outputs(out)[0] == "ran\n"
    assert first.exists()


@pytest.mark.slow
@pytest.mark.kernel
def test_parameters(tmp_path, capsys):
    file = write(tmp_path / "n.ipynb", "a, b = 1, 2", "print(repr((a, b)))", tags=["parameters"])
    words = ["-p", "a", "0.5", "-p", "b", "it's"]
    out = tmp_path / "out.ipynb"
    assert main(["run", str(file), *words, "--output", str(out)]) == 0
    assert outputs(out)[2] == '(0.5, "it\'s")\n'
    first = out.read_bytes()
    assert main(["run", str(out), *words, "--output", str(out)]) == 0  # a second time, over itself
    assert out.read_bytes() == first
    assert main(["run", str(file), "-p", "import", "1"]) == 2
    write(file, "1", kernel={**KERNEL, "language": "R"})
    assert main(["run", str(file), "-p", "a", "1"]) == 2
    assert "is in R" in capsys.readouterr().err


@given(st.text(), st.sampled_from(["a", "_b", "é"]))
def test_every_value_is_one_literal(text, name):
    scope = {}
    notebook = made("1")
    _parametrise(notebook, [(name, text)])
    exec(notebook.cells[0].source, scope)
    assert scope[next(key for key in scope if key != "__builtins__")] == value_of(text)


def test_words_stand_for_what_they_look_like():
    words = ["1", "-2", "1e3", "True", "false", "None", "nan", "inf", "0x1", "", "1_000"]
    assert [value_of(each) for each in words] == [
        1, -2, 1000.0, True, False, None, "nan", "inf", "0x1", "", 1000,
    ]  # fmt: skip


def test_without_a_tag_they_come_first():
    notebook = made("print(1)")
    _parametrise(notebook, [("a", "2")])
    _parametrise(notebook, [("b", "1")])
    assert [cell.source for cell in notebook.cells] == ["# Parameters\nb = 1", "print(1)"]


def test_a_notebook_that_is_not_there_is_missed_before_anything_is_imported(tmp_path):
    code = (
        "import sys; from hermes_nb.cli.main import main; code = main(['run', 'no.ipynb'])\n"
        "sys.exit(code if 'hermes_nb.cli.run' not in sys.modules else 99)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (2, "jupyter hermes: there is no notebook no.ipynb\n")


@pytest.mark.parametrize(
    ("text", "gist"),
    [(None, "there is no notebook"), ("{", "cannot be read"), ("[]", "cannot be read"),
     ('{"cells": 3, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}', "cannot be read")],
)  # fmt: skip
def test_what_is_no_notebook(tmp_path, capsys, text, gist):
    file = tmp_path / "n.ipynb"
    if text is not None:
        file.write_text(text)
    assert main(["run", str(file)]) == 2
    assert gist in capsys.readouterr().err
    write(file, "1")
    assert main(["run", str(file), "--output", str(tmp_path / "no" / "out.ipynb")]) == 2


@pytest.mark.slow
@pytest.mark.kernel
def test_recorded_replayed_and_missed(serve, tmp_path, monkeypatch, capsys):
    asks = "%%hermes\nhow many?"
    file = write(tmp_path / "n.ipynb", "%load_ext hermes_nb", asks)
    serve(says("There are 3."))
    assert main(["run", str(file), "--cassette", "record"]) == 0
    assert (tmp_path / "n.hermes.jsonl").exists()
    monkeypatch.setenv("HERMES_NB_BASE_URL", "http://127.0.0.1:9/v1")
    shutil.rmtree(tmp_path / "hermes-home", ignore_errors=True)
    out = tmp_path / "out.ipynb"
    assert main(["run", str(file), "--cassette", "replay", "--output", str(out)]) == 0
    (shown,) = nbformat.read(out, as_version=4).cells[1].outputs
    assert "There are 3." in shown["data"]["text/markdown"]
    write(file, "%load_ext hermes_nb", asks.replace("many", "few"))
    assert main(["run", str(file), "--cassette", "replay"]) == 3
    assert "cell 2 (%%hermes): TurnFailed: no recording in" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.kernel
def test_what_is_refused_is_named_and_runs_when_an_option_allows_it(serve, tmp_path, capsys):
    wants = calls(("run_python", {"code": "made = 1"}))
    cells = "%load_ext hermes_nb", "%%hermes\nmake it", "%%hermes --quiet --into x\nmake it"
    serve(wants, says("No."), wants, says("No."))
    assert main(["run", str(write(tmp_path / "n.ipynb", *cells))]) == 3
    told = "refused: run_python made = 1\n"
    assert capsys.readouterr().err == f"cell 2: {told}cell 3: {told}"
    server = serve(wants, says("Made."))
    file = write(tmp_path / "n.ipynb", *cells[:2], "print(made)")
    words = ["--approve", "all", "--model", "other", "--output", str(tmp_path / "out.ipynb")]
    assert main(["run", str(file), *words]) == 0
    assert outputs(tmp_path / "out.ipynb")[2] == "1\n"
    assert server.bodies[0]["model"] == "other"


@pytest.mark.slow
@pytest.mark.kernel
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_leaves_nothing_behind(tmp_path, number):
    source = (
        "import subprocess, os\n"
        "child = subprocess.Popen(['sleep', '300'], start_new_session=True)\n"
        "open('pids', 'w').write(f'{os.getpid()} {child.pid}\\n')\n"
        "while True:\n"
        "    try:\n"
        "        child.wait()\n"
        "    except KeyboardInterrupt:\n"
        "        pass\n"
    )
    file = write(tmp_path / "n.ipynb", "print('done')", source)
    out = tmp_path / "out.ipynb"
    process = start(["run", str(file), "--output", str(out)], tmp_path)
    pids = numbers_in(tmp_path / "pids", process)
    process.send_signal(number)
    assert process.communicate(timeout=90)[1] == "stopped\n"
    assert process.returncode == 130
    assert all(gone(pid) for pid in pids)
    assert outputs(out)[0] == "done\n"
    everyone = [each.info["cmdline"] or [] for each in psutil.process_iter(["cmdline"])]
    assert not [words for words in everyone if str(tmp_path) in " ".join(words)]
