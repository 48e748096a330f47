"""A child that writes without end, or multiplies: a cap, and the end of its whole group."""

from __future__ import annotations

import resource

import pytest

from tests.faults.cells import calls, says
from tests.faults.processes import descriptors, running, unique


def terminal(command, timeout=60):
    return calls(("terminal", {"command": command, "timeout": timeout}))


FLOODS = {
    "lines": "yes",
    "one line": "tr '\\\\0' x </dev/zero",
    "nul": "cat /dev/zero",
    "noise": "cat /dev/urandom",
    "errors": "yes >&2",
    "both": "yes & yes >&2",
    "escapes": "yes $'\\\\e[31m\\\\e]0;title\\\\a\\\\r'",
}


@pytest.mark.parametrize("command", FLOODS.values(), ids=FLOODS)
def test_54_output_without_end(story, monkeypatch, command):
    monkeypatch.setattr("hermes_nb.tools.terminal.FLOOD", 50_000_000)
    story.ask(says("Hello."))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    turn = story.ask(terminal(command.replace("\\\\", "\\")), says("That was a lot."))
    assert turn.text == "That was a lot."
    (result,) = story.results
    assert "ended after 50.0 MB of output" in result
    assert len(result) < 60_000
    assert "\x1b" not in result and "\0" not in result
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 150
    story.goes_on()


def test_54_children_of_children(story):
    mark = unique()
    few = f"(for j in 1 2 3; do (sleep 1000 {mark} & sleep 1000 {mark}) & done; wait)"
    command = f"for i in 1 2 3; do {few} & done; sleep 1000 {mark}"
    turn = story.ask(terminal(command, timeout=3), says("They are gone."))
    assert turn.text == "They are gone."
    assert "timed out" in story.results[0]
    assert not running(mark)
    story.goes_on()


def test_54_those_that_stay_when_the_shell_ends(story):
    mark = unique()
    command = f"for i in $(seq 20); do sleep 1000 {mark} & done; echo started"
    story.ask(terminal(command), says("Gone."))
    assert "what it left running was ended" in story.results[0]
    assert not running(mark)


@pytest.mark.parametrize("bomb", [":(){ :|:& };:", "bomb() { bomb | bomb & }; bomb"])
def test_54_a_fork_bomb_is_not_even_started(story, bomb):
    turn = story.ask(terminal(bomb, timeout=1), says("No."))
    assert turn.text == "No."
    assert "policy refuses" in story.results[0]
    story.goes_on()


def test_54_nothing_of_it_stays(story):
    story.ask(terminal("true"), says("Hello."))
    before = descriptors()
    for _ in range(5):
        story.ask(terminal("yes | head -c 1000000; sleep 100 & exit 3"), says("Hello."))
    assert descriptors() <= before


@pytest.mark.kernel
def test_54_in_the_kernel(cells):
    code = "import sys\nfor _ in range(100): sys.stdout.write('x' * 1_000_000)"
    result = cells.ask(
        calls(("run_python", {"code": code})),
        says("That was a lot."),
        options="--approve all",
        timeout=90,
    )
    assert result.status == "ok"
    assert len(cells.results[0]) < 60_000
    assert len(str(result.outputs)) < 300_000
    grown = "import psutil; print(psutil.Process().memory_info().rss // 10**6)"
    assert int(cells.printed(grown)) < 600
