"""Edits in the cells they change: asked first or applied, in parts or many at once, by hand."""

from __future__ import annotations

from tests.e2e.harness import HELD, NOW
from tests.e2e.looking import in_theme, violations
from tests.e2e.test_approval import ASK, BOTH, prepare, results, shown
from tests.loopback import stream, tool_chunks

CAP = ".hermes-cap"
OLD = """\
import json
total = sum(df['kg'].astype(float))
print(total)
x = 1
y = 2
z = x + y
print(z)"""
NEW = """\
import json
total = sum(map(float, kg))
print(total)
x = 1
y = 2
z = x * y
print(z)
print('done')"""
STANDS = ".hermes-plus, .hermes-minus"


def edit(cell, new, **more):
    return "edit_cell", {"id": cell, "new": new, **more}


def source(notebook, index=1):
    return notebook.evaluate("m.cells[a].getSource()", index)


def select(notebook, index):
    """Go to a cell as a user does who is not typing."""
    notebook.evaluate(
        "(nb.content.activeCellIndex = a, nb.content.mode = 'command', nb.content.activate())",
        index,
    )
    # The focus comes a moment later, and keys go where it is.
    notebook.page.wait_for_function(f"document.activeElement === {NOW}.content.activeCell.node")


def suggested(notebook):
    notebook.page.wait_for_selector(CAP, timeout=60_000)
    return notebook.page.inner_text(CAP)


def capless(notebook):
    notebook.page.wait_for_function(f"!document.querySelector('{CAP}, {STANDS}')")


@BOTH
def test_a_suggestion_stands_over_the_old_text_until_it_is_kept(open_notebook, server, model):
    notebook = open_notebook(OLD, "%%hermes\nfix it")
    prepare(notebook, model, edit("cell1", NEW))
    notebook.start(2)
    assert "Hermes suggests 3 changes" in suggested(notebook)
    assert notebook.page.query_selector(ASK)
    notebook.shot(f"edit-suggested-{server.app}")
    # It is in no model: neither saved nor run, and no script says yes.
    assert source(notebook) == OLD
    notebook.page.evaluate(f"document.querySelectorAll('{CAP} button').forEach(b => b.click())")
    select(notebook, 1)
    notebook.command("hermes-nb:keep")
    notebook.command("docmanager:save")
    assert notebook.saved().cells[1].source == OLD
    assert suggested(notebook)
    select(notebook, 1)
    notebook.page.keyboard.press("Shift")  # another key than the one that it is bound to
    notebook.command("hermes-nb:keep")
    assert suggested(notebook)
    notebook.page.keyboard.press("y", delay=HELD)
    outputs = notebook.finish(2)
    notebook.until(lambda: source(notebook) == NEW, timeout=10)
    assert "allowed once" in shown(outputs)
    assert "edited cell" in results(model)[0]
    capless(notebook)
    assert not notebook.page.query_selector(ASK)
    select(notebook, 1)
    notebook.evaluate("nb.content.activeCell.editor.undo()")
    assert source(notebook) == OLD


@BOTH
def test_parts_are_decided_by_themselves_and_typing_moves_them(open_notebook, server, model):
    notebook = open_notebook(OLD, "%%hermes\nfix it")
    prepare(notebook, model, edit("cell1", NEW))
    notebook.start(2)
    suggested(notebook)
    notebook.evaluate("m.cells[1].updateSource(0, 0, '# mine\\n')")
    notebook.page.wait_for_timeout(100)
    notebook.page.focus(".hermes-hunk >> nth=0 >> button >> nth=0")
    notebook.page.keyboard.press("y", delay=HELD)
    notebook.page.wait_for_selector("text=1 of 3, kept")
    notebook.page.keyboard.press("n", delay=HELD)  # the next one has the focus now
    notebook.page.wait_for_function("document.querySelectorAll('.hermes-hunk').length === 2")
    assert source(notebook) == f"# mine\n{OLD}"
    notebook.shot(f"edit-parts-{server.app}")
    notebook.page.click(".hermes-hunk button:has-text('Keep')")
    notebook.finish(2)
    kept = f"# mine\n{NEW}".replace("z = x * y", "z = x + y")
    notebook.until(lambda: source(notebook) == kept, timeout=10)
    assert "the user kept only a part of it" in results(model)[0]
    select(notebook, 1)
    notebook.evaluate("nb.content.activeCell.editor.undo()")
    assert source(notebook) == f"# mine\n{OLD}"
    capless(notebook)


@BOTH
def test_what_was_applied_is_taken_back_with_one_key(open_notebook, server, model):
    notebook = open_notebook(OLD, "y = 1", "# one", "%%hermes --approve all\nfix it", own=True)
    prepare(
        notebook, model, edit("cell1", NEW), edit("cell2", "y = 2"), edit("cell3", "# two\n# three")
    )
    notebook.run(4)
    assert [source(notebook, n) for n in (1, 2, 3)] == [NEW, "y = 2", "# two\n# three"]
    assert notebook.page.locator(CAP).count() == 3
    assert "Hermes made 3 changes" in suggested(notebook)
    notebook.page.add_style_tag(content="body{overflow:visible}")
    for theme in ("dark", "light"):
        in_theme(notebook, theme)
        for part in (CAP, ".hermes-hunk", ".hermes-block", ".cm-line .hermes-word"):
            assert violations(notebook.page.locator(part).first) == []
        notebook.shot(f"edit-applied-{server.app}-{theme}")
    select(notebook, 1)
    notebook.page.keyboard.press("]", delay=HELD)
    notebook.page.wait_for_function("document.activeElement.closest('.hermes-ui')")
    notebook.page.keyboard.press("Escape", delay=HELD)
    notebook.page.wait_for_function(f"document.activeElement === {NOW}.content.widgets[1].node")
    notebook.page.keyboard.press("n", delay=HELD)
    notebook.until(lambda: source(notebook) == OLD, timeout=10)
    notebook.page.wait_for_function(f"document.querySelectorAll('{CAP}').length === 2")
    notebook.evaluate("nb.content.activeCell.editor.undo()")  # of one step
    assert source(notebook) == NEW
    # What is open survives a reload, if the notebook was saved with it.
    notebook.command("docmanager:save")
    assert ".hermes" not in str(notebook.saved())
    notebook.page.reload()
    notebook.ready()
    notebook.page.wait_for_function(f"document.querySelectorAll('{CAP}').length === 2")
    notebook.page.click(f"{CAP} button:has-text('Undo all 2')")
    notebook.until(lambda: source(notebook, 2) == "y = 1")
    assert source(notebook, 3) == "# one"
    capless(notebook)


@BOTH
def test_edits_of_one_reply_are_kept_together_or_decided_one_by_one(open_notebook, server, model):
    notebook = open_notebook("a = 1", "b = 1", "c = 1", "%%hermes\nrename them")
    model.replies[:] = []
    prepare(notebook, model)
    edits = [edit(f"cell{n}", f"{name} = 2") for n, name in enumerate("abc", 1)]
    done = model.replies[-1]
    model.replies[:] = [stream(tool_chunks(*edits)), done]
    notebook.start(4)
    notebook.page.wait_for_selector(f"{ASK} button:has-text('Keep all 3')", timeout=60_000)
    assert notebook.page.locator(CAP).count() == 3
    notebook.shot(f"edits-together-{server.app}")
    notebook.page.click(f"{ASK} button:has-text('Keep all 3')")
    notebook.finish(4)
    assert [source(notebook, n) for n in (1, 2, 3)] == ["a = 2", "b = 2", "c = 2"]
    capless(notebook)
    model.exchanges.clear()
    edits = [edit(f"cell{n}", f"{name} = 3") for n, name in enumerate("abc", 1)]
    model.replies[:] = [stream(tool_chunks(*edits)), done]
    notebook.start(4)
    notebook.page.wait_for_selector(ASK, timeout=60_000)
    for label in ("Reject", "Keep", "Reject"):
        notebook.page.locator(f"{CAP} button:has-text('{label}')").first.click()
    notebook.finish(4)
    assert [source(notebook, n) for n in (1, 2, 3)] == ["a = 2", "b = 3", "c = 2"]
    assert sum("the user declined" in each for each in results(model)) == 2
    capless(notebook)


def test_the_box_answers_too_and_a_kernel_that_ends_leaves_its_suggestion(open_notebook, model):
    notebook = open_notebook("mine = 1", "y = 1", "%%hermes\nclean up")
    prepare(notebook, model, ("delete_cell", {"id": "cell1"}), edit("cell2", "y = 2"))
    notebook.start(3)
    assert "Hermes wants to delete this cell" in suggested(notebook)
    notebook.page.click(f"{CAP} button:has-text('Reject')")
    notebook.page.wait_for_selector(f"{CAP} >> text=Hermes suggests a change")
    assert source(notebook, 1) == "mine = 1"
    notebook.page.click(f"{ASK} button:has-text('Keep')")
    notebook.finish(3)
    assert source(notebook, 2) == "y = 2"
    capless(notebook)
    model.exchanges.clear()
    prepare(notebook, model, edit("cell2", "y = 3"))
    notebook.start(3)
    suggested(notebook)
    notebook.page.reload()
    notebook.page.wait_for_selector(ASK)  # the kernel asks again
    suggested(notebook)
    notebook.evaluate("void nb.sessionContext.session.kernel.restart()")
    notebook.page.wait_for_selector(f"{CAP} >> text=the turn is over")
    notebook.page.wait_for_selector(ASK, state="detached")
    notebook.page.click(f"{CAP} button:has-text('Keep')")
    notebook.until(lambda: source(notebook, 2) == "y = 3")
    capless(notebook)
    notebook.ready()


@BOTH
def test_keep_and_run_runs_the_cell_once_and_the_model_reads_what_came_out(
    open_notebook, server, model
):
    notebook = open_notebook("runs = 0", "runs += 1\nrint(runs)", "%%hermes\nfix it")
    notebook.run(1)
    read = "read_cells", {"ids": ["cell2"]}
    mended, broken = (
        edit("cell2", "print(runs)", old="rint(runs)"),
        edit("cell2", "runs / 0", old="print(runs)"),
    )
    prepare(notebook, model, read, mended, broken)
    notebook.start(3)
    for more in ("print", "/ 0"):
        notebook.page.wait_for_selector(f"{CAP} >> text=Hermes suggests a change", timeout=60_000)
        notebook.page.wait_for_selector(f".hermes-plus >> text={more}")
        notebook.page.click(f"{CAP} button:has-text('Keep and run')")
        capless(notebook)
    notebook.finish(3)
    assert notebook.value("runs") == 2
    assert notebook.outputs(2)[0]["ename"] == "ZeroDivisionError"
    first, second = results(model)[1:]
    assert "edited cell" in first and "The user kept it and ran it:\ncell cell2" in first
    assert first.endswith("\n1")
    assert "edited cell" in second and "ZeroDivisionError" in second
