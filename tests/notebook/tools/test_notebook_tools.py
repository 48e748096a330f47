"""The notebook toolset, on a real shell and a real file, used by an agent that follows a script."""

from __future__ import annotations

import asyncio
import json
import time

import pytest
from hermes_nb.core.errors import ToolDenied, ToolError, TurnInterrupted
from hermes_nb.core.events import ToolProgress
from hermes_nb.core.messages import ToolCall
from hermes_nb.core.protocols import Approval
from hermes_nb.core.text import JSON_CHARACTERS_PER_TOKEN
from hermes_nb.core.tools import Place, Risk, ToolContext, ToolOutput
from hermes_nb.notebook.cell_tools import notebook_tools
from hermes_nb.notebook.document.document import CellConflict, source_hash
from hermes_nb.notebook.document.file import FileDocument
from hermes_nb.notebook.execute.cell_runs import runs_of
from hermes_nb.notebook.shell import running_cell
from hermes_nb.safety.guard import Guard
from hermes_nb.tools.asking import asking

from tests.notebook.document.test_file import STREAM, code, notebook, text, valid, written
from tests.notebook.tools.test_kernel_tools import PIXEL
from tests.patience import SOON

pytestmark = pytest.mark.usefixtures("signals")

PLOT = {"output_type": "display_data", "metadata": {}, "data": {"image/png": PIXEL}}


@pytest.fixture
def path(tmp_path):
    return written(
        tmp_path / "nb.ipynb",
        notebook(
            text("# Load", "load-title"),
            code("x = 20\nx", "load-code", [STREAM, PLOT], 1),
            text("# Use", "use-title"),
            code("y = x + 1\nprint(y)", "use-code"),
        ),
    )


@pytest.fixture
def mark():
    return {"session": "s", "turn": 1}


@pytest.fixture
def tools(shell, path):
    async def document(_place):
        return FileDocument(path)

    return notebook_tools(shell, document)


@pytest.fixture
def use(shell, tools, mark):
    """Return a function that runs one tool and returns what it returns, as text if it is that."""

    def use(name, /, emit=lambda _: None, **arguments):
        tool = tools.get(name)
        assert tool.check(arguments) == ""
        place = Place(**mark, cell=running_cell(shell))
        context = ToolContext(
            call=ToolCall(id="1", name=name, arguments=arguments),
            emit=emit,
            place=place,
            sees_images=True,
        )
        result = asyncio.run(tool.run(context, arguments))
        return result.text if isinstance(result, ToolOutput) and not result.images else result

    return use


def refused(use, name, **arguments):
    with pytest.raises(ToolError) as error:
        use(name, **arguments)
    return str(error.value)


def sources(path):
    return ["".join(cell["source"]) for cell in valid(path)["cells"]]


def test_the_toolset(tools):
    risks = {tool.name: tool.risk for tool in tools}
    assert list(risks) == [
        "notebook_outline", "read_cells", "insert_cell", "edit_cell", "delete_cell", "move_cell",
        "run_cell", "run_cells", "wait_for", "run_notebook",
    ]  # fmt: skip
    assert set(list(risks.values())[:2]) == {Risk.READ}
    assert set(list(risks.values())[2:6]) == {Risk.WRITE}
    assert risks.pop("wait_for") == Risk.READ
    assert set(list(risks.values())[6:]) == {Risk.EXECUTE}
    assert all(tool.toolset == "notebook" for tool in tools)
    assert all(tool.exclusive for tool in tools if tool.risk is not Risk.READ)
    sent = [[tool.name, tool.description, tool.parameters] for tool in tools]
    size = sum(len(json.dumps(each, separators=(",", ":"))) for each in sent)
    assert size / JSON_CHARACTERS_PER_TOKEN <= 925


def test_outline_and_what_changed(use, path):
    first = use("notebook_outline")
    assert first.splitlines() == [
        "the file nb.ipynb, 4 cells:",
        "0 load-tit markdown: # Load",
        "  1 load-cod code [1]: x = 20 (+1 line) -> plot, output",
        "2 use-titl markdown: # Use",
        "  3 use-code code: y = x + 1 (+1 line)",
        "[stale cells: 1 with output of an earlier kernel]",
    ]
    asyncio.run(FileDocument(path).replace("use-title", "# Used", seen=source_hash("# Use")))
    assert "* edited" in use("notebook_outline").splitlines()[3]
    assert "*" not in use("notebook_outline")


def test_read_cells(use, path):
    shown = use("read_cells", ids=["load-code"])
    assert shown.text == (
        "--- cell 1 load-cod code [1] ---\nx = 20\nx\n--- shows ---\n1\n2\n[image/png 1x1]"
    )
    assert [image.data for image in shown.images] == [PIXEL]
    assert use("read_cells", ids=["load-code"], outputs=False).endswith("x = 20\nx")
    assert use("read_cells", section="use").count("--- cell") == 2
    assert use("read_cells", range="2-9").count("--- cell") == 2
    assert use("read_cells", range="0", ids=["use-code"]).count("--- cell") == 2
    assert use("read_cells").text.count("--- cell") == 4
    assert "cell 'nope'" in refused(use, "read_cells", ids=["nope"])
    assert "no cells in the range 7-9; there are 4" in refused(use, "read_cells", range="7-9")
    assert "give indices as '3-7'" in refused(use, "read_cells", range="a")
    assert "the headings are: 'Load', 'Use'" in refused(use, "read_cells", section="nope")
    asyncio.run(FileDocument(path).insert("z = 1\n" * 50_000, index=0))
    shown = use("read_cells")
    assert len(shown.text) < 42_000 and "characters dropped" in shown.text


def test_an_edit_and_a_run_name_the_cells_that_they_make_stale(use, tools, shell):
    use("read_cells")
    assert "stale" not in use("run_cells", ids=["load-code", "use-code"])
    told = use("edit_cell", id="load-code", old="20", new="30").splitlines()
    assert told[-1] == "[stale cells: 3 use-code reads `x` of 1, which ran later or is stale]"
    assert "1 load-cod edited and not run since; 3 use-code" in use("notebook_outline")
    told = use("run_cell", id="load-code").splitlines()
    assert told[-1] == "[stale cells: 3 use-code reads `x` of 1, which ran later or is stale]"
    assert "stale" not in use("run_cell", id="use-code")
    runs_of(shell).ran(Place(session="s", turn=2), "x = 5", ["x"])
    assert use("notebook_outline").splitlines()[-1] == (
        "[stale cells: 3 use-code reads `x`, which code outside of the cells changed later]"
    )


class Front:
    """What of ipykernel's kernel says which cell runs."""

    def get_parent(self):
        return {"metadata": {"cellId": "load-title"}}


def test_insert_cell(use, shell, path, mark):
    assert use("insert_cell", source="z = 1").endswith("(index 4) in the file nb.ipynb")
    use("insert_cell", source="z = 2")
    use("insert_cell", source="*text*", after="load-t", type="markdown")
    assert sources(path)[-2:] == ["z = 1", "z = 2"]
    cell = valid(path)["cells"][1]
    assert (cell["cell_type"], cell["metadata"]) == (
        *("markdown", {"hermes": {**mark, "hash": source_hash("*text*")}}),
    )
    shell.kernel, mark["turn"] = Front(), 2  # below the running one, in the order of their making
    use("insert_cell", source="y = 1")
    use("insert_cell", source="y = 2")
    assert sources(path)[:3] == ["# Load", "y = 1", "y = 2"]
    mark["turn"] = 3
    use("insert_cell", source="y = 3")
    assert sources(path)[:3] == ["# Load", "y = 3", "y = 1"]


def test_edit_cell(use, path):
    use("notebook_outline")
    said = use("edit_cell", id="use-c", old="x + 1", new="x + 2")
    assert said == (
        "edited cell use-code (index 3) in the file nb.ipynb\n"
        "@@ -1,2 +1,2 @@\n-y = x + 1\n+y = x + 2\n print(y)"
    )
    use("edit_cell", id="use-code", new="whole")
    assert sources(path)[3] == "whole"
    use("edit_cell", id="use-code", new="")
    assert sources(path)[3] == ""
    before = path.read_bytes()
    for old, new, gist in [
        ("z", "1", "`old` is not in cell load-code, which contains:\nx = 20\nx"),
        ("x", "1", "`old` is in cell load-code 2 times (lines 1, 2)"),
        ("20", "20", "the same"), ("", "1", "not in cell"),
    ]:  # fmt: skip
        assert gist in refused(use, "edit_cell", id="load-code", old=old, new=new)
    assert path.read_bytes() == before


def test_an_edit_needs_that_the_source_was_seen(use, path):
    """The first answer shows the cell, so that the second is for what it holds."""
    for _ in range(2):
        with pytest.raises(CellConflict, match="y = x"):
            use("edit_cell", id="use-code", new="1")
        use("edit_cell", id="use-code", new="1")
        asyncio.run(FileDocument(path).replace("use-code", "y = x # mine", seen=source_hash("1")))
    assert sources(path)[3] == "y = x # mine"
    for name in ("delete_cell", "run_cell"):
        asyncio.run(FileDocument(path).insert(name, index=0))
        new = asyncio.run(FileDocument(path).cells())[0]
        with pytest.raises(CellConflict, match=name):
            use(name, id=new.id)


def test_delete_and_move(use, path):
    use("notebook_outline")
    assert use("move_cell", id="use-code").startswith("moved cell use-code (index 0)")
    use("move_cell", id="load-title", after="use-title")
    assert "y = x + 1" in use("delete_cell", id="use-code")
    assert sources(path) == ["x = 20\nx", "# Use", "# Load"]
    assert "near it" in refused(use, "delete_cell", id="use-code")


def test_a_cell_has_a_time_limit(use, shell, path):
    document = FileDocument(path)
    asyncio.run(document.insert("import time\ntime.sleep(30)", index=0))
    use("read_cells")
    slow = asyncio.run(document.cells())[0].id
    began = time.monotonic()
    assert "TimeLimit: stopped after 1 s" in refused(use, "run_cell", id=slow, timeout=1)
    assert time.monotonic() - began < SOON
    assert "give the seconds" in refused(use, "run_cells", ids=[slow], timeout=0)


def test_run_cells(use, shell, path):
    use("notebook_outline")
    events = []
    shown = use("run_cells", ids=["load-code", "use-code"], emit=events.append)
    assert "cell load-code (index 1) ran in " in shown
    assert ", outputs in the file nb.ipynb\n20" in shown and shown.endswith("\n21")
    assert shell.user_ns["y"] == 21
    cells = valid(path)["cells"]
    assert cells[1]["outputs"][0]["data"]["text/plain"] == ["20"]
    assert cells[3]["outputs"] == [{"output_type": "stream", "name": "stdout", "text": ["21\n"]}]
    first = cells[1]["execution_count"]
    assert cells[1]["outputs"][0]["execution_count"] == first
    assert (cells[3]["execution_count"], shell.execution_count) == (first + 1, first + 2)
    assert shell.user_ns["In"][first : first + 2] == ["x = 20\nx", "y = x + 1\nprint(y)"]
    assert ToolProgress("1", "cell 2 of 2") in events
    use("edit_cell", id="load-code", new="print('before')\n1/0")
    text = refused(use, "run_cells", ids=["load-code", "use-code"])
    assert "cell load-code (index 1) failed" in text and "before" in text
    assert "ZeroDivisionError" in text and "(1 cells after it were not run)" in text
    assert [o["output_type"] for o in valid(path)["cells"][1]["outputs"]] == ["stream", "error"]


def test_what_does_not_run(use, path, shell):
    shell.kernel = Front()
    asyncio.run(FileDocument(path).insert("%%hermes\nagain", index=4))
    use("notebook_outline")
    last = asyncio.run(FileDocument(path).cells())[4].id
    assert "only code cells can be run" in refused(use, "run_cell", id="use-title")
    assert "so it cannot run during a turn" in refused(use, "run_cells", ids=["use-code", last])
    assert "`ids` is empty" in refused(use, "run_cells", ids=[])


PRESSED = """\
import os, signal, threading, time
threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
time.sleep(60)"""


def test_what_was_shown_before_a_stop_is_written_and_what_cannot_be_is_told(use, path):
    use("notebook_outline")
    use("edit_cell", id="use-code", new=f"print('begun')\n{PRESSED}")
    with pytest.raises(TurnInterrupted):
        use("run_cell", id="use-code")
    assert valid(path)["cells"][3]["outputs"][0]["text"] == ["begun\n"]
    use("edit_cell", id="use-code", new=f"import os\nos.remove({str(path)!r})\nprint('gone')")
    shown = use("run_cell", id="use-code")
    assert "its outputs could not be written: no file 'nb.ipynb'" in shown
    assert shown.endswith("gone")


class Recorder:
    """Answers every question the same way, and keeps what was asked."""

    def __init__(self, answer):
        self.answer = answer
        self.shown = []

    async def ask(self, request):
        self.shown.append(request.shown)
        return Approval(self.answer)


@pytest.fixture
def ask(tools, use):
    def ask(name, answer="once", **arguments):
        recorder = Recorder(answer)
        tool = asking(tools, Guard(), recorder).get(name)
        context = ToolContext(call=ToolCall(id="1", name=name, arguments=arguments))
        try:
            asyncio.run(tool.run(context, arguments))
        except ToolDenied:
            return [*recorder.shown, "denied"]
        return recorder.shown

    return ask


def test_the_user_approves_what_will_happen(ask, use, path, monkeypatch):
    monkeypatch.chdir(path.parent)
    use("notebook_outline")
    assert ask("edit_cell", id="load-c", old="20", new="30\u202e") == [
        "[1]\n- x = 20\n+ x = 30\\u202e\n  x"
    ]
    assert ask("delete_cell", "deny", id="load-code")[1] == "denied"
    assert "- x = 30" in ask("delete_cell", "deny", id="load-code")[0]
    assert ask("run_cells", ids=["use-code"], answer="deny")[0] == ("# cell 4\ny = x + 1\nprint(y)")
    assert ask("insert_cell", source="a\nb", after="use-t") == [
        "new code cell below cell 3 # Use:\na\nb"
    ]
    assert ask("move_cell", id="use-code") == ["move cell 5 y = x + 1 print(y) to the top"]
    whole = ask("run_notebook", "deny", path=path.name)[0]
    assert whole.startswith(f"{path.name}, in a fresh kernel:")
    assert "y = x + 1" in whole and "print(y)" in whole
    assert len(sources(path)) == 5
    for name, arguments, gist in [  # nobody is asked about what cannot be done
        ("edit_cell", {"id": "nope", "new": ""}, "no cell 'nope'"),
        ("edit_cell", {"id": "use-code", "old": "nope", "new": ""}, "not in cell"),
        ("run_cell", {"id": "use-title"}, "only code cells"),
    ]:
        with pytest.raises(ToolError, match=gist):
            ask(name, **arguments)


def test_the_cell_view_sees_which_cell(tools, use, path):
    gist = {tool.name: tool.describe for tool in tools}
    assert gist["run_cell"]({"id": "use-code"}) == "cell use-code"
    use("read_cells")
    at = [cell["id"] for cell in valid(path)["cells"]].index
    code, text = at("use-code") + 1, at("load-title") + 1
    assert gist["run_cell"]({"id": "load-code"}).startswith("[1]: x = 20")
    assert gist["run_cells"]({"ids": ["load-code", "use-code"]}) == f"[1] and cell {code}"
    assert gist["run_cell"]({"id": "use-code"}) == f"cell {code}: y = x + 1 …"
    assert gist["run_cells"]({"ids": ["use-code", "load-t"]}) == f"cells {code} and {text}"
    assert gist["edit_cell"]({"id": "use-code", "new": "a\nb"}) == f"cell {code}: a …"
    assert gist["move_cell"]({"id": "use-code"}) == f"cell {code} to the top"
    assert gist["insert_cell"]({"source": "import a\na = 1\nb"}) == "a = 1 …"
    use("edit_cell", id="load-code", old="x = 20", new="x = 30")
    assert gist["run_cell"]({"id": "load-code"}).startswith("[1]: x = 30")
    use("insert_cell", source="new", after="load-title")
    assert gist["run_cell"]({"id": "use-code"}) == f"cell {code + 1}: y = x + 1 …"
    assert gist["run_notebook"]({"path": "a\u202e.ipynb"}) == "a\\u202e.ipynb"
    for describe in gist.values():
        assert describe is None or isinstance(describe({}), str)
