"""A question is seen where its cell is seen, and pointed at where it is not."""

from __future__ import annotations

import pytest

from tests.e2e.test_approval import ASK, click, prepare, python, shown

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
