"""A turn that goes on while its page is reloaded is there in the page that comes back."""

from __future__ import annotations

import threading

import pytest

from tests.e2e.test_approval import prepare
from tests.e2e.test_reload import held, reload_in_a_turn
from tests.loopback import Reply, chunk, event, failure, stall, stream, text_chunks, tool_chunks

BOTH = pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)
PLOT = "import matplotlib.pyplot as plt; plt.plot([1, 3, 2]); plt.show()"


def texts(notebook, index):
    """Return what a cell shows as Markdown, output by output."""
    outputs = notebook.outputs(index)
    return [str(each.get("data", {}).get("text/markdown", each)) for each in outputs]


def begun(notebook, model, gate, *replies):
    """Start a turn that waits in the middle of its first reply, and save the notebook there."""
    prepare(notebook, model)
    begin = [event(chunk({"content": text})) for text in ("Once upon ", "a **time** ")]
    first, *rest = replies
    model.replies[:] = [Reply([*begin, held(gate), *first.steps]), *rest]
    notebook.start(1)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    notebook.command("docmanager:save")


@BOTH
def test_a_reloaded_page_shows_how_the_turn_goes_on_and_ends(open_notebook, server, model):
    notebook = open_notebook("%%hermes --approve all\ntell and plot", "x = 1")
    gate, end = threading.Event(), threading.Event()
    plot = stream(tool_chunks(("run_python", {"code": PLOT})))
    wait = Reply(
        [event(chunk({"content": "And they "})), held(end), *stream(text_chunks("lived.")).steps]
    )
    begun(notebook, model, gate, plot, wait)
    reload_in_a_turn(notebook)
    notebook.until(lambda: "Once upon a **time**" in texts(notebook, 1)[0])
    gate.set()
    notebook.until(lambda: "And they" in texts(notebook, 1)[0])
    assert "running" in texts(notebook, 1)[0]
    notebook.shot(f"reloaded-in-a-turn-{server.app}")
    end.set()
    notebook.until(lambda: "And they lived." in texts(notebook, 1)[0])
    notebook.ready()
    shown = notebook.outputs(1)
    assert "running" not in texts(notebook, 1)[0] and "1 tool call" in texts(notebook, 1)[0]
    kinds = [sorted(each["data"])[0] for each in shown]
    assert kinds == ["text/markdown", "image/png", "text/markdown"]  # the status line is the last
    number = notebook.evaluate("m.cells[1].execution_count")
    assert notebook.value("get_ipython().execution_count") == number + 2
    notebook.page.wait_for_selector(".jp-RenderedMarkdown details summary:has-text('1 tool call')")
    notebook.shot(f"reloaded-after-a-turn-{server.app}")
    notebook.command("docmanager:save")
    saved = notebook.saved().cells[1].outputs
    assert "And they lived." in saved[0].data["text/markdown"]
    assert len(saved) == 3 and "still running" not in str(saved)


@BOTH
def test_a_reloaded_page_can_stop_the_turn_at_its_cell_and_at_the_side(
    open_notebook, server, model
):
    notebook = open_notebook("%%hermes --approve all\ntell me", "%hermes panel")
    page = notebook.page
    prepare(notebook, model)
    told = ("Once upon a **time**", "There was a **house**")
    model.replies[:] = [Reply([event(chunk({"content": text})), stall]) for text in told]
    notebook.run(2)
    notebook.start(1)
    page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    reload_in_a_turn(notebook)
    beside = page.get_by_role("button", name="■ Stop")
    beside.wait_for()
    page.wait_for_selector(".hermes-stop button")
    assert notebook.evaluate("m.cells[1].executionState") == "running"
    notebook.shot(f"reloaded-stop-{server.app}")
    page.click(".hermes-stop button")
    notebook.until(lambda: "Stopped" in texts(notebook, 1)[0])
    notebook.ready()
    page.wait_for_selector(".hermes-stop", state="detached")
    assert notebook.evaluate("m.cells[1].executionState") == "idle"
    # A turn that was asked for at the side has no cell to show it.
    page.get_by_label("Ask Hermes").fill("and then?")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector(".hermes-composer strong:has-text('house')")
    reload_in_a_turn(notebook)
    beside.click()
    notebook.ready()
    said = "import hermes_nb; print(hermes_nb.last_turn().reason, hermes_nb.last_turn().text)"
    assert notebook.kernel(said) == "interrupted There was a **house**\n"


@BOTH
def test_a_page_that_saw_nothing_of_it_lets_go_of_the_run_before(open_notebook, server, model):
    notebook = open_notebook("%%hermes --approve all\ntell me")
    prepare(notebook, model)
    model.replies[:] = [stream(text_chunks("The first answer."))]
    notebook.run(1)
    notebook.command("docmanager:save")
    gate = threading.Event()
    model.exchanges.clear()
    broken = failure(400, {"error": {"message": "no such luck"}})
    model.replies[:] = [
        Reply(
            [event(chunk({"content": "The second"})), held(gate), *stream(text_chunks("")).steps]
        ),
        broken,
    ]
    notebook.start(1)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown:has-text('The second')")
    reload_in_a_turn(notebook)
    notebook.until(lambda: "The second" in texts(notebook, 1)[0])
    assert len(texts(notebook, 1)) == 1
    gate.set()
    notebook.ready()
    notebook.until(lambda: _ended(texts(notebook, 1)[0], "The second"))


def test_the_answer_before_is_gone_when_the_cell_is_run_again_after_a_reload(open_notebook, model):
    notebook = open_notebook("%%hermes --approve all\ntell me")
    gate = threading.Event()
    begun(notebook, model, gate, stream(text_chunks("there was an end.")))
    reload_in_a_turn(notebook)
    gate.set()
    notebook.until(lambda: _ended(texts(notebook, 1)[0], "there was an end."))
    notebook.ready()
    gate.clear()
    again = [event(chunk({"content": "Another tale"})), held(gate)]
    model.replies[:] = [Reply([*again, *stream(text_chunks(" ended.")).steps])]
    notebook.start(1)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown:has-text('Another tale')")
    notebook.page.wait_for_timeout(5_000)  # for what may still be shown of the turn before
    assert ["Another tale" in each for each in texts(notebook, 1)] == [True]
    assert "an end" not in texts(notebook, 1)[0]
    assert notebook.evaluate("m.cells[1].executionState") == "running"
    gate.set()
    notebook.finish(1)
    assert ["Another tale ended." in each for each in texts(notebook, 1)] == [True]


def _ended(text, begun):
    """Say whether a turn's last state is shown: a busy page draws what was saved in between."""
    return begun in text and "running" not in text


def test_a_turn_that_ends_while_its_page_loads_is_shown_when_it_is_there(open_notebook, model):
    notebook = open_notebook("%%hermes --approve all\ntell me")
    gate = threading.Event()
    begun(notebook, model, gate, stream(text_chunks("there was an end.")))
    notebook.page.goto("about:blank")
    gate.set()
    notebook.until(model.exchanges[-1].finished.is_set)
    notebook.page.wait_for_timeout(1_000)
    notebook.show(notebook.name)
    notebook.until(lambda: "there was an end." in texts(notebook, 1)[0])
    assert "running" not in texts(notebook, 1)[0]


def test_a_turn_that_ends_just_after_its_page_came_back_is_shown_there(open_notebook, model):
    notebook = open_notebook("%%hermes --approve all\ntell me")
    gate = threading.Event()
    begun(notebook, model, gate, stream(text_chunks("there was an end.")))
    reload_in_a_turn(notebook)
    gate.set()
    notebook.until(lambda: "there was an end." in texts(notebook, 1)[0])
    assert "running" not in texts(notebook, 1)[0]


def test_a_second_page_leaves_the_first_one_alone(open_notebook, browser, server, model):
    notebook = open_notebook("%%hermes --approve all\ntell me")
    gate = threading.Event()
    begun(notebook, model, gate, stream(text_chunks("there was an end.")))
    second = notebook.page.context.new_page()
    second.goto(notebook.page.url)
    second.wait_for_selector(".jp-Notebook .jp-Cell", timeout=60_000)
    second.wait_for_timeout(3_000)
    gate.set()
    outputs = notebook.finish(1)
    assert len(outputs) == 1 and "there was an end." in str(outputs)
    dirty = "window.jupyterapp.shell.currentWidget.context.model.dirty"
    assert second.evaluate(dirty) is False


def test_the_panel_waits_for_a_page_that_is_busy(open_notebook, model):
    notebook = open_notebook("%hermes panel")
    prepare(notebook, model)
    notebook.start(1)
    notebook.page.evaluate("const end = Date.now() + 4000; while (Date.now() < end);")
    notebook.page.wait_for_selector(".hermes-nb-panel .hermes-panel")
    assert notebook.finish(1) == []
