"""A kernel that ends in mid-turn leaves no cell that is running; a renamed notebook is known.

What was said until then stays, and the next turn goes on from it.
"""

from __future__ import annotations

import pytest
from hermes_nb.notebook.display.views import STILL_RUNNING

from tests.e2e.harness import EXTENSION, NOW
from tests.e2e.test_approval import prepare
from tests.loopback import Reply, chunk, event, stall, stream, text_chunks, tool_chunks

BOTH = pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)
BEGUN = [event(chunk({"content": text})) for text in ("Once upon ", "a **time** ")]
RESTART = f"() => {NOW}.sessionContext.session.kernel.restart()"
RENAME = f"name => {NOW}.context.rename(name)"


def shown(notebook):
    (output,) = notebook.outputs(1)
    return str(output["data"]["text/markdown"])


def test_both_ends_know_a_running_turn_by_the_same_text():
    page = (EXTENSION / "static" / "turns.js").read_text(encoding="utf-8")
    assert f"'{STILL_RUNNING}'" in page


@BOTH
def test_a_turn_whose_kernel_was_restarted_is_over(open_notebook, server, model):
    notebook = open_notebook("%%hermes\ntell me")
    prepare(notebook, model)
    model.replies[:] = [Reply([*BEGUN, stall])]
    notebook.start(1)
    notebook.page.wait_for_selector(".jp-RenderedMarkdown strong:has-text('time')")
    notebook.page.evaluate(RESTART)
    notebook.until(lambda: "■ the kernel ended · " in shown(notebook), timeout=20)
    assert "Once upon a **time**" in shown(notebook) and "running" not in shown(notebook)
    notebook.shot(f"kernel-gone-{server.app}")


def test_calls_that_ran_are_marked_too(open_notebook, model):
    notebook = open_notebook("%%hermes --approve all\nsleep")
    prepare(notebook, model)
    model.replies[:] = [
        stream(tool_chunks(("run_python", {"code": "import time; time.sleep(60)"})))
    ]
    notebook.start(1)
    notebook.until(lambda: "◌ **run_python**" in str(notebook.outputs(1)), timeout=20)
    notebook.page.evaluate(RESTART)
    notebook.until(lambda: "■ **run_python**" in shown(notebook), timeout=20)
    assert "◌" not in shown(notebook)


def test_a_renamed_notebook_is_known_and_keeps_its_session(open_notebook, model):
    notebook = open_notebook("%hermes hello", "%hermes status")
    prepare(notebook, model)
    model.replies[:] = [stream(text_chunks("Hello."))]
    notebook.run(1)
    notebook.page.evaluate(RENAME, "elsewhere.ipynb")
    notebook.until(lambda: "elsewhere.ipynb" in str(notebook.run(2)), timeout=20)
    notebook.name = "elsewhere.ipynb"
    notebook.page.evaluate(RESTART)
    notebook.ready()
    prepare(notebook, model)
    (output,) = notebook.run(1)
    assert "Resumed this notebook's session" in str(output)
    assert b"Hello." in model.exchanges[-1].body
