"""Whole turns in the open notebook: insert, run, edit, undo, conflict, mend, restart."""

from __future__ import annotations

import pytest

from tests.e2e.looking import in_theme, violations
from tests.e2e.test_approval import ASK, prepare, results, shown
from tests.loopback import stream, text_chunks, tool_chunks

BOTH = pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)


def next_turn(model, *calls, says="Done."):
    """Set what the model does in the next turn: these calls, one a request, and then text."""
    model.exchanges.clear()
    model.replies[:] = [stream(tool_chunks(call)) for call in calls]
    model.replies.append(stream(text_chunks(says)))


def type_into(notebook, index, text):
    """Write into a cell as its user does, without saving."""
    notebook.evaluate("m.cells[a[0]].setSource(a[1])", [index, text])


@BOTH
def test_insert_run_edit_and_undo(open_notebook, server, model):
    notebook = open_notebook(
        "# the user's cell",
        "%%hermes --approve all\nsquare it",
        "%%hermes --approve all\nrun it, then cube it",
        "%hermes diff",
        "%hermes undo",
    )
    prepare(notebook, model, ("insert_cell", {"source": "z = x ** 2\nprint('side effect')\nz"}))
    notebook.kernel("x = 12")
    type_into(notebook, 1, "# unsaved words of the user")
    notebook.run(2)
    assert notebook.sources()[2] == "z = x ** 2\nprint('side effect')\nz"
    made = notebook.ids()[2]
    next_turn(
        model,
        ("run_cell", {"id": made[:8]}),
        ("edit_cell", {"id": made[:8], "old": "x ** 2", "new": "x ** 3"}),
        ("run_cell", {"id": made[:8]}),
    )
    assert "Done." in shown(notebook.run(4))
    squared, _, cubed = results(model)[-3:]
    assert "144" in squared
    assert "1728" in cubed
    assert "side effect" in str(notebook.outputs(3))
    notebook.command("docmanager:save")
    notebook.until(lambda: len(notebook.saved().cells) == 7)
    saved = notebook.saved().cells
    assert saved[1].source == "# unsaved words of the user"
    assert saved[3].outputs[-1]["data"]["text/plain"] == "1728"
    assert saved[3].metadata["hermes"]["turn"] == 1
    diff = shown(notebook.run(5))
    assert "- z = x ** 2" in diff
    assert "+ z = x ** 3" in diff
    undone = shown(notebook.run(6))
    assert "is undone" in undone
    assert "`z` removed" in undone
    assert "Variables keep" not in undone
    assert notebook.sources()[2] == "z = x ** 2\nprint('side effect')\nz"
    assert notebook.sources()[0] == "# unsaved words of the user"
    assert notebook.value("['z' in globals(), x]") == [False, 12]
    notebook.shot(f"undone-{server.app}")


ODD = r"""
from IPython.display import HTML, display
print("\x1b[31mred\x1b[0m \ud800 alone\x00")
display(HTML("<b onclick='window.users=1'>bold</b><script>window.users=1</script>"))
display({"application/json": {"number": float("nan")}, "text/plain": "\udfff"}, raw=True)
float("nan")
"""


def test_odd_outputs_reach_the_cell_the_file_and_the_model(open_notebook, model):
    notebook = open_notebook(ODD, "%%hermes --approve all\nrun it")
    prepare(notebook, model, ("read_cells", {"ids": ["cell1"]}), ("run_cell", {"id": "cell1"}))
    assert "Done." in shown(notebook.run(2))
    told = results(model)[-1]
    assert "red \ufffd alone" in told
    assert "bold" in told
    assert "\nnan" in told
    kinds = [output["output_type"] for output in notebook.outputs(1)]
    assert kinds == ["stream", "display_data", "display_data", "execute_result"]
    notebook.command("docmanager:save")
    notebook.until(lambda: len(notebook.saved().cells[1].outputs) == 4)
    assert not notebook.page.query_selector(".jp-Dialog")


PLOT = """
import base64
from IPython.display import Image
Image(base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="))
"""


@pytest.mark.parametrize("name", ["gpt-4o", "gpt-3.5-turbo"])
def test_a_plot_is_a_picture_for_a_model_that_sees_and_a_note_for_others(
    open_notebook, model, name
):
    notebook = open_notebook(PLOT, "%%hermes --approve all\nlook at it")
    prepare(notebook, model, ("read_cells", {"ids": ["cell1"]}), ("run_cell", {"id": "cell1"}))
    notebook.kernel(f"os.environ['HERMES_NB_MODEL'] = {name!r}")
    notebook.run(2)
    sees = name == "gpt-4o"
    assert ("[image/png 1x1]" if sees else "[image/png 1x1, not shown]") in results(model)[-1]
    assert ("image_url" in str(model.bodies[-1]["messages"][-1])) is sees


def test_what_the_user_typed_meanwhile_is_not_overwritten(open_notebook, model):
    notebook = open_notebook(
        "y = 1", "%%hermes --approve all\nlook", "%%hermes --no-context --approve all\nchange it"
    )
    prepare(notebook, model, ("notebook_outline", {}))
    notebook.run(2)
    type_into(notebook, 1, "y = 1  # and a thought of mine")
    target = notebook.ids()[0]
    next_turn(model, ("edit_cell", {"id": target, "new": "y = 2"}))
    notebook.run(3)
    assert "has changed since you last read it" in results(model)[-1]
    assert "a thought of mine" in results(model)[-1]
    assert notebook.sources()[0] == "y = 1  # and a thought of mine"


def test_a_failed_cell_is_mended_and_run_again(open_notebook, model):
    notebook = open_notebook("total = 10 / 0", "%hermes fix")
    prepare(notebook, model)
    failed = notebook.ids()[0]
    notebook.run(1)
    next_turn(
        model,
        ("read_cells", {"ids": [failed]}),
        ("edit_cell", {"id": failed, "old": "10 / 0", "new": "10 / 4"}),
        ("run_cell", {"id": failed}),
    )
    notebook.start(2)
    for label in ("Keep", "Run once"):
        notebook.page.wait_for_selector(f".hermes-ask button:has-text('{label}')", timeout=60_000)
        notebook.shot(f"fix-{label.split()[0].lower()}")
        notebook.page.click(f".hermes-ask button:has-text('{label}')")
    notebook.finish(2)
    prompt = model.bodies[0]["messages"][-1]["content"]
    assert "ZeroDivisionError" in prompt
    assert failed in prompt
    assert notebook.sources()[0] == "total = 10 / 4"
    assert notebook.value("total") == 2.5


def test_a_cell_is_named_whose_error_is_not_the_last_one(open_notebook, model):
    notebook = open_notebook("total = 10 / 0", "unknown", "...")
    prepare(notebook, model)
    notebook.run(1)
    notebook.run(2)
    named = notebook.ids()[0]
    type_into(notebook, 3, f"%hermes explain --cell {named} In French.")
    next_turn(model)
    notebook.run(3)
    prompt = model.bodies[-1]["messages"][-1]["content"]
    assert f"Cell {named}:" in prompt
    assert "ZeroDivisionError" in prompt
    assert "In French." in prompt


def test_a_restarted_kernel_goes_on_with_the_conversation(open_notebook, model):
    notebook = open_notebook("%%hermes\nmy colour is blue", "%%hermes\nwhat is my colour?")
    prepare(notebook, model)
    notebook.run(1)
    notebook.evaluate("nb.sessionContext.restartKernel()")
    notebook.ready()
    prepare(notebook, model)
    assert "Resumed" in shown(notebook.run(2))
    roles = [message["role"] for message in model.bodies[-1]["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


@BOTH
def test_a_failed_cell_is_mended_in_two_clicks(open_notebook, server, model):
    notebook = open_notebook("total = 10 / 0", "print('below')")
    page, failed = notebook.page, notebook.ids()[0]
    prepare(notebook, model)
    notebook.run(1)
    bar = page.get_by_label("This cell failed")
    bar.wait_for()
    for theme in ("dark", "light"):
        in_theme(notebook, theme)
        assert violations(bar) == []
        notebook.shot(f"failed-{server.app}-{theme}")
    page.evaluate("document.querySelector('.hermes-cap button').click()")  # no hand's
    assert len(notebook.sources()) == 2
    edit = {"id": failed, "old": "10 / 0", "new": "10 / 4"}
    next_turn(model, ("read_cells", {"ids": [failed]}), ("edit_cell", edit))
    number = notebook.evaluate("m.cells[1].execution_count")
    bar.get_by_text("Fix with Hermes").click()
    page.locator(ASK).get_by_role("button", name="Keep and run").click()
    notebook.until(lambda: notebook.sources()[0] == "total = 10 / 4")
    notebook.until(lambda: not bar.count())
    asked = model.bodies[0]["messages"][-1]["content"]
    assert f"Cell {failed}:" in asked and "ZeroDivisionError" in asked
    assert notebook.sources()[1] == f"%hermes fix --cell {number}"
    notebook.finish(2)
    assert notebook.value("total") == 2.5


@BOTH
def test_each_cell_that_runs_has_a_number_of_its_own(open_notebook, server, model):
    notebook = open_notebook("'one'", "'two'", "%%hermes --approve all\nrun them", "'three'")
    prepare(notebook, model)
    notebook.evaluate("nb.sessionContext.restartKernel()")
    notebook.ready()
    both = ["cell1", "cell2"]
    prepare(notebook, model, ("read_cells", {"ids": both}), ("run_cells", {"ids": both}))
    notebook.run(3)
    notebook.run(4)
    numbers = notebook.evaluate("m.cells.map(c => c.execution_count)")
    assert numbers == [1, 2, 3, 4, 5]
    shown = [notebook.outputs(at)[0] for at in (1, 2, 4)]
    assert [each["execution_count"] for each in shown] == [2, 3, 5]
    told = notebook.value("[In[2], In[3], 'run them' in In[4], In[5], Out[5]]")
    assert told == ["'one'", "'two'", True, "'three'", "three"]
