"""Asking with buttons, in both applications: by click and by keys, with a reason, and a stop."""

from __future__ import annotations

import time

import pytest

from tests.e2e.harness import HELD
from tests.e2e.looking import in_theme
from tests.loopback import stream, text_chunks, tool_chunks
from tests.patience import STOPS_WITHIN

BOTH = pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)
ASK = ".hermes-ask"
HOSTILE = "<img src=x onerror='window.obeyed=1'></div><b>&amp;"


def prepare(notebook, provider, *calls):
    """Load hermes with a model that makes these calls, one a request, and then says Done."""
    provider.replies[:] = [stream(tool_chunks(call)) for call in calls]
    provider.replies.append(stream(text_chunks("Done.")))
    notebook.kernel(
        f"import os; os.environ['HERMES_NB_BASE_URL'] = {provider.url!r}\n%load_ext hermes_nb"
    )


def terminal(command):
    return "terminal", {"command": command}


def python(code):
    return "run_python", {"code": code}


def results(provider):
    messages = provider.bodies[-1]["messages"]
    return [message["content"] for message in messages if message["role"] == "tool"]


def shown(outputs):
    return "\n".join(output.get("data", {}).get("text/markdown", "") for output in outputs)


def asked(notebook):
    """Wait for the box and return the text of what it asks about."""
    notebook.page.wait_for_selector(f"{ASK} button", timeout=60_000)
    return notebook.page.inner_text(f"{ASK} .hermes-code")


def click(notebook, label):
    notebook.page.click(f"{ASK} button:has-text('{label}')")


@BOTH
def test_a_click_allows_once_and_always_is_remembered(open_notebook, server, model):
    notebook = open_notebook("%%hermes\nclean up")
    clean = terminal("rm -rf build; echo cleaned")
    prepare(notebook, model, clean, clean, clean)
    notebook.start(1)
    assert asked(notebook) == "rm -rf build; echo cleaned"
    notebook.shot(f"approval-command-{server.app}")
    # What some cell's output might try: a click that is not the user's.
    script = f"document.querySelectorAll('{ASK} button').forEach(button => button.click())"
    notebook.page.evaluate(script)
    notebook.page.wait_for_timeout(300)
    assert asked(notebook)
    assert not results(model)
    notebook.page.evaluate(f"document.querySelector('{ASK}').dataset.first = 'yes'")
    click(notebook, "Run once")
    notebook.page.wait_for_selector("text=allowed once")
    notebook.page.wait_for_selector(f"{ASK}[data-first]", state="detached")
    asked(notebook)  # once is once
    click(notebook, "Always")
    outputs = notebook.finish(1)
    assert [text.count("cleaned") > 0 for text in results(model)] == [True] * 3
    for answer in ("allowed once", "always allowed"):
        assert shown(outputs).count(f"<code>rm -rf build; echo cleaned</code> · {answer}") == 1
    assert "Done." in shown(outputs)
    assert not notebook.page.query_selector(ASK)
    assert "widget-view" not in str(outputs)
    left = "from ipywidgets.widgets import widget\nlen(widget._instances)"
    assert notebook.value(left) == 0


@BOTH
def test_keys_on_a_question_are_no_shortcuts(open_notebook, server, model):
    notebook = open_notebook("%%hermes\nrun it")
    prepare(notebook, model, python("made = 1"))
    loaded = notebook.page.evaluate("[...document.scripts].map(each => each.src)")
    assert any("remoteEntry.js?v=" in each and "hermes-nb" in each for each in loaded)
    notebook.start(1)
    asked(notebook)
    for part in ("button:has-text('Run once')", "button:has-text('Deny')", ".hermes-code"):
        notebook.page.focus(f"{ASK} {part}")
        notebook.page.keyboard.press("r")
        notebook.page.keyboard.press("m")
    assert notebook.evaluate("nb.content.widgets.map(cell => cell.model.type)") == ["code"] * 2
    click(notebook, "Run once")
    notebook.finish(1)


@BOTH
def test_a_reason_by_keyboard_and_a_stop(open_notebook, server, model):
    notebook = open_notebook("%%hermes\nrun it", "%%hermes\nrun it again")
    prepare(notebook, model, python("made = 1"), python("made = 2"))
    notebook.start(1)
    assert asked(notebook) == "made = 1"
    notebook.page.focus(f"{ASK} button:has-text('Deny')")
    notebook.page.keyboard.press("Enter")
    notebook.page.wait_for_selector(f"{ASK} input:focus")
    notebook.page.keyboard.type("not now,")
    notebook.page.keyboard.press("Tab")  # leaves the line, which sends what is in it so far
    notebook.page.keyboard.press("Shift+Tab")
    notebook.page.keyboard.press("End")
    notebook.page.keyboard.type(" later")
    notebook.shot(f"approval-reason-{server.app}")
    notebook.page.keyboard.press("Enter")
    notebook.page.wait_for_selector("text=denied: not now, later")
    asked(notebook)
    began = time.monotonic()
    notebook.command("notebook:interrupt-kernel")
    outputs = notebook.finish(1)
    assert time.monotonic() - began < STOPS_WITHIN
    assert "<code>made = 2</code> · interrupted" in shown(outputs)
    assert not notebook.page.query_selector(ASK)
    assert notebook.value("'made' in globals()") is False
    model.replies[:] = [stream(text_chunks("Fine."))]
    model.exchanges.clear()
    assert "Fine." in shown(notebook.run(2))
    assert "not now, later" in results(model)[0]


CLOCK = "later => { const at = Date.now() + later; Date.now = () => at; }"
"""Makes the page's clock stand still, so many milliseconds later."""


INSIDE = f"""[...document.querySelectorAll("{ASK} button")].every(each => {{
  const {{ top, bottom, left, right }} = each.getBoundingClientRect();
  return top >= 0 && left >= 0 && bottom <= innerHeight && right <= innerWidth;
}})"""


@BOTH
def test_what_is_long_scrolls_and_the_buttons_stay_in_view(open_notebook, server, model):
    notebook = open_notebook("%%hermes\nrun it", own=True, size=(1000, 700))
    code = "import os\n" + "made = 1\n" * 118 + "made = 'all'"
    prepare(notebook, model, python(code), python("made"), python("made = 3"))
    notebook.start(1)
    assert asked(notebook) == code
    page, box = notebook.page, notebook.page.locator(ASK)
    assert "120 lines" in box.inner_text()
    assert page.locator(f"{ASK} .hermes-keyword").first.inner_text() == "import"
    always, turn = "Always allow in this notebook", "Allow in this turn"
    labels = ["Run oncey", f"{turn}t", f"{always}a", "Deny…n"]
    assert box.locator("button").all_inner_texts() == labels
    page.wait_for_function(INSIDE)
    notebook.shot(f"approval-long-{server.app}")
    click(notebook, "Deny")
    page.keyboard.type("never mind y")
    page.keyboard.press("Escape")
    page.wait_for_selector(f"{ASK} button:has-text('Deny…'):focus")
    page.evaluate(CLOCK, 600)
    page.keyboard.press("n")
    click(notebook, "Back")
    page.wait_for_selector("text=Always allow in this notebook: any Python code that Hermes writes")
    page.keyboard.press("y")
    page.wait_for_selector("text=allowed once")
    page.wait_for_function(f"document.querySelector('{ASK} .hermes-code')?.innerText === 'made'")
    page.wait_for_selector(f"{ASK} .hermes-code:focus")  # answers follow each other
    page.keyboard.press("y")  # too soon to have been meant for what has just been shown
    assert asked(notebook) == "made"
    answered_from_anywhere(notebook, model)
    assert "always allowed" in shown(notebook.finish(1))


def answered_from_anywhere(notebook, model):
    """Answer by keys outside of the box, which counts for no box out of sight, nor for a script."""
    page = notebook.page
    notebook.evaluate("(nb.content.activeCellIndex = 0, nb.content.mode = 'edit')")
    page.evaluate(CLOCK, 600)
    page.evaluate("document.querySelector('.hermes-ask').style.marginTop = '3000px'")
    page.evaluate(
        "document.dispatchEvent(new KeyboardEvent('keydown', {key: 'y', ctrlKey: true,"
        " altKey: true, bubbles: true}))"
    )
    notebook.command("hermes-nb:yes")
    page.keyboard.press("Control+Alt+y", delay=HELD)
    page.wait_for_timeout(300)
    assert len(results(model)) == 1
    page.evaluate("document.querySelector('.hermes-ask').style.marginTop = ''")
    page.evaluate("document.querySelector('.hermes-ask').scrollIntoView({block: 'nearest'})")
    page.keyboard.press("Control+Alt+y", delay=HELD)
    page.wait_for_function(
        f"document.querySelector('{ASK} .hermes-code')?.innerText === 'made = 3'"
    )
    page.evaluate(CLOCK, 600)
    page.keyboard.press("Control+Alt+n", delay=HELD)
    page.wait_for_selector(f"{ASK} input:focus")
    page.keyboard.press("Escape")
    page.evaluate(CLOCK, 600)
    page.keyboard.press("a")


def test_a_change_is_shown_as_a_diff_and_nothing_in_it_is_obeyed(open_notebook, model):
    notebook = open_notebook("%%hermes\nchange it")
    path = f"{HOSTILE}.txt".replace("/", "")
    change = {"path": path, "content": f"first {HOSTILE}\nsecond\n"}
    prepare(notebook, model, ("write_file", change), python(HOSTILE), terminal(f"rm '{HOSTILE}'"))
    notebook.start(1)
    assert f"+first {HOSTILE}" in asked(notebook)
    notebook.shot("approval-diff-light")
    assert notebook.page.query_selector_all(f"{ASK} .hermes-plus")
    notebook.command("apputils:change-theme", theme="JupyterLab Dark")
    notebook.page.wait_for_timeout(700)
    notebook.shot("approval-diff-dark")
    notebook.command("apputils:change-theme", theme="JupyterLab Light")
    click(notebook, "Apply")
    for _ in range(2):
        notebook.page.wait_for_function(
            "document.querySelectorAll('.hermes-ask .hermes-plus').length === 0"
        )
        assert HOSTILE in asked(notebook)
        click(notebook, "Deny")
        notebook.page.wait_for_selector(f"{ASK} input:focus")
        notebook.page.keyboard.press("Enter")
        notebook.page.wait_for_timeout(900)
    outputs = notebook.finish(1)
    lines = shown(outputs).splitlines()
    assert [line.count("<code>") for line in lines if "· denied · " in line] == [1, 1]
    assert notebook.page.evaluate("window.obeyed ?? null") is None
    assert not notebook.page.query_selector(".jp-OutputArea img")


@pytest.mark.parametrize("server", ["lab"], indirect=True)
def test_a_question_with_choices_is_answered_by_key_and_in_own_words(open_notebook, server, model):
    notebook = open_notebook("%%hermes --tools default,clarify\ncount them")
    which = (
        "clarify",
        {"question": f"Which year? {HOSTILE}", "choices": ["2008", f"2009 {HOSTILE}"]},
    )
    why = "clarify", {"question": "Why?"}
    prepare(notebook, model, which, why)
    notebook.start(1)
    notebook.page.wait_for_selector(f"{ASK} button", timeout=60_000)
    assert notebook.page.inner_text(f"{ASK} b") == "Hermes asks"
    assert HOSTILE in notebook.page.inner_text(ASK)
    for theme in ("dark", "light"):
        in_theme(notebook, theme)
        notebook.shot(f"question-{server.app}-{theme}")
    notebook.page.focus(f"{ASK} button:has-text('2008')")
    notebook.page.wait_for_timeout(600)
    notebook.page.keyboard.press("2")
    notebook.page.wait_for_selector(f"{ASK} button:has-text('Answer…')")
    click(notebook, "Answer…")
    notebook.page.keyboard.type("for the paper")
    notebook.page.keyboard.press("Enter")
    outputs = notebook.finish(1)
    assert results(model) == [f"The user: 2009 {HOSTILE}", "The user: for the paper"]
    assert "answered: for the paper" in shown(outputs)
    assert not notebook.evaluate("window.obeyed")


def test_a_question_says_what_hermes_wants_and_what_always_covers(open_notebook, model):
    notebook = open_notebook("made", "%%hermes\nrun it")
    read, run = ("read_cells", {"ids": ["cell1"]}), ("run_cell", {"id": "cell1"})
    prepare(notebook, model, read, python("made = 1"), python("made = 2"), run)
    notebook.start(2)
    box = notebook.page.locator(ASK)
    assert asked(notebook) == "made = 1"
    assert box.locator("b").inner_text() == "Run this code?"
    covers = "Python code that Hermes writes, in cells of its own or outside of cells"
    assert f"Always allow in this notebook: any {covers}, until this kernel" in box.inner_text()
    click(notebook, "Always")
    box.get_by_text("Run cell 2?").wait_for()  # it is not covered, as was said
    assert "notebook: running any cell of this notebook, alone" in box.inner_text()
    click(notebook, "Run once")
    notebook.finish(2)
    assert notebook.outputs(1)[0]["data"]["text/plain"] == "2"
