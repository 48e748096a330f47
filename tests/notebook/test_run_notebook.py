"""A notebook in a fresh kernel: what fails, where, and nothing left behind."""

from __future__ import annotations

import asyncio

import psutil
import pytest
from hermes_nb.core.errors import ToolError
from hermes_nb.core.events import ToolProgress
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import Place, ToolContext
from hermes_nb.notebook.cell_tools import notebook_tools
from hermes_nb.notebook.document.file import FileDocument

from tests.notebook.document.test_file import OLD, code, notebook, text, written
from tests.patience import STOPS_WITHIN

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(120)]


@pytest.fixture
def use(shell, tmp_path):
    """Return a function that runs a notebook below `tmp_path`."""
    (tmp_path / "sub").mkdir()
    own = tmp_path / "own.ipynb"

    async def document(_place):
        return FileDocument(own)

    tools = notebook_tools(shell, document, root=tmp_path)
    tool = tools.get("run_notebook")

    def use(emit=lambda _: None, **arguments):
        assert tool.check(arguments) == ""
        place = Place(notebook=str(own))
        context = ToolContext(call=ToolCall(id="1", name="run_notebook"), emit=emit, place=place)
        return asyncio.run(tool.run(context, arguments)).text

    return use


@pytest.fixture
def children():
    """Return a function that lists the processes that this test has started."""

    def everyone():
        return psutil.Process().children(recursive=True)

    before = everyone()  # multiprocessing leaves some to the interpreter
    return lambda: [each for each in everyone() if each not in before]


CHECKS = """\
import os
assert os.getcwd().endswith('sub')
assert os.environ['HERMES_NB_APPROVE'] == 'never'
assert 'own.ipynb' not in os.environ.get('JPY_SESSION_NAME', '')
os.system('echo from a shell')
"""


def test_a_clean_run(use, children, tmp_path, monkeypatch, capfd):
    monkeypatch.setenv("JPY_SESSION_NAME", "own.ipynb")
    monkeypatch.setenv("HERMES_NB_APPROVE", "all")
    flood = code("for i in range(60): print('x' * 1_000_000)", "f")
    made = code("open('made.txt', 'w').close()", "b")
    document = notebook(text("# T", "t"), code(CHECKS, "a"), flood, made)
    path = written(tmp_path / "sub" / "n.ipynb", document)
    before, memory = path.read_bytes(), psutil.Process().memory_info().rss
    events = []
    said = use(path="sub/n.ipynb", emit=events.append)
    assert said.startswith("sub/n.ipynb ran without errors: 3 code cells in a fresh kernel, ")
    assert events[-1] == ToolProgress("1", "cell 4 of 4: open('made.txt', 'w').close()")
    assert path.read_bytes() == before
    assert sorted(each.name for each in path.parent.iterdir()) == ["made.txt", "n.ipynb"]
    assert children() == []
    assert capfd.readouterr() == ("", "")
    assert psutil.Process().memory_info().rss - memory < 60_000_000


def test_outputs_are_compared_with_those_that_were_saved(use, tmp_path):
    shown = {"output_type": "stream", "name": "stdout", "text": ["total 612\n"]}
    same = {**shown, "text": ["4\n"]}
    cells = (code("print(2 + 2)", "a", [same], 1), code("print('total', 591)", "b", [shown], 2))
    for name in ("own.ipynb", "n.ipynb"):
        written(tmp_path / name, notebook(text("# T", "t"), *cells))
        assert use(path=name).splitlines()[-1] == (
            "[outputs in a fresh kernel: 1 same, 1 differs; cell 2: differs: total 612 → total 591]"
        )


def test_failing_cells_are_told_with_their_errors(use, tmp_path):
    meant = code("1/0", "meant")
    meant["metadata"]["tags"] = ["raises-exception"]
    cells = (code("x = 1", "a"), code("nope", "b"), meant, code("d = {}\nd['k']", "c"))
    written(tmp_path / "n.ipynb", notebook(*cells))
    said = use(path="n.ipynb")
    assert said.startswith("n.ipynb: 2 of 4 code cells failed in a fresh kernel, ")
    assert "--- cell 1 b: nope ---\nNameError: name 'nope' is not defined" in said
    assert "--- cell 3 c: d = {} d['k'] ---\nKeyError: 'k'" in said
    assert "ZeroDivisionError" not in said


def test_the_notebook_in_hand_runs_as_it_is_shown(use, tmp_path):
    path = written(tmp_path / "own.ipynb", notebook(code("1/0", "a")))
    asyncio.run(FileDocument(path).insert("2/0"))
    assert "2 of 2 code cells failed" in use(path="own.ipynb")


def test_old_formats_and_unknown_kernels_run(use, tmp_path):
    written(tmp_path / "old.ipynb", OLD)
    assert "1 code cells" in use(path="old.ipynb")
    document = notebook(code("1", "a"))
    document["metadata"] = {"kernelspec": {"name": "no-such", "language": "python"}}
    written(tmp_path / "n.ipynb", document)
    assert "kernel 'no-such' is not installed, so python3" in use(path="n.ipynb")
    document["metadata"]["kernelspec"]["language"] = "R"
    written(tmp_path / "n.ipynb", document)
    with pytest.raises(ToolError, match="No such kernel"):
        use(path="n.ipynb")


def test_what_cannot_be_run(use, tmp_path):
    (tmp_path / "bad.ipynb").write_text("{", encoding="utf-8")
    for path, gist in [
        ("bad.ipynb", "damaged at line 1"), ("none.ipynb", "no file"),
        ("../x.ipynb", "outside the working directory"), ("sub", "a directory"),
    ]:  # fmt: skip
        with pytest.raises(ToolError, match=gist):
            use(path=path)


def test_a_time_limit(use, children, tmp_path):
    written(
        tmp_path / "n.ipynb", notebook(code("import time\ntime.sleep(60)", "a"), code("1", "b"))
    )
    said = use(path="n.ipynb", timeout=9)
    assert "stopped after 9 s at cell 0 a: import time time.sleep(60); the rest was not run" in said
    assert children() == []


def test_a_kernel_that_dies(use, tmp_path):
    written(tmp_path / "n.ipynb", notebook(code("import os\nos._exit(1)", "a"), code("1", "b")))
    assert "the kernel died at cell 0 a:" in use(path="n.ipynb")


RUN = """
from pathlib import Path
from hermes_nb.notebook.execute.verify import clean_run
from hermes_nb.notebook.document.ipynb import read_notebook
async def go(name):
    path = Path(name)
    with path.open("rb") as file:
        notebook = read_notebook(file, path.name).document
    for cell in notebook["cells"]:
        cell["outputs"] = []
    told = lambda text: print("ready" if "cell 2" in text else "", flush=True)
    return await clean_run(
        notebook, name=path.name, directory=path.parent, timeout=60, progress=told
    )
"""


def test_in_a_real_kernel_stop_ends_it(kernel, tmp_path):
    path = written(tmp_path / "n.ipynb", notebook(code("1", "a"), code("2", "b")))
    assert not kernel.run(RUN).error
    cell = kernel.run(f"print(await go({str(path)!r}))")
    assert "ran without errors: 2 code cells" in cell.printed, cell
    slow = code("import subprocess\nsubprocess.run(['sleep', '60'])", "b")
    written(path, notebook(code("1", "a"), slow))
    cell = kernel.run(
        f"with stoppable() as stop:\n    await go({str(path)!r})\nprint(stop.stopped)",
        stop_on="ready",
        stop_delay=1,
    )
    assert cell.printed.endswith("True\n") and cell.stop_seconds < STOPS_WITHIN, cell
    left = kernel.run(
        "import psutil, time\n"
        "end = time.monotonic() + 10\n"
        "while (c := psutil.Process().children(recursive=True)) and time.monotonic() < end:\n"
        "    time.sleep(.05)\n"
        "print(c)"
    )
    assert left.printed == "[]\n"
