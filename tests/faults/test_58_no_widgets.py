"""No page that answers, no widgets, no one to ask: there is text, and no endless wait."""

from __future__ import annotations

import nbformat
import pytest
from nbclient import NotebookClient

from tests.faults.cells import MODEL, calls, says

pytestmark = pytest.mark.kernel

RISKY = calls(("terminal", {"command": "touch made"}), ("run_python", {"code": "made = 1"}))
NO_WIDGETS = """
import sys
for name in [each for each in sys.modules if each.startswith('ipywidgets')]:
    del sys.modules[name]
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition('.')[0] in ('ipywidgets', 'anywidget'):
            raise ModuleNotFoundError(f'No module named {name!r}', name=name)
sys.meta_path.insert(0, Missing())
"""


def run_all(server, folder, monkeypatch, *sources):
    """Run a notebook where nobody watches, and return it."""
    monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
    monkeypatch.setenv("HERMES_NB_MODEL", MODEL)
    monkeypatch.setenv("IPYTHONDIR", str(folder / "ipython"))
    cells = [nbformat.v4.new_code_cell(source) for source in ("%load_ext hermes_nb", *sources)]
    spec = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook = nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": spec})
    NotebookClient(notebook, timeout=120, resources={"metadata": {"path": folder}}).execute()
    nbformat.validate(notebook)
    return notebook


@pytest.mark.slow
def test_58_nbclient_and_no_widgets(server, tmp_path, monkeypatch):
    server.replies[:] = [RISKY, says("Refused, **both**.")]
    notebook = run_all(
        server,
        tmp_path,
        monkeypatch,
        NO_WIDGETS,
        "%%hermes\ndo it",
        "%hermes status",
        "print('made' in globals())",
    )
    asked, status, made = notebook.cells[2:]
    (shown,) = asked.outputs
    assert "Refused, **both**." in shown["data"]["text/markdown"]
    assert "Refused" in shown["data"]["text/plain"] and "<" not in shown["data"]["text/plain"]
    results = [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "tool"]
    assert len(results) == 2 and all("%hermes approve all" in each for each in results)
    assert not (tmp_path / "made").exists()
    assert made.outputs[0]["text"].strip() == "False"
    assert all(output["output_type"] != "error" for output in status.outputs)


def test_58_a_console_asks_in_text(cells):
    """A client that takes input but knows neither comms nor Markdown."""
    cells.run("made = []")
    result = cells.ask(
        calls(("run_python", {"code": "made.append(1)"})),
        calls(("run_python", {"code": "made.append(2)"})),
        calls(("run_python", {"code": "made.append(3)"})),
        says("One of three."),
        answers=("yes", "\x1b[A", ""),
        timeout=90,
    )
    assert result.status == "ok"
    assert len(result.prompts) == 3
    assert "Hermes wants to use run_python" in result.text and "made.append(2)" in result.text
    assert cells.printed("print(made)") == "[1]"
    assert "One of three." in result.text


def test_58_a_console_that_hangs_up(cells):
    """The input ends: that is a no, and no question for ever."""
    cells.run("def gone(*_): raise EOFError\nget_ipython().kernel.raw_input = gone\nmade = []")
    result = cells.ask(
        calls(("run_python", {"code": "made.append(1)"})), says("No."), allow_stdin=True, timeout=90
    )
    cells.run("del get_ipython().kernel.raw_input")
    assert result.status == "ok"
    assert "nobody can be asked" in cells.results[0]
    assert cells.printed("print(made)") == "[]"
