"""Notebooks with turns in them run where nobody watches: nbclient, papermill, nbval."""

from __future__ import annotations

import subprocess
import sys

import nbformat
import papermill
import pytest
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

from tests.cli.conftest import serve
from tests.loopback import failure, stream, text_chunks, tool_chunks

pytestmark = pytest.mark.kernel


__all__ = ["serve"]


def write(path, *sources):
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source) for source in sources],
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}
        },
    )
    notebook.cells[0].metadata["tags"] = ["parameters"]  # papermill's word for where they go
    nbformat.write(notebook, path)
    return notebook


def asks_to_run():
    return stream(tool_chunks(("run_python", {"code": "made = 1"})))


def test_nbclient_runs_all_and_risky_calls_are_refused(serve, tmp_path):
    server = serve(asks_to_run(), stream(text_chunks("It was refused.")))
    notebook = write(
        tmp_path / "n.ipynb",
        "%load_ext hermes_nb",
        "%%hermes\nmake it",
        "print('made' in globals())",
    )
    NotebookClient(notebook, timeout=60, resources={"metadata": {"path": tmp_path}}).execute()
    nbformat.validate(notebook)
    assert "It was refused." in notebook.cells[1].outputs[0]["data"]["text/markdown"]
    assert len(notebook.cells[1].outputs) == 1
    assert notebook.cells[2].outputs[0]["text"].strip() == "False"
    result = server.bodies[-1]["messages"][-1]["content"]
    assert "%hermes approve all" in result


def test_papermill_runs_it_with_parameters(serve, tmp_path):
    server = serve(asks_to_run(), stream(text_chunks("Made.")))
    write(
        tmp_path / "in.ipynb",
        "name = 'x'",
        "%load_ext hermes_nb",
        "%%hermes --approve all\nmake $`name`",
        "print(made)",
    )
    done = papermill.execute_notebook(
        tmp_path / "in.ipynb",
        tmp_path / "out.ipynb",
        parameters={"name": "a toy"},
        cwd=tmp_path,
        progress_bar=False,
    )
    assert done.cells[-1].outputs[0]["text"].strip() == "1"
    assert server.bodies[0]["messages"][-1]["content"].startswith("make a toy\n")


def test_nbval_runs_it(serve, tmp_path):
    serve(stream(text_chunks("Fine.")))
    write(tmp_path / "n.ipynb", "%load_ext hermes_nb", "%hermes hello?")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "--nbval-lax", "-q", "-p", "no:cacheprovider", "n.ipynb"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "2 passed" in done.stdout, done.stdout + done.stderr


def test_a_failed_turn_stops_the_run(serve, tmp_path):
    serve(failure(401, {"error": {"message": "no such key"}}))
    notebook = write(tmp_path / "n.ipynb", "%load_ext hermes_nb", "%hermes hello", "print('after')")
    client = NotebookClient(notebook, timeout=60, resources={"metadata": {"path": tmp_path}})
    with pytest.raises(CellExecutionError, match="refused the API key"):
        client.execute()
    assert notebook.cells[2].outputs == []
