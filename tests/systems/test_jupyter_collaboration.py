"""Beside jupyter-collaboration, whose server writes every open notebook on its own, too."""

import pytest

from tests.e2e.harness import BRIDGE, Notebook
from tests.e2e.test_approval import test_a_click_allows_once_and_always_is_remembered
from tests.e2e.test_bridge import test_every_operation_and_the_saved_file
from tests.e2e.test_interleaving import AGENT, interleave
from tests.e2e.test_story import test_insert_run_edit_and_undo

SYSTEM = "jupyter-collaboration"
__all__ = [
    "test_a_click_allows_once_and_always_is_remembered",
    "test_every_operation_and_the_saved_file",
    "test_insert_run_edit_and_undo",
]

SAVES = """
import asyncio
import hermes_nb.notebook.frontend as module
module.can_ask = lambda shell: True  # also where the server says that nobody answers
{bridge}
async def file():
    while True:
        try: return json.load(open({path!r}, encoding="utf-8"))
        except ValueError: await asyncio.sleep(0.05)  # it is being written
for seconds in (0, 0.5, 0.95, 1, 1.05, 1.1):
    await document.insert(f"a{{seconds}}")
    await asyncio.sleep(seconds)  # about when the server writes what was inserted
    await document.insert(f"b{{seconds}}")
    await document.save()
    held = ["".join(cell["source"]) for cell in (await file())["cells"]]
    assert held[-2:] == [f"a{{seconds}}", f"b{{seconds}}"], held
open({path!r} + ".done", "w").close()
"""


@pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)
def test_each_save_answers_and_the_file_holds_what_is_shown(open_notebook, server):
    path = server.root / "saves.ipynb"
    source = SAVES.format(bridge=BRIDGE, path=str(path))
    notebook = open_notebook(source, name=path.name)
    notebook.run(1)
    notebook.until(path.with_name(path.name + ".done").exists)
    assert not notebook.page.query_selector(".jp-Dialog")


@pytest.mark.parametrize("server", ["lab", "notebook7"], indirect=True)
def test_83_a_second_person_edits_the_shared_notebook_while_the_agent_does(open_notebook, server):
    """Nothing that anyone wrote is lost or doubled, and both pages show the same in the end.

    The agent moves and deletes no cells here. In a shared notebook a moved cell is a new one, so
    text that somebody types at that moment in another page goes with the old cell.
    """
    notebook = open_notebook(*(f"start = {number}" for number in range(3)))
    notebook.bridge()
    notebook.kernel(f"{AGENT}\nalone = False")
    browser = notebook.page.context.browser
    other = Notebook(server, browser.new_context().new_page(), notebook.name)
    try:
        other.show(notebook.name)
        for seed in range(8):
            interleave(notebook, seed, other)
    finally:
        other.close()
