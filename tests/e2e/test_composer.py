"""The field for prompts at the foot of the panel, used as its user does: by clicks and by keys."""

from __future__ import annotations

from tests.e2e.looking import THEMES, in_theme, untidy, violations
from tests.e2e.side import BOTH
from tests.e2e.test_approval import prepare, shown

COMPOSER = ".hermes-composer"
LONG = "Plot the yield per week of @df, one line per plot, and compare it. " * 30
SCRIPT = """() => {
  document.querySelector('.hermes-composer button').click();
  const keys = { key: 'Enter', ctrlKey: true, bubbles: true };
  document.querySelector('.hermes-composer textarea').dispatchEvent(
    new KeyboardEvent('keydown', keys));
}"""


@BOTH
def test_what_is_asked_in_the_panel_is_a_cell_behind_the_selected_one(side):
    notebook, page = side.notebook, side.notebook.page
    side.fresh()
    side.open()
    field, before = side.field("Ask Hermes"), notebook.sources()
    notebook.evaluate("(nb.content.activeCellIndex = 1)")
    field.click()
    page.keyboard.type("how many?\nin all")
    page.evaluate(SCRIPT)  # no hand's
    page.wait_for_timeout(500)
    assert notebook.sources() == before
    side.plays("Twelve.", "Ten.")
    side.keys("Escape", "Control+Enter")
    notebook.until(lambda: "Twelve." in shown(notebook.outputs(2)))
    assert notebook.sources() == [before[0], "%%hermes\nhow many?\nin all", *before[1:]]
    assert field.input_value() == ""
    side.press("Ask")  # nothing is asked where nothing is written
    field.fill("and now?")
    side.open()  # the panel is made anew
    assert field.input_value() == "and now?"
    side.press("Ask")
    notebook.until(lambda: "Ten." in str(notebook.evaluate("m.cells.map(c => c.toJSON())")))
    assert len(notebook.sources()) == len(before) + 2
    field.fill(LONG)
    for theme in THEMES:
        in_theme(notebook, theme)
        notebook.shot(f"looks-composer-{theme}-{notebook.server.app}")
        assert violations(page.locator(COMPOSER)) == []
        assert untidy(page.locator(COMPOSER), 240) == []
    in_theme(notebook, "light")
    field.fill("")
    made = "m.cells.filter(c => /how many|and now/.test(c.getSource()))"
    notebook.evaluate(f"{made}.forEach(c => m.deleteCell(m.cells.indexOf(c)))")


@BOTH
def test_ask_about_a_cell_opens_the_panel_and_names_it_by_keys_alone(open_notebook, server, model):
    notebook = open_notebook("x = 41", {"cell_type": "markdown", "source": "# Data", "id": "head"})
    page = notebook.page
    prepare(notebook, model)
    notebook.run(1)
    number = notebook.evaluate("m.cells[1].execution_count")
    notebook.evaluate("(nb.content.activeCellIndex = 1)")
    notebook.command("hermes-nb:about")  # no hand's
    page.wait_for_timeout(500)
    assert not page.locator(COMPOSER).count()
    notebook.evaluate("nb.content.activate()")
    page.keyboard.press("Control+Alt+Enter")
    field = page.get_by_label("Ask Hermes")
    notebook.until(lambda: field.count() and field.input_value() == f"@cell:{number} ")
    assert field.evaluate("e => e === document.activeElement")
    assert not page.locator(".jp-Toast, .Toastify__toast").count()  # there is nothing to say
    page.keyboard.type("what is it?")
    page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    notebook.until(lambda: "Done." in shown(notebook.outputs(2)))
    assert "x = 41" in str(model.bodies[-1]["messages"][-1]["content"])
    page.locator(".jp-MarkdownCell").click(button="right")
    page.get_by_role("menuitem", name="Ask about this cell…").click()
    notebook.until(lambda: field.input_value() == "@cell:head ")
    notebook.shot(f"composer-about-{server.app}")
