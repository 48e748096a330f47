"""Cells that take long while a turn runs next to them: the turn sleeps until they have ended."""

from __future__ import annotations

import pytest

from tests.beside import ASK, PINS, beside_kernel

pytestmark = [pytest.mark.kernel, pytest.mark.timeout(180)]

RUNNING = "◌"


@pytest.fixture(scope="module", params=list(PINS))
def cells(request, tmp_path_factory):
    with beside_kernel(tmp_path_factory.mktemp("long"), request.param) as running:
        running.page = True
        running.run("frontend.QUICK = frontend.SILENT = 10")  # there is a page to wait for
        yield running


@pytest.fixture(autouse=True)
def _fresh(cells):
    cells.control(stop="")
    cells.run("%hermes wait\n%hermes new")
    cells.errors.clear()
    cells.notebook.clear()


def begin(cells, steps, notebook):
    """Start a turn in a notebook with these cells; the agent has seen them."""
    cells.notebook |= notebook
    cells.run(f"plays(call('notebook_outline'), {steps}, delay=0.01)")
    cells.run(f"{ASK}Train it", "turn")


def end(cells):
    """Wait for the end of the turn; return the last tool result and the number of requests."""
    cells.until(lambda: RUNNING not in cells.text("turn"))
    told = "print([m.text for m in agent().session.messages if m.role == 'tool'][-1])"
    return cells.run(told)


@pytest.mark.parametrize("pause", ["time.sleep(0.2)", "await asyncio.sleep(0.2)"])
def test_a_turn_sleeps_until_the_users_cell_has_ended(cells, pause):
    source = f"for i in range(5): {pause}; print('epoch', i)"
    cells.notebook["train-1"] = source
    begin(cells, "call('wait_for', cell='train-1'), 'It has trained.'", {})
    cells.send(source, "train-1")
    told = end(cells)
    assert "has run; waited" in told
    assert "epoch 0\nepoch 1\nepoch 2\nepoch 3\nepoch 4" in told
    assert "It has trained." in cells.text("turn")


def test_a_foreground_turn_does_not_wait(cells):
    cells.notebook["mine"] = "1"
    cells.run("plays(call('notebook_outline'), call('wait_for', cell='mine'), 'No.', delay=0.2)")
    cells.send("%%hermes --approve all\nWait", "turn")
    cells.send("1", "mine")
    cells.until(lambda: cells.done("turn"))
    assert "runs after this turn" in end(cells)
