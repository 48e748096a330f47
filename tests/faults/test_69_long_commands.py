"""A command that would take long to judge: it is decided in time that grows with its length."""

from __future__ import annotations

import pytest

from tests.contract.safety.holes import make_holes
from tests.cpu import within
from tests.faults.cells import calls, says
from tests.faults.unasked import nobody_to_ask, refused, results_of

LONG = {
    "find": "find . -exec " * 30,
    "braces": "{a,b}" * 3_900,
    "brackets": "(" * 10_000,
    "substitutions": "$(" * 9_000,
    "quotes": "'" * 10_001,
    "here-documents": "cat <<a\n" * 1_200,
    "globs": "cat " + "*/" * 4_900,
    "many globs": "cat " + "/usr/*/* " * 1_000,
    "commands": "git status;" * 900,
    "characters": "echo " + "x" * 40_000,
}


@pytest.mark.parametrize("command", LONG.values(), ids=LONG)
def test_69_it_is_decided_in_time(server, home, tmp_path, command):
    with nobody_to_ask(server, home, make_holes(tmp_path)) as story:
        results_of(story, ["ls"])
        # The whole turn, of which the verdict has 200 ms.
        (told,) = within(1.5, results_of, story, [command], timeout=1, threads=True)
    assert refused(told) or "[exit " in told or "[timed out " in told


JUDGED_WHEN_TOLD = """
import threading
from hermes_nb.safety import guard
judge, told, judged = guard.judge, threading.Event(), threading.Event()
def slowly(*words):
    print("judging", flush=True)
    told.wait(90)
    judged.set()
    return judge(*words)
guard.judge = slowly
"""


@pytest.mark.kernel
def test_69_a_stop_is_handled_first(cells):
    cells.run(JUDGED_WHEN_TOLD)
    command = calls(("terminal", {"command": f"touch ran; echo {'x ' * 4_000}"}))
    how = {"options": "--approve all", "stop_on": "judging", "allow_stdin": True, "timeout": 90}
    result = cells.ask(command, says("not this"), **how)
    told = cells.printed("guard.judge = judge; told.set(); print(judged.wait(90))")
    assert result.error["traceback"] == ["stopped"]
    assert told == "True", "the verdict came after the end of the turn"
    assert cells.goes_on()[-2]["role"] == "assistant"
    assert not (cells.folder / "ran").exists()
