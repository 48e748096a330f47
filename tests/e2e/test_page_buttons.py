"""Row 88: what a page shows is no button of ours, whatever it looks like and whoever clicks it.

JupyterLab runs any command that a link or a button in Markdown or in an output names. So commands
that decide something look at where the user's hand was.
"""

from __future__ import annotations

import json

from tests.e2e.harness import HELD
from tests.e2e.test_approval import asked, prepare, results, shown

DECIDING = ("keep", "undo", "keep-and-run", "yes", "no", "fix", "explain", "about")
LIKE_A_MENU = (
    'id="command-palette" class="lm-Widget lm-Menu jp-ModalCommandPalette lm-CommandPalette"'
)


def link(tag, command, **given):
    """Return an element that JupyterLab's command linker makes a button for a command."""
    arguments = f" data-commandlinker-args='{json.dumps(given)}'" if given else ""
    linked = f'data-commandlinker-command="hermes-nb:{command}"{arguments}'
    return f'<{tag} tabindex="0" class="jp-Cell hermes-undecided" {linked}>{command}</{tag}>'


def page(tag):
    links = [link(tag, name) for name in DECIDING]
    links += [link(tag, "option", name="approve", value="all")]
    return f"<div {LIKE_A_MENU}>{' '.join(links)}</div>"


def links_in(notebook, index):
    """Return the links and buttons that a cell shows."""
    cell = notebook.page.locator(".jp-Notebook-cell").nth(index)
    found = cell.locator(".jp-RenderedHTMLCommon :is(a, button)")
    return [found.nth(n) for n in range(found.count())]


def same(notebook, cells):
    """Assert that nothing was decided: the question is open, and each cell is as it was."""
    notebook.page.wait_for_timeout(150)
    assert asked(notebook)
    assert notebook.page.locator(".hermes-cap .hermes-first").count() == 1
    assert notebook.sources() == cells


ACTIVATE = "nb.content.activeCellIndex = a"
SCRIPT = """names => { for (const name of names) {
  const { commands } = window.jupyterapp;
  void commands.execute(`hermes-nb:${name}`);
  void commands.execute('hermes-nb:option', { name: 'approve', value: 'all' });
} }"""
SYNTHETIC = """() => { for (const key of ['y', 'n'])
  for (const type of ['keydown', 'keyup'])
    for (const at of document.querySelectorAll('.hermes-ui, .hermes-ui *, .jp-Cell'))
      at.dispatchEvent(new KeyboardEvent(type, { key, code: `Key${key.toUpperCase()}`,
        keyCode: key.toUpperCase().charCodeAt(0), bubbles: true })); }"""
LISTENS = (
    """names => { for (const each of document.querySelectorAll('.jp-RenderedHTMLCommon'))
  for (const type of ['click', 'mouseup', 'keydown', 'keyup'])
    each.addEventListener(type, () => ("""
    + SCRIPT
    + """)(names)); }"""
)


def test_88_a_pages_own_button_link_or_script_decides_nothing(open_notebook, model):
    code = f"from IPython.display import HTML\nHTML('''{page('button')}''')"
    notebook = open_notebook(
        "y = 1",
        "%%hermes\nclean up",
        {"cell_type": "markdown", "source": page("a")},
        code,
        "1 / 0",
        own=True,
    )
    prepare(notebook, model, ("edit_cell", {"id": "cell1", "new": "y = 2"}))
    notebook.run(4)
    notebook.run(5)
    notebook.start(2)
    notebook.page.wait_for_selector(".hermes-cap .hermes-first")
    cells = notebook.sources()
    number = 0
    for index in (3, 4):
        for each in links_in(notebook, index):
            for active in (1, 2, 5):
                notebook.evaluate(ACTIVATE, active)
                each.click(delay=20)
                number += 1
            for key in ("y", "n", "Enter"):
                each.focus()
                notebook.evaluate(ACTIVATE, 1)
                if each.evaluate("each => each === document.activeElement"):
                    notebook.page.keyboard.press(key, delay=HELD)
                    number += 1
            same(notebook, cells)
    assert number >= 5 * len(DECIDING)
    names = [*DECIDING]
    notebook.evaluate(ACTIVATE, 1)
    notebook.page.evaluate(SCRIPT, names)
    notebook.page.evaluate(SYNTHETIC)
    same(notebook, cells)
    notebook.page.evaluate(LISTENS, names)
    for index in (3, 4):
        links_in(notebook, index)[0].click()
        notebook.page.keyboard.press("y", delay=HELD)
    same(notebook, cells)
    assert len(model.exchanges) == 1
    by_the_palette(notebook)
    assert "Done." in shown(notebook.finish(2))
    assert notebook.sources()[0] == "y = 2"
    assert len(results(model)) == 1


def by_the_palette(notebook):
    """Keep all changes as people do who know no key for it."""
    notebook.evaluate(ACTIVATE, 1)
    notebook.command("apputils:activate-command-palette")
    palette = notebook.page.locator(".jp-ModalCommandPalette input")
    palette.fill("Keep All Changes")
    notebook.page.locator(".lm-CommandPalette-item:has-text('Keep All Changes')").first.wait_for()
    palette.press("Enter", delay=HELD)
