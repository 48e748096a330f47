"""A question is seen where its cell is seen, and pointed at where it is not."""

from __future__ import annotations

import pytest

from tests.e2e.test_approval import ASK, asked, click, prepare, python, results, shown
from tests.e2e.test_reload import reload_in_a_turn, reload_shown

BOTH = pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)
TALL = "print('\\n'.join(map(str, range({lines}))))"
INSIDE = f"""() => {{
  const box = document.querySelector('{ASK}')?.getBoundingClientRect();
  const view = window.jupyterapp.shell.currentWidget.content.node.getBoundingClientRect();
  return box && box.top >= view.top - 1 && box.bottom <= view.bottom + 1;
}}"""
SHOW = "button:text-is('Show')"


def scroll_to(notebook, index, block):
    notebook.page.evaluate(
        """([i, block]) => window.jupyterapp.shell.currentWidget.content.widgets[i].node
        .scrollIntoView({ block })""",
        [index, block],
    )
    notebook.page.wait_for_timeout(300)


@BOTH
def test_a_question_below_the_fold_comes_into_view(open_notebook, server, model):
    notebook = open_notebook(TALL.format(lines=60), "%%hermes\nclean up", size=(1000, 700))
    prepare(notebook, model, python("made = 1"))
    notebook.run(1)
    scroll_to(notebook, 2, "end")
    notebook.start(2)
    notebook.page.wait_for_selector(ASK)
    notebook.page.wait_for_function(INSIDE, timeout=60_000)
    assert not notebook.page.query_selector(SHOW)
    notebook.page.wait_for_timeout(600)  # what is drawn above it may not push it out again
    assert notebook.page.evaluate(INSIDE)
    click(notebook, "Run once")
    assert "Done." in shown(notebook.finish(2))


@BOTH
def test_a_question_elsewhere_is_pointed_at_and_nothing_jumps(open_notebook, server, model):
    text = {"cell_type": "markdown", "source": "A paragraph.\n\n" * 60}
    notebook = open_notebook("%%hermes\nclean up", text, "'the end'", size=(1000, 700))
    prepare(notebook, model, python("made = 1"))
    scroll_to(notebook, 3, "end")
    notebook.start(1)
    scroll_to(notebook, 3, "end")
    notebook.page.wait_for_selector(SHOW, timeout=30_000)
    assert not notebook.page.evaluate(INSIDE)
    notebook.shot(f"question-elsewhere-{server.app}")
    notebook.page.click(SHOW)
    notebook.page.wait_for_function(INSIDE, timeout=60_000)
    click(notebook, "Run once")
    notebook.page.wait_for_selector(SHOW, state="detached", timeout=30_000)
    assert "Done." in shown(notebook.finish(1))


ELSEWHERE = "text=was answered in another window"


@BOTH
def test_windows_also_those_opened_or_reloaded_meanwhile_are_asked_and_the_first_answer_counts(
    open_notebook, server, browser, model
):
    first = open_notebook("y = 1", "%%hermes\nclean up")
    edit = ("edit_cell", {"id": "cell1", "new": "y = 2"})
    prepare(first, model, python("made = 1"), edit)
    first.start(2)
    assert asked(first) == "made = 1"
    second = type(first)(server, browser.new_context().new_page(), first.name)
    second.load(first.name)
    reload_shown(second)
    assert asked(second) == "made = 1"
    reload_in_a_turn(second)
    assert asked(second) == "made = 1"
    assert first.page.locator(ASK).count() == second.page.locator(ASK).count() == 1
    click(second, "Run once")
    first.page.wait_for_selector(ELSEWHERE)
    assert not second.page.query_selector(ELSEWHERE)
    first.page.wait_for_selector(".hermes-cap")
    assert "y = 2" in asked(second)
    assert not second.page.query_selector(".hermes-cap")
    second.shot(f"question-in-another-window-{server.app}")
    first.page.click(".hermes-cap button:has-text('Keep')")
    second.page.wait_for_selector(ELSEWHERE)
    second.page.wait_for_selector(ASK, state="detached")
    assert shown(first.finish(2)).count("allowed once") == 2
    assert first.sources()[0] == "y = 2"
    assert first.value("made") == 1
    assert len(results(model)) == 2
    the_one_that_ran_it_is_reloaded(first, second, model)
    second.page.context.close()


def the_one_that_ran_it_is_reloaded(first, second, model):
    prepare(first, model, python("made = 3"))
    model.exchanges.clear()
    first.command("docmanager:save")
    first.start(2)
    assert asked(second) == "made = 3"
    reload_in_a_turn(first)
    for notebook in (second, first):
        assert asked(notebook) == "made = 3"
    click(first, "Run once")
    second.page.wait_for_selector(ASK, state="detached")
    first.until(lambda: len(model.exchanges) > 1)
    first.ready()
    assert first.value("made") == 3
