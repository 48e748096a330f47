"""`%%hermes --what-if`: a turn on a copy of the variables, which the user keeps or drops."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import CallDelta
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.turn import TurnOptions

from tests.notebook.conftest import shell, signals
from tests.notebook.execute.test_try_python import children
from tests.safety.seat import seated

__all__ = ["shell", "signals"]

pytestmark = [pytest.mark.usefixtures("signals"), pytest.mark.kernel]


def tried(seat, *steps):
    """Take a turn with `--what-if`; return the results of its calls."""
    seat.model.steps[len(seat.model.requests) :] = [*steps, *["Done."] * 4]
    before = len(seat.results)
    with seat._at_it():
        asyncio.run(seat.agent.ask("go", TurnOptions(what_if=True)))
    return [each.text for each in seat.results[before:]]


@pytest.fixture
def seat(shell, tmp_path):
    tmp_path.chmod(0o755)
    with seated(shell, tmp_path, answer="y") as seat:
        seat.run("rows = [3, 1, 2]")
        yield seat


FIRST = call("run_python", code="rows.sort()\nmore = [0]")
FAILS = call("run_python", code="more.append(rows[0])\n1 / 0")
LOOKS = call("try_python", code="print(rows, more)")


def test_a_turn_runs_on_a_copy_and_is_kept(seat):
    rows = seat.shell.user_ns["rows"]
    edit = call("write_file", path="made.txt", content="x")
    told = tried(seat, FIRST, FAILS, LOOKS, edit, call("insert_cell", source="1"))
    assert "[in the copy only: new more: list, 1 item | changed rows: list, 3 items]" in told[0]
    assert "ZeroDivisionError" in told[1]
    assert "[1, 2, 3] [0, 1]" in told[2]
    assert all("the user wants to see first what this turn would do" in each for each in told[3:])
    assert "run_python runs on a copy" in seat.model.requests[0].messages[-1].text
    assert rows == [3, 1, 2] and "more" not in seat.shell.user_ns
    assert seat.keyboard.asked == 0 and not Path(seat.work, "made.txt").exists()
    (line,) = [each for each in seat.agent.last.plain().split("\n") if each[:1] == "±"]
    assert "rows changed" in line and "+ more" in line
    assert line.endswith("(only in a copy) · %hermes keep · %hermes drop")

    shown = seat.command("keep")
    question = seat.said().partition("Hermes wants to use run_python")[2]
    assert seat.keyboard.asked == 1 and "more.append(rows[0])" in question
    assert "print(rows, more)" not in question
    assert rows == [1, 2, 3] and seat.shell.user_ns["more"] == [0, 1]
    assert shown.startswith("**Turn 1 is kept.**") and "rows changed" in shown
    with pytest.raises(ConfigError, match="there is nothing to keep or drop"):
        seat.command("keep")
    seat.turn("next")
    assert "The user kept the code of turn 1" in seat.model.requests[-1].messages[-1].text
    assert "is undone" in seat.command("undo")
    assert rows == [3, 1, 2] and "more" not in seat.shell.user_ns


def test_what_is_declined_or_dropped_leaves_nothing(seat):
    tried(seat, FIRST)
    seat.keyboard.answer = "n"
    assert "Nothing was kept: run_python was not run: the user declined" in seat.command("keep 1")
    with pytest.raises(ConfigError, match="there is nothing to keep or drop"):
        seat.command("drop 2")
    assert seat.command("drop") == "Turn 1 is dropped; nothing has changed."
    with pytest.raises(ConfigError, match="there is nothing to keep or drop"):
        seat.command("keep")
    assert seat.shell.user_ns["rows"] == [3, 1, 2] and "more" not in seat.shell.user_ns
    seat.turn("next")
    assert "it never ran in the kernel" in seat.model.requests[-1].messages[-1].text


def test_kept_code_that_fails_in_the_kernel_says_where(seat):
    tried(seat, FIRST, call("run_python", code="last = rows[2]"), call("run_python", code="a = 1"))
    seat.run("rows.pop()")
    shown = seat.command("keep")
    assert "IndexError" in shown and "the rest did not run" in shown
    assert seat.shell.user_ns["more"] == [0] and "a" not in seat.shell.user_ns


def test_a_copy_that_has_ended_is_not_replaced(seat):
    ends = call("run_python", code="import os; os._exit(3)")
    told = tried(seat, FIRST, ends, call("run_python", code="more"))
    assert "ended without a result" in told[1] and "the copy has ended" in told[2]


class Writing(ScriptedModel):
    """Writes a call until the process for its code is there."""

    async def stream(self, request):
        if not self.requests:
            yield CallDelta(0, "try_python", "")
            async with asyncio.timeout(30):
                while not children():
                    await asyncio.sleep(0.05)
        async for each in super().stream(request):
            yield each


def test_the_process_starts_while_the_model_writes_the_code(seat):
    seat.agent.use(Writing([call("try_python", code="sorted(rows)"), "Done."]))
    with seat._at_it():
        asyncio.run(seat.agent.ask("go"))
    assert "[1, 2, 3]" in seat.results[-1].text
