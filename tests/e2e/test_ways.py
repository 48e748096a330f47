"""Ways to Hermes: launcher, side bar, toolbar and palette, also where it is not loaded."""

from __future__ import annotations

import pytest

from tests.e2e.harness import PATIENCE, TOKEN
from tests.e2e.looking import THEMES, in_theme, untidy, violations
from tests.e2e.side import BOTH
from tests.e2e.test_composer import ANSWERS, COMPOSER
from tests.loopback import stream, text_chunks

SIDE = ".hermes-nb-side"
WIDTHS = (320, 360, 900)
COUNT = """() => { window.clicks = 0;
  addEventListener('click', event => { window.clicks += event.isTrusted; }, true); }"""
MISSING = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == "hermes_nb":
            raise ModuleNotFoundError("No module named 'hermes_nb'", name=name)
sys.meta_path.insert(0, Missing())
"""
TABLES = """
import pandas
df = pandas.DataFrame({"mass": [1, 2]})
"""


@pytest.fixture
def configured(server, model):
    """The model that every new kernel of the server talks to."""
    config = server.folder / "home" / "config.yaml"
    config.write_text(f"model:\n  base_url: {model.url}\n", encoding="utf-8")
    model.replies[:] = [stream(text_chunks("There are **two** files."))]
    yield model
    config.unlink()


@pytest.fixture
def empty_lab(lab, browser, open_notebook):
    """JupyterLab with nothing open."""
    notebook = open_notebook("x = 1", own=True)
    page = notebook.page
    page.goto(f"{lab.url}/lab?token={TOKEN}&reset")
    page.locator(".jp-LauncherCard").first.wait_for(timeout=PATIENCE)
    return notebook


def palette(notebook, label):
    """Choose a command as people do who know no key for it."""
    notebook.command("apputils:activate-command-palette")
    field = notebook.page.locator(".jp-ModalCommandPalette input")
    field.fill(f"Hermes {label}")
    item = notebook.page.locator(f".lm-CommandPalette-item:has-text('{label}')").first
    item.wait_for()
    item.click()


def fine(notebook, what, panel=".hermes-start"):
    """What is at the side fits, and can be read in both themes."""
    for theme in THEMES:
        in_theme(notebook, theme)
        notebook.shot(f"ways-{what}-{theme}-{notebook.server.app}")
        assert violations(notebook.page.locator(SIDE)) == [], f"{what} in {theme}"
        for width in WIDTHS:
            assert untidy(notebook.page.locator(panel), width) == [], f"{what} at {width}"
    in_theme(notebook, "light")


def test_from_an_empty_lab_to_an_answer_are_three_clicks_and_no_magic(empty_lab, configured):
    notebook, page = empty_lab, empty_lab.page
    page.evaluate(COUNT)
    page.locator(".jp-LauncherCard", has_text="Hermes").click()
    example = page.locator(".hermes-example").first
    example.wait_for(timeout=PATIENCE)
    card = page.locator(".hermes-card")
    assert "loopback-model" in card.inner_text() and "asks you before" in card.inner_text()
    example.click()
    prompt = page.get_by_label("Ask Hermes")
    assert prompt.input_value() == example.inner_text()
    page.locator(f"{COMPOSER} button", has_text="Ask").last.click()
    page.locator(f"{ANSWERS} strong", has_text="two").wait_for(timeout=PATIENCE)
    assert page.evaluate("window.clicks") <= 3
    assert "hermes" not in str(notebook.evaluate("m.cells.map(c => c.getSource())"))
    notebook.until(lambda: not card.is_visible())  # the conversation has the room
    fine(notebook, "answer", ".hermes-panel")


def test_the_side_bar_has_an_icon_and_starts_a_notebook_by_keys(empty_lab, configured):
    notebook, page = empty_lab, empty_lab.page
    page.locator(".jp-SideBar.jp-mod-right [data-id='hermes-nb']").click()
    go = page.locator(SIDE).get_by_role("button", name="New notebook")
    go.wait_for()
    fine(notebook, "no-notebook")
    go.focus()
    page.keyboard.press("Enter")
    page.locator(".hermes-example").first.wait_for(timeout=PATIENCE)
    prompt = page.get_by_label("Ask Hermes")
    notebook.until(lambda: prompt.evaluate("e => e === document.activeElement"))
    page.keyboard.type("which files?")
    page.keyboard.press("Control+Enter")
    page.locator(f"{ANSWERS} strong", has_text="two").wait_for(timeout=PATIENCE)


def test_the_palette_offers_hermes_without_a_notebook(empty_lab, configured):
    notebook, page = empty_lab, empty_lab.page
    palette(notebook, "Help")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("%hermes doctor").wait_for()
    assert violations(dialog) == []
    page.keyboard.press("Escape")
    palette(notebook, "Approval mode…")  # there is no kernel: the panel says what to do
    page.locator(SIDE).get_by_role("button", name="New notebook").wait_for()
    palette(notebook, "New prompt cell")
    notebook.page.wait_for_function(
        "window.jupyterapp.shell.currentWidget?.content?.model?.sharedModel?.cells?.some("
        "c => c.getSource() === '%%hermes\\n')",
        timeout=PATIENCE,
    )
    page.keyboard.type("which files?", delay=30)
    page.keyboard.press("Control+Enter")
    page.locator(".jp-Cell strong", has_text="two").wait_for(timeout=PATIENCE)
    palette(notebook, "Approval mode…")
    dialog.get_by_role("combobox").select_option("never")
    page.keyboard.press("Enter")
    page.get_by_text("Approvals: never").first.wait_for()


@BOTH
def test_the_toolbars_button_opens_it_and_prompts_are_about_what_is_there(
    open_notebook, server, configured
):
    notebook = open_notebook(TABLES, own=True)
    page = notebook.page
    page.locator(".jp-NotebookPanel-toolbar [data-jp-item-name='hermes']").click()
    examples = page.locator(".hermes-example")
    examples.first.wait_for(timeout=PATIENCE)
    assert "@" not in str(examples.all_inner_texts())
    notebook.run(1)
    notebook.until(lambda: examples.first.inner_text() == "What is in @df?")
    assert examples.count() == 3
    fine(notebook, "card", ".hermes-panel")
    page.get_by_label("Ask Hermes").focus()
    page.keyboard.press("Shift+Tab")
    assert page.evaluate("document.activeElement.textContent") == examples.last.inner_text()
    page.keyboard.press("Enter")
    assert page.get_by_label("Ask Hermes").input_value() == examples.last.inner_text()
    page.keyboard.press("Control+Enter")
    page.locator(f"{ANSWERS} strong", has_text="two").wait_for(timeout=PATIENCE)
    assert configured.bodies[-1]["messages"][-1]["content"]


def test_the_panel_says_why_hermes_does_not_start(open_notebook, configured):
    notebook = open_notebook("import time\ntime.sleep(600)", own=True)
    page = notebook.page
    notebook.kernel(MISSING)
    palette(notebook, "Open panel")
    go = page.locator(SIDE).get_by_role("button", name="Start Hermes")
    go.click()
    page.locator(SIDE).get_by_role("alert").get_by_text("%pip install hermes-nb").wait_for()
    fine(notebook, "missing")
    notebook.kernel("sys.meta_path.pop(0)")
    notebook.start(1)
    go.click()
    page.locator(SIDE).get_by_role("status").get_by_text("A cell is running.").wait_for()
    assert page.locator(SIDE).get_by_role("button", name="Starting…").is_disabled()
    fine(notebook, "busy")
    notebook.command("notebook:interrupt-kernel")
    page.locator(".hermes-example").first.wait_for(timeout=PATIENCE)
