"""Whole turns on ipykernel 6, which keeps a page's messages waiting while a cell runs."""

from __future__ import annotations

import threading
import time

import pytest

from tests.e2e.older import install
from tests.e2e.test_approval import ASK, asked, click, prepare, python, results, shown, terminal
from tests.e2e.test_reload import held, reload_in_a_turn
from tests.e2e.test_story import next_turn
from tests.loopback import Reply, chunk, event, stall, stream, tool_chunks
from tests.patience import STOPS_WITHIN


@pytest.fixture
def open_on_old(open_notebook, server):
    """Return `open_notebook` for that kernel, checked to be what runs."""
    name = install(server)

    def open_one(*cells):
        notebook = open_notebook(*cells, kernel=name)
        assert notebook.kernel("import ipykernel; print(ipykernel.__version__)").startswith("6.31")
        return notebook

    return open_one


def test_stream_ask_insert_run_and_undo(open_on_old, model):
    notebook = open_on_old(
        "%%hermes\nclean up",
        "%%hermes --approve all\nrun it",
        "%%hermes\nonce more",
        "%hermes undo",
    )
    prepare(notebook, model)
    gate = threading.Event()
    clean = stream(tool_chunks(terminal("rm -rf build; echo cleaned")))
    begin = [event(chunk({"content": text})) for text in ("Once upon ", "a **time** ")]
    model.replies[:0] = [Reply([*begin, held(gate), *clean.steps])]
    notebook.start(1)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    gate.set()
    assert asked(notebook) == "rm -rf build; echo cleaned"
    notebook.shot("approval-ipykernel6")
    click(notebook, "Run once")
    assert "allowed once" in shown(notebook.finish(1))
    assert "cleaned" in results(model)[-1]
    next_turn(model, ("insert_cell", {"source": "z = 12 ** 2\nprint('side effect')\nz"}))
    notebook.run(2)
    made = notebook.ids()[2]
    assert notebook.sources()[2].startswith("z = 12")
    next_turn(model, ("run_cell", {"id": made[:8]}), python("z + 1"))
    notebook.start(4)
    for gone, told in (("z = 12 ** 2", "144"), ("z + 1", "145")):
        assert gone in asked(notebook)
        click(notebook, "Run once")
        notebook.until(lambda told=told: told in results(model)[-1:][0] if results(model) else 0)
    assert "Done." in shown(notebook.finish(4))
    assert "144" in str(notebook.outputs(3))
    assert "is undone" in shown(notebook.run(5))


def test_a_stop_while_it_streams_and_while_it_asks(open_on_old, model):
    notebook = open_on_old("%%hermes\ntell", "%%hermes\nclean up")
    prepare(notebook, model)
    model.replies[:] = [Reply([event(chunk({"content": "Once upon a **time** "})), stall])]
    notebook.start(1)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    began = time.monotonic()
    notebook.command("notebook:interrupt-kernel")
    assert "Stopped" in shown(notebook.finish(1))
    assert time.monotonic() - began < STOPS_WITHIN
    next_turn(model, terminal("rm -rf build"))
    notebook.start(2)
    asked(notebook)
    began = time.monotonic()
    notebook.command("notebook:interrupt-kernel")
    assert "<code>rm -rf build</code> · interrupted" in shown(notebook.finish(2))
    assert time.monotonic() - began < STOPS_WITHIN
    assert not notebook.page.query_selector(ASK)


def test_an_open_question_comes_back_after_a_reload(open_on_old, model):
    notebook = open_on_old("%%hermes\nclean up")
    prepare(notebook, model, terminal("rm -rf build; echo cleaned"))
    notebook.command("docmanager:save")
    notebook.start(1)
    asked(notebook)
    reload_in_a_turn(notebook)
    assert asked(notebook) == "rm -rf build; echo cleaned"
    click(notebook, "Run once")
    notebook.until(lambda: len(model.exchanges) > 1)
    assert "cleaned" in results(model)[-1]
