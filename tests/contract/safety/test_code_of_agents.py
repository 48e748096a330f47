"""Code that the agent runs unasked in mode `all` cannot use Hermes' own commands and settings."""

from __future__ import annotations

import os

import pytest

from tests.faults.cells import Cells, served_kernel
from tests.loopback import Loopback, calls, says

CODE = {
    "a note": "%hermes memory add planted note",
    "an address": "%hermes config base_url http://127.0.0.1:1/v1",
    "an address by %config": "%config HermesMagics.base_url = 'http://127.0.0.1:1/v1'",
    "an address by the environment": (
        "import os; os.environ['HERMES_NB_BASE_URL'] = 'http://127.0.0.1:1/v1'"
    ),
    "another model": "%hermes model another-model",
    "no redaction": "%hermes config redact_requests false",
    "no sandbox": "%hermes config sandbox.use off",
    "trust": "%hermes trust conversation",
    "pending notes": "%hermes memory approve all",
    "a cassette": "%hermes cassette record",
    "an end": "%hermes new",
    # What another conversation says would count as the kernel's output.
    "the last turn": "%hermes last",
    "messages of a session": "%hermes history",
    "other conversations": "%hermes search note",
}
LATER = """
import asyncio
async def later():
    await asyncio.sleep(0.3)
    try:
        await get_ipython().run_line_magic("hermes", "memory add planted later")
    except Exception as error:
        print("refused:", error)
task = asyncio.get_running_loop().create_task(later())
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    folder = tmp_path_factory.mktemp("agent")
    with Loopback() as server, served_kernel(server, folder) as kernel:
        yield Cells(kernel, server, folder)


def kept(cells):
    """Return what memory holds, and every setting with its value."""
    note = cells.folder / "home/memories/MEMORY.md"
    settings = cells.run("%hermes config").markdown
    return note.read_text("utf-8") if note.exists() else "", settings


@pytest.mark.parametrize("way", CODE)
def test_a_command_that_changes_something_is_refused(cells, way):
    cells.begin()
    assert cells.run("%hermes approve all").status == "ok"
    before = kept(cells)
    cells.ask(calls(("run_python", {"code": CODE[way]})), says("Done."))
    if "environment" not in way:
        assert "code that an agent runs cannot" in cells.results[-1]
    assert kept(cells) == before
    turns = len(cells.goes_on())
    assert turns > 4, "the conversation is still the same"
    assert cells.server.bodies[-1]["model"] == "loopback-model"


def test_what_only_shows_something_is_not(cells):
    cells.begin()
    cells.run("%hermes approve all")
    cells.ask(calls(("run_python", {"code": "%hermes help"})), says("Done."))
    assert "cannot" not in cells.results[-1] and "memory" in cells.results[-1]


def test_a_task_that_such_code_leaves_is_refused(cells):
    cells.begin()
    cells.run("%hermes approve all")
    cells.ask(calls(("run_python", {"code": LATER})), says("Done."))
    cells.run("await task")
    assert "planted" not in kept(cells)[0]


def test_the_users_own_cells_may(cells):
    assert cells.run("%hermes memory add mine").status == "ok"
    assert "mine" in kept(cells)[0]
    assert cells.run("%config HermesMagics.max_requests = 14").status == "ok"
    assert cells.run(f"import os; os.environ['HERMES_NB_X'] = '{os.getpid()}'").status == "ok"
    assert cells.printed("print(os.environ['HERMES_NB_X'])") == str(os.getpid())
