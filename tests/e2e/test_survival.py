"""A killed kernel and a killed server, each in the middle of the agent's work.

`HERMES_E2E_KILLS=30` and `HERMES_E2E_SERVER_KILLS=30` kill more often.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess

import pytest

from tests.e2e.harness import Server
from tests.e2e.test_approval import prepare, shown
from tests.e2e.test_story import next_turn

KERNEL_KILLS = int(os.environ.get("HERMES_E2E_KILLS", "3"))
SERVER_KILLS = int(os.environ.get("HERMES_E2E_SERVER_KILLS", "2"))
MINE = "# the user's own cell, unsaved"


def block(number):
    """Return a source that shows whether all of it is there."""
    lines = [f"# line {line} of block {number}, ⅓ 🦊" for line in range(40)]
    return "\n".join([f"block = {number}", *lines, f"block, {number}"])


class Mortal(Server):
    """A server that may be killed, and that brings killed kernels back soon and every time."""

    def _command(self, port):
        quick = ("time_to_dead=0.3", "stable_start_time=0.5", "restart_limit=1000")
        self._last = [*super()._command(port), *(f"--KernelRestarter.{each}" for each in quick)]
        return self._last

    def kill(self):
        """End the server as the kernel's out-of-memory killer does."""
        self._process.kill()
        self._process.wait()

    def again(self):
        """Start it once more, on the same folder and port."""
        with (self.folder / "server.log").open("a") as log:
            self._process = subprocess.Popen(
                self._last, cwd=self.root, env=self._environment(), stdout=log, stderr=log
            )
        self._wait()


@pytest.fixture
def server(tmp_path):
    server = Mortal("lab", tmp_path)
    yield server
    server.close()


def calls(first):
    """Return the calls of a long turn: cells are added, changed and run."""
    yield "read_cells", {"ids": ["cell3"]}
    for number in range(first, first + 60, 2):
        yield "insert_cell", {"source": block(number)}
        yield "edit_cell", {"id": "cell3", "new": block(number + 1)}
        yield "run_cell", {"id": "cell3"}


def dismiss(notebook):
    """Answer the dialogs that tell of the dead kernel."""
    while found := notebook.page.query_selector(".jp-Dialog .jp-mod-accept"):
        found.click()
        notebook.page.wait_for_timeout(100)


def unanswered(messages):
    """Return the calls in a request that no result belongs to."""
    made = [call["id"] for m in messages for call in m.get("tool_calls") or ()]
    answered = [m["tool_call_id"] for m in messages if m["role"] == "tool"]
    return set(made) ^ set(answered)


@pytest.mark.slow
def test_a_killed_kernel_leaves_whole_cells_and_comes_back(open_notebook, model):
    notebook = open_notebook(
        "mine = 1",
        "%%hermes --approve all\nadd a cell",
        block(0),
        "%%hermes --approve all --no-context\nadd and change many",
        own=True,
    )
    notebook.evaluate("m.cells[1].setSource(a)", MINE)
    dice = random.Random(1)
    for kill in range(KERNEL_KILLS + 1):
        # The turn after a kill goes on with the conversation that was cut off.
        prepare(notebook, model, ("insert_cell", {"source": block(1000 + kill)}))
        model.exchanges.clear()
        assert "Done." in shown(notebook.run(2))
        assert not unanswered(model.bodies[-1]["messages"])
        assert block(1000 + kill) in notebook.sources()
        known = notebook.ids()
        if kill == KERNEL_KILLS:
            break
        first = 2000 + 100 * kill
        next_turn(model, *calls(first))
        kernel = int(notebook.value("__import__('os').getpid()"))
        notebook.start(notebook.ids().index("cell4") + 1)
        requests = dice.randrange(2, 12)
        notebook.until(lambda n=requests: len(model.exchanges) >= n)
        notebook.page.wait_for_timeout(dice.randrange(60))
        os.kill(kernel, signal.SIGKILL)
        notebook.page.wait_for_selector(".jp-Dialog", timeout=20_000)
        dismiss(notebook)
        notebook.ready()
        check(notebook, known, range(first, first + 60))


def check(notebook, known, new):
    """Every cell is as the user or a whole edit left it, in the page and in the saved file."""
    ids, sources = notebook.ids(), notebook.sources()
    assert [each for each in ids if each in known] == known
    assert len(set(ids)) == len(ids)
    assert sources[0] == MINE
    whole = {block(number) for number in (0, *range(1000, 1100), *range(2000, 2000 + 100 * 50))}
    turns = ("cell2", "cell4")
    rest = [s for i, s in zip(ids[1:], sources[1:], strict=True) if i not in turns]
    assert set(rest) <= whole
    fresh = [s for i, s in zip(ids, sources, strict=True) if i not in known]
    assert set(fresh) <= {block(number) for number in new}
    notebook.command("docmanager:save")
    assert not notebook.evaluate("nb.context.model.dirty")
    saved = notebook.saved()
    assert [cell.source for cell in saved.cells][1:] == sources


SAVING = """
import asyncio
async def go_on(first, told):
    number = first
    while True:
        new = await document.insert(text(number))
        number += 1
        seen = await document.get('cell1')
        await document.replace('cell1', text(number), seen=seen.hash)
        number += 1
        await document.save()
        with open(told, 'a') as file:
            file.write(f'{number - 2} {number - 1}\\n')
"""


@pytest.mark.slow
def test_a_killed_server_loses_nothing_that_was_saved(open_notebook, server, tmp_path):
    notebook = open_notebook(block(0), own=True)
    dice = random.Random(2)
    told = tmp_path / "told"
    told.touch()
    for kill in range(SERVER_KILLS):
        notebook.bridge()
        source = "def text(n):\n    lines = [f'# line {i} of block {n}, ⅓ 🦊' for i in range(40)]\n"
        source += "    return '\\n'.join([f'block = {n}', *lines, f'block, {n}'])\n"
        notebook.kernel(source + SAVING)
        before = len(told.read_text().splitlines())
        first = 1000 * (kill + 1)
        notebook.evaluate("m.cells[0].setSource(a)", f"await go_on({first}, {str(told)!r})")
        notebook.start(0)
        saves = dice.randrange(2, 6)
        notebook.until(lambda n=before + saves: len(told.read_text().splitlines()) >= n)
        notebook.page.wait_for_timeout(dice.randrange(60))
        server.kill()
        notebook.page.wait_for_timeout(300)
        server.again()
        notebook.show(notebook.name)  # as the server reads it: a broken write is put right there
        saved = notebook.saved()
        sources = [cell.source for cell in saved.cells][1:]
        assert sources == notebook.sources()
        pairs = [tuple(map(int, line.split())) for line in told.read_text().splitlines()]
        numbers = [int(source.split()[2]) for source in sources]
        assert sources == [block(number) for number in numbers]
        assert {inserted for inserted, _ in pairs} <= set(numbers[1:])
        assert numbers[0] >= pairs[-1][1]
        notebook.page.wait_for_timeout(100)
        assert not notebook.page.query_selector(".jp-Dialog")
