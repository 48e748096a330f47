"""The user's own widgets work while a turn runs: each change, not the first one alone."""

from __future__ import annotations

import pytest

from tests.e2e.older import install
from tests.e2e.test_approval import prepare
from tests.loopback import Reply, chunk, event, stall

BOTH = pytest.mark.parametrize("older", [False, True])
MAKE = """
import ipywidgets, time
field, said = ipywidgets.Text(placeholder='mine'), ipywidgets.Label('nothing')
def hear(change):
    said.value = f'heard {change.new}'
    time.sleep(60 if change.new == 'hang' else 0)
field.observe(hear, names='value')
ipywidgets.VBox([field, said])
"""


@BOTH
def test_a_field_goes_on_changing_in_a_turn(open_notebook, server, model, older):
    kernel = {"kernel": install(server)} if older else {}
    notebook = open_notebook(MAKE, "%%hermes\nhello", **kernel)
    prepare(notebook, model)
    model.replies[:] = [Reply([event(chunk({"content": "Once upon"})), stall])]
    notebook.run(1)
    notebook.page.wait_for_selector("input[placeholder=mine]")
    notebook.start(2)
    notebook.until(lambda: "Once upon" in str(notebook.outputs(2)), timeout=20)
    for text in ("a", "ab", "abc"):
        notebook.page.fill("input[placeholder=mine]", text)
        notebook.page.wait_for_selector(f".widget-label:text-is('heard {text}')", timeout=10_000)
    assert notebook.evaluate("m.cells[2].executionState") == "running"
    notebook.command("notebook:interrupt-kernel")
    assert "Stopped" in str(notebook.finish(2))
    notebook.page.fill("input[placeholder=mine]", "after")
    notebook.page.wait_for_selector(".widget-label:text-is('heard after')", timeout=10_000)


@BOTH
def test_a_stop_ends_a_handler_that_hangs_and_the_turn(open_notebook, server, model, older):
    kernel = {"kernel": install(server)} if older else {}
    notebook = open_notebook(MAKE, "%%hermes\nhello", **kernel)
    prepare(notebook, model)
    model.replies[:] = [Reply([event(chunk({"content": "Once upon"})), stall])]
    notebook.run(1)
    notebook.page.wait_for_selector("input[placeholder=mine]")
    notebook.start(2)
    notebook.until(lambda: "Once upon" in str(notebook.outputs(2)), timeout=20)
    notebook.page.fill("input[placeholder=mine]", "hang")
    notebook.page.wait_for_timeout(1_000)
    notebook.command("notebook:interrupt-kernel")
    assert "Stopped" in str(notebook.finish(2))
