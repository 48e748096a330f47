"""A page that is reloaded, closed or changed while a turn goes on in the kernel."""

from __future__ import annotations

import threading

import pytest

from tests.e2e.harness import NOW, PATIENCE
from tests.e2e.test_approval import ASK, asked, click, prepare, results, shown, terminal
from tests.e2e.test_story import next_turn
from tests.loopback import Reply, chunk, event, stream, text_chunks, tool_chunks

NEW = "# a cell of the agent's"


def reload_in_a_turn(notebook):
    """Reload the page and wait for it; the kernel is still busy."""
    notebook.page.reload()
    reload_shown(notebook)


def reload_shown(notebook):
    """Wait for a reloaded page."""
    notebook.page.wait_for_function(
        f"window.jupyterapp && {NOW}?.context?.path === {notebook.name!r} "
        f"&& {NOW}.context.isReady && {NOW}.content.widgets.length "
        f"&& {NOW}.sessionContext?.session?.kernel?.connectionStatus === 'connected'",
        timeout=PATIENCE,
    )


def held(gate):
    """Return a step of a reply that waits until the test goes on."""
    return lambda _: gate.wait(30)


@pytest.mark.slow
def test_a_turn_outlives_a_reload_of_its_page(open_notebook, model):
    notebook = open_notebook(
        "%%hermes --approve all\ntell and add", "%hermes last", "%%hermes\nclean up"
    )
    prepare(notebook, model)
    gate = threading.Event()
    begin = [event(chunk({"content": text})) for text in ("Once upon ", "a **time** ")]
    insert = stream(tool_chunks(("insert_cell", {"source": NEW})))
    model.replies[:] = [
        Reply([*begin, held(gate), *insert.steps]),
        stream(text_chunks("Happily ever after.")),
    ]
    notebook.command("docmanager:save")
    notebook.start(1)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    reload_in_a_turn(notebook)
    notebook.page.wait_for_timeout(5000)  # for the page to meet the kernel
    gate.set()
    notebook.ready()
    notebook.until(lambda: len(model.exchanges) > 1)
    notebook.until(lambda: NEW in notebook.sources())
    assert "Happily ever after." in shown(notebook.run(notebook.ids().index("cell2") + 1))
    next_turn(model, terminal("rm -rf build; echo cleaned"))
    clean = notebook.ids().index("cell3") + 1
    notebook.start(clean)
    assert asked(notebook) == "rm -rf build; echo cleaned"
    click(notebook, "Run once")
    assert "Done." in shown(notebook.finish(clean))
    assert "cleaned" in results(model)[-1]
    assert not notebook.page.query_selector(ASK)


def open_question(notebook, model, *calls):
    """Start a turn that asks and wait for its box; the notebook is saved before."""
    prepare(notebook, model, *calls)
    notebook.command("docmanager:save")
    notebook.start(1)
    return asked(notebook)


def test_an_open_question_comes_back_after_a_reload(open_notebook, model):
    notebook = open_notebook("%%hermes\nclean up", *("x" for _ in range(30)), "%hermes last")
    command = "rm -rf build; echo cleaned"
    assert open_question(notebook, model, terminal(command)) == command
    for _ in range(2):
        reload_in_a_turn(notebook)
        assert asked(notebook) == command
        assert len(notebook.page.query_selector_all(ASK)) == 1
    notebook.shot("approval-after-reload")
    assert notebook.evaluate("nb.content.widgets[1].node.querySelector('.hermes-ask') !== null")
    click(notebook, "Run once")
    notebook.until(lambda: len(model.exchanges) > 1)
    assert "cleaned" in results(model)[-1]
    notebook.ready()
    assert "Done." in shown(notebook.run(32))
    assert ASK.strip(".") not in str(notebook.saved())


def test_an_open_question_can_be_stopped_while_its_page_is_away(open_notebook, model):
    notebook = open_notebook("%%hermes\nclean up", "%hermes last")
    open_question(notebook, model, terminal("rm -rf build"))
    session = next(
        s for s in notebook.server.request("/api/sessions") if s["path"] == notebook.name
    )
    notebook.page.goto("about:blank")
    notebook.page.wait_for_timeout(4000)  # the kernel has missed the page by now
    kernel = session["kernel"]["id"]
    notebook.server.request(f"/api/kernels/{kernel}/interrupt", "POST")
    notebook.until(
        lambda: notebook.server.request(f"/api/kernels/{kernel}")["execution_state"] == "idle", 3
    )
    notebook.show(notebook.name)
    assert not notebook.page.query_selector(ASK)
    assert "Stopped" in shown(notebook.run(2))


def test_a_question_that_no_page_comes_back_for_is_a_no(open_notebook, model):
    notebook = open_notebook("%%hermes\nclean up")
    prepare(notebook, model)
    notebook.kernel("import hermes_nb.notebook.approval as approval; approval.ABSENT = 1")
    open_question(notebook, model, terminal("rm -rf build"))
    notebook.page.goto("about:blank")
    notebook.until(lambda: len(model.exchanges) > 1)
    assert "page was closed during this turn" in results(model)[-1]


@pytest.mark.parametrize("unnoticed", [False, True])
def test_what_is_asked_or_called_right_after_a_reload_waits_for_the_page(
    open_notebook, model, unnoticed
):
    notebook = open_notebook("%%hermes --approve edits\nadd a cell, clean up")
    prepare(notebook, model)
    if unnoticed:  # the page was heard a moment ago: it is taken to be there still
        notebook.kernel("import hermes_nb.notebook.frontend as frontend; frontend.FRESH = 60")
    gate = threading.Event()
    insert = stream(tool_chunks(("insert_cell", {"source": NEW})))
    begin = event(chunk({"content": "Once upon a **time** "}))
    model.replies[:] = [
        Reply([begin, held(gate), *insert.steps]),
        stream(tool_chunks(terminal("rm -rf build; echo cleaned"))),
        stream(text_chunks("Done.")),
    ]
    notebook.command("docmanager:save")
    notebook.start(1)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    notebook.page.reload(wait_until="commit")
    gate.set()
    reload_shown(notebook)
    assert asked(notebook) == "rm -rf build; echo cleaned"
    notebook.until(lambda: notebook.sources()[1:2] == [NEW])
    assert "in the open notebook" in results(model)[-1]
    click(notebook, "Run once")
    notebook.until(lambda: len(model.exchanges) > 2)
    assert "cleaned" in results(model)[-1]


def test_a_question_moves_to_the_side_when_its_cell_is_deleted(open_notebook, model):
    notebook = open_notebook("%%hermes\nclean up", "x = 1")
    command = "rm -rf build; echo cleaned"
    open_question(notebook, model, terminal(command))
    notebook.evaluate("m.deleteCell(1)")
    notebook.page.wait_for_selector(f"#jp-right-stack {ASK}")
    assert asked(notebook) == command
    notebook.shot("approval-at-the-side")
    click(notebook, "Run once")
    notebook.until(lambda: len(model.exchanges) > 1)
    assert "cleaned" in results(model)[-1]
