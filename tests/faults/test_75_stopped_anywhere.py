"""A stop in any command and in the first import: one line, the prompt kept, nothing after it."""

from __future__ import annotations

import os
import signal

import pytest

from tests.faults.cells import Cells, environment, says, served_kernel
from tests.kernels import kernel
from tests.loopback import Reply, stall

pytestmark = pytest.mark.kernel

PRESS = "import os, signal; os.kill(os.getpid(), signal.SIGINT)"
PRESS_ON_IMPORT = """
import os, signal, sys
class Finder:
    def find_spec(self, name, *_):
        if name == {module!r}:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
"""


def is_stopped(result):
    assert result.status == "error", result.text
    assert result.error["traceback"] == ["stopped"]
    assert not [word for word in ("Traceback", "Cancelled", "Interrupt") if word in result.text]


def kept(cells, prompt):
    """Go on, and say whether the model was told the prompt, as one of a turn that was stopped."""
    sent = cells.goes_on()
    said = [message["role"] for message in sent if prompt in str(message["content"])]
    return said == ["user"] and [message["role"] for message in sent[-2:]] == ["assistant", "user"]


@pytest.mark.parametrize(
    "module",
    [
        "hermes_nb.notebook.kernel_agent",
        "hermes_nb.memory.sessions",
        "hermes_nb.models.chat.client",
    ],
)
def test_75_in_the_first_import(tmp_path, server, module):
    with served_kernel(server, tmp_path) as running:
        cells = Cells(running, server, tmp_path)
        cells.run(PRESS_ON_IMPORT.format(module=module))
        is_stopped(cells.ask(says("not this"), prompt="are you there?"))
        assert not server.exchanges
        assert kept(cells, "are you there?")


@pytest.mark.parametrize("module", ["hermes_nb.notebook.magics", "hermes_nb.notebook.kernel_agent"])
def test_75_in_a_kernel_that_loads_it_when_needed(tmp_path, server, module):
    with kernel(environment(server, tmp_path), cwd=str(tmp_path)) as running:
        cells = Cells(running, server, tmp_path)
        cells.run("from hermes_nb.notebook import lazy\nlazy.watch(get_ipython())")
        cells.run(PRESS_ON_IMPORT.format(module=module))
        is_stopped(cells.ask(says("not this"), prompt="are you there?"))
        assert not server.exchanges
        assert kept(cells, "are you there?")


def test_75_just_before_it_begins(cells):
    cells.plays(says("not this"))
    is_stopped(cells.run(f"{PRESS}\n%hermes are you there?"))
    is_stopped(cells.run(f"{PRESS}\n%hermes status"))
    assert not cells.server.exchanges
    assert kept(cells, "are you there?")


def test_75_before_the_turn_of_a_session(cells):
    """The prompt is stored at once, not with the next turn."""
    cells.ask(says("Hello."))
    is_stopped(cells.run(f"{PRESS}\n%hermes are you there?"))
    assert "are you there?" in cells.run("%hermes history").markdown


@pytest.mark.parametrize(
    "command", ["compress", "doctor", "explain it", 'map "What is it?" a.txt', "fix"]
)
def test_75_in_a_command(cells, command):
    def press(exchange):
        os.kill(cells.kernel.manager.provisioner.process.pid, signal.SIGINT)
        stall(exchange)

    (cells.folder / "a.txt").write_text("A text.\n", encoding="utf-8")
    for _ in range(3 if command == "compress" else 1):
        cells.ask(says("word " * 3000), prompt="word " * 3000)
    before = cells.goes_on()
    cells.run("1 / 0")
    cells.plays(Reply([press]))
    listing, cells.server.listing = cells.server.listing, Reply([press])
    result = cells.run(f"%hermes {command}\nprint('after')")
    cells.server.listing = listing
    is_stopped(result)
    assert "after" not in result.text
    assert len(cells.server.exchanges) == (command != "doctor")
    assert cells.goes_on()[1 : len(before)] == before[1:]
