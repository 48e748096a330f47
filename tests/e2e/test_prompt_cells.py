"""Cells that begin with `%%hermes`: Markdown to look at, Python in the file, TAB at any time."""

from __future__ import annotations

import re

from tests.e2e.looking import in_theme
from tests.e2e.older import install
from tests.e2e.test_approval import BOTH

BODY = "# Compare\nfor the **two** gauges, see `tide` and import the rest"
SHOWN = ".jp-Completer:not(.lm-mod-hidden)"


def classes(notebook, index, word):
    """Return how a word in a cell's editor is drawn: weight and colour."""
    return notebook.page.evaluate(
        """([index, word]) => {
        const cell = document.querySelectorAll('.jp-Notebook .jp-Cell')[index];
        const walk = document.createTreeWalker(cell.querySelector('.cm-content'), 4);
        while (walk.nextNode()) {
          if (!walk.currentNode.data.includes(word)) continue;
          const { fontWeight, color } = getComputedStyle(walk.currentNode.parentElement);
          return [fontWeight, color];
        }
        return null; }""",
        [index, word],
    )


def wraps(notebook, index):
    return notebook.evaluate("nb.content.widgets[a].editor.editor.lineWrapping", index)


def at_the_end(notebook, index, text):
    """Give a cell this source and put the cursor behind it."""
    notebook.evaluate(
        """(nb.content.activeCellIndex = a[0], nb.content.deselectAll(),
        nb.content.mode = 'edit', m.cells[a[0]].setSource(a[1]))""",
        [index, text],
    )
    notebook.page.wait_for_function("document.activeElement?.closest('.jp-mod-active .cm-content')")
    notebook.page.keyboard.press("Control+End")


def source(notebook, index):
    return notebook.evaluate("m.cells[a].getSource()", index)


def offered(notebook):
    """Press TAB and return what is offered."""
    notebook.page.keyboard.press("Tab")
    notebook.page.wait_for_selector(f"{SHOWN} .jp-Completer-item", timeout=10_000)
    words = notebook.page.locator(f"{SHOWN} .jp-Completer-match").all_inner_texts()
    notebook.page.keyboard.press("Escape")
    notebook.page.wait_for_selector(SHOWN, state="hidden")
    return words


@BOTH
def test_the_menu_of_a_prompt_writes_its_options(open_notebook):
    notebook = open_notebook(f"%%hermes --approve edits\n{BODY}", BODY)
    page = notebook.page
    page.wait_for_selector(".hermes-prompt")
    at, cells = {"x": 300, "y": 30}, page.locator(".jp-Notebook .jp-Cell")
    menu = page.locator(".lm-Menu-item", has_text="Mode of This Prompt")
    for value in ("all", "never"):  # though another cell is the active one; a step of undo each
        assert notebook.evaluate("nb.content.activeCellIndex") == 0
        cells.nth(1).click(button="right", position=at)
        menu.hover()
        page.locator(".lm-Menu-item", has_text=re.compile(f"^{value}$")).click()
        assert source(notebook, 1) == f"%%hermes --approve {value}\n{BODY}"
    for _ in range(2):
        notebook.evaluate("nb.content.widgets[1].editor.undo()")
    assert source(notebook, 1) == f"%%hermes --approve edits\n{BODY}"
    cells.nth(2).click(button="right", position=at)
    page.locator(".lm-Menu-item", has_text="Explain this cell").wait_for()
    assert not menu.is_visible()
    page.locator(".lm-Menu-item", has_text="Explain this cell").click()
    notebook.until(lambda: source(notebook, 3).startswith("%hermes explain --cell"))
    assert source(notebook, 3).split()[-1] == notebook.evaluate("m.cells[2].id")


@BOTH
def test_a_prompt_is_shown_as_markdown_and_stays_python(open_notebook, server):
    notebook = open_notebook(f"%%hermes --approve edits\n{BODY}", BODY, "%hermes **import** this")
    page = notebook.page
    page.wait_for_selector(".jp-Notebook .cm-content")
    in_theme(notebook, "light")  # whatever somebody before has chosen
    bold, plain = classes(notebook, 1, "two"), classes(notebook, 1, "for the")
    assert bold[0] == "700" and plain[0] == "400"
    assert classes(notebook, 1, "rest") == plain
    assert wraps(notebook, 1)
    assert classes(notebook, 1, "%%hermes")[1] != plain[1]
    # The same words in a cell of code.
    assert classes(notebook, 2, "for")[0] == "700"
    assert not wraps(notebook, 2)
    # In a prompt of one line the magic looks like the rest.
    assert wraps(notebook, 3)
    assert classes(notebook, 3, "import") == bold and classes(notebook, 3, "%hermes") == plain
    for theme in ("dark", "light"):
        in_theme(notebook, theme)
        notebook.shot(f"prompt-cells-{server.app}-{theme}")
    # The magic goes and comes back as it is typed, undone and typed again.
    page.click(".jp-Notebook .jp-Cell >> nth=1 >> .cm-line >> nth=0")
    page.keyboard.press("Control+Home")
    page.keyboard.press("Delete")
    page.wait_for_function(
        "!document.querySelectorAll('.jp-Cell')[1].querySelector('.cm-lineWrapping')"
    )
    assert classes(notebook, 1, "for")[0] == "700"
    page.keyboard.type("%")
    page.wait_for_selector(".jp-Cell >> nth=1 >> .cm-lineWrapping")
    assert classes(notebook, 1, "two") == bold
    notebook.command("docmanager:save")
    assert notebook.evaluate("nb.content.widgets[1].model.mimeType") == "text/x-ipython"
    saved = notebook.saved()
    assert [cell.cell_type for cell in saved.cells] == ["code"] * 4
    assert saved.cells[1].source == f"%%hermes --approve edits\n{BODY}"
    assert not saved.cells[1].metadata
    assert not [line for line in notebook.log if "hermes" in line]


NAMES = "tide_table = [1]\n%load_ext hermes_nb"


@BOTH
def test_tab_completes_a_prompt_while_the_kernel_is_idle_and_busy(open_notebook, server):
    notebook = open_notebook("%%hermes", "import time; time.sleep(600)")
    notebook.kernel(NAMES)
    for state in ("idle", "busy"):
        if state == "busy":
            notebook.start(2)
        for typed, expected in (
            ("%%hermes\ncompare @ti", "@tide_table"),
            ("%%hermes\nsee @", "@tide_table"),
            ("%%hermes\nsee @cell:", "@cell:1"),
            ("%%hermes --approve ", "edits"),
            ("%%hermes\nthere are $`len(ti", "tide_table"),
        ):
            at_the_end(notebook, 1, typed)
            words = offered(notebook)
            assert expected in words and not {"import", "print"} & set(words)
        notebook.page.keyboard.press("Tab")
        notebook.page.wait_for_selector(f"{SHOWN} .jp-Completer-item")
        notebook.page.keyboard.press("Tab")  # the only one
        notebook.until(lambda: source(notebook, 1).endswith("$`len(tide_table"), timeout=10)
    # JupyterLab 4.4 takes the answer of a subshell for the kernel's rest.
    assert notebook.evaluate("m.cells[2].executionState") == "running"
    notebook.command("notebook:interrupt-kernel")
    notebook.finish(2)
    assert not [line for line in notebook.log if "hermes-nb" in line]


def test_an_older_kernel_completes_a_prompt_while_it_is_busy(open_notebook, server):
    notebook = open_notebook("%%hermes", "import time; time.sleep(600)", kernel=install(server))
    notebook.kernel(NAMES)
    notebook.start(2)
    at_the_end(notebook, 1, "%%hermes\n😀 see @")
    assert {"@tide_table", "@error", "@file:"} <= set(offered(notebook))
    # The question was none that an application takes for work: JupyterLab 4.4 does.
    assert notebook.evaluate("nb.sessionContext.session.kernel.status") == "busy"
    notebook.command("notebook:interrupt-kernel")
    notebook.finish(2)


def test_an_address_and_a_kernel_without_hermes_offer_nothing_of_ours(open_notebook):
    notebook = open_notebook("%%hermes")
    for load in ("", NAMES):
        if load:
            notebook.kernel(load)
        for typed in ("%%hermes\nmail anna@fi", "%%hermes\n```\n@fi"):
            at_the_end(notebook, 1, typed)
            notebook.page.keyboard.press("Tab")
            notebook.page.wait_for_timeout(700)
            words = notebook.page.locator(f"{SHOWN} .jp-Completer-match").all_inner_texts()
            assert not [word for word in words if word.startswith("@")]
            assert "@file" not in source(notebook, 1)
            notebook.page.keyboard.press("Escape")
