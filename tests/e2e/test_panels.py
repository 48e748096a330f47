"""The panel's life in a page: reloaded, hidden, closed, one for each notebook, below the cell."""

from __future__ import annotations

from tests.e2e.harness import write
from tests.e2e.looking import in_theme, untidy, violations
from tests.e2e.side import PANELS, Side
from tests.e2e.test_approval import shown
from tests.e2e.test_reload import reload_shown

NOTE = "Data lives in `data/`; raw files are never edited."


def test_a_reloaded_page_gets_it_back_and_one_that_was_hidden_stays_hidden(side):
    notebook = side.notebook
    side.fresh()
    side.ask("what is a penguin?")
    side.open("session")
    side.see("what is a penguin?")
    notebook.command("docmanager:save")
    notebook.page.reload()
    reload_shown(notebook)
    side.see("what is a penguin?")
    side.press("New session")
    side.said("The next turn starts a new session.")
    assert side.panel.count() == 1
    notebook.command("application:toggle-right-area")
    notebook.page.reload()
    reload_shown(notebook)
    notebook.page.wait_for_function(f"{PANELS}.length === 1")  # hidden, as it was
    assert not side.panel.is_visible()


def test_an_extension_that_is_unloaded_takes_it_along(side):
    side.fresh()
    side.open()
    side.notebook.kernel("%unload_ext hermes_nb")
    side.notebook.page.wait_for_function(f"{PANELS}.length === 0")


def test_each_notebook_has_a_panel_of_its_own_which_ends_with_its_kernel(open_notebook, model):
    notebook = open_notebook("%hermes panel", "x")
    side = Side(notebook, model)
    side.fresh(notes=(NOTE,))
    side.open("memory")
    side.see("raw files are never edited")
    write(notebook.server.root / "another.ipynb", ["%hermes panel"])
    first = notebook.name
    notebook.command("docmanager:open", path="another.ipynb")
    notebook.name = "another.ipynb"
    notebook.ready()
    side.fresh(notes=("Only in the other one.",))
    notebook.evaluate("m.cells[1].setSource('%hermes panel memory')")
    notebook.run(1)
    side.see("Only in the other one.")
    assert notebook.page.evaluate(f"{PANELS}.map(each => each.checkVisibility())") == [False, True]
    notebook.command("docmanager:open", path=first)
    side.see("raw files are never edited")  # it follows the current notebook
    side.gone("Only in the other one.")
    notebook.command("docmanager:open", path="another.ipynb")
    side.see("Only in the other one.")
    notebook.evaluate("nb.sessionContext.restartKernel()")
    notebook.page.wait_for_function(f"{PANELS}.length === 1")
    notebook.page.get_by_role("button", name="Start Hermes").wait_for()


def test_where_the_extension_is_missing_it_stands_below_the_cell_and_works(open_notebook, model):
    notebook = open_notebook("%hermes panel", "x", without="**/extensions/hermes-nb/**")
    side = Side(notebook, model, where=".jp-OutputArea-output")
    side.fresh(notes=(NOTE,))
    side.open()
    side.press("What is in this folder?")
    side.said("Write it into a cell")
    side.open("memory")
    side.see("raw files are never edited")
    assert "widget-view" in str(notebook.outputs(1))
    assert shown(notebook.outputs(1)) == ""
    side.press("forget", "raw files")
    side.said("Removed")
    assert "raw files" not in (side.home / "memories" / "MEMORY.md").read_text(encoding="utf-8")
    in_theme(notebook, "dark")
    side.tab("Skills")
    side.see("shipped")
    notebook.shot("looks-panel-below-dark")
    assert untidy(side.content, 500) == []
    assert violations(side.content) == []
