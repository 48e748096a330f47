"""A tool that hangs is ended when its time is up, with everything that it has started."""

from __future__ import annotations

import asyncio
import time

import pytest
from hermes_nb.tools.schema import tool

from tests.faults.cells import calls, says
from tests.faults.processes import running, unique
from tests.faults.provider import told_by
from tests.patience import until

SOON = 30.0
"""Seconds; what hangs would take 10⁶."""


COMMANDS = {
    "asleep": "sleep 1000000 {mark}",
    "in a pipe": "sleep 1000000 {mark} | cat",
    "behind the shell": "sleep 1000000 {mark} & wait",
    "in a session of its own": "setsid sleep 1000000 {mark} & sleep 1000000 {mark}",
    "left behind": "(sleep 1000000 {mark} &) ; sleep 1000000 {mark}",
    "deaf": "trap '' TERM INT HUP; while :; do sleep 1 {mark}; done",
    "stopped": "kill -STOP $$ {mark}",
    "waiting for input": "read answer; cat {mark} -; sleep 1000000 {mark}",
    "busy": "while :; do : {mark}; done",
    "output closed": "exec >&- 2>&-; sleep 1000000 {mark}",
}


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_53_a_command(story, command):
    mark = unique()
    text = command.format(mark=mark)
    begun = time.monotonic()
    turn = story.ask(calls(("terminal", {"command": text, "timeout": 1})), says("It hung."))
    assert time.monotonic() - begun < SOON
    assert turn.text == "It hung."
    assert "timed out after 1 s" in story.results[0]
    assert not running(mark) or ("setsid" in command and until(lambda: not running(mark)))
    story.goes_on()


def test_53_one_of_a_batch_holds_up_no_other(story):
    turn = story.ask(
        calls(
            ("terminal", {"command": "sleep 1000000", "timeout": 1}),
            ("write_file", {"path": "made.txt", "content": "once\n"}),
        ),
        says("One hung."),
    )
    assert turn.text == "One hung."
    assert "timed out" in story.results[0] and "made.txt" in story.results[1]


def test_53_a_tool_of_the_users_is_left_behind_by_a_stop(server, waits, home, tmp_path):
    """Nobody can end a thread; the turn ends all the same."""

    @tool
    def hangs() -> str:
        """Hang."""
        time.sleep(60)
        return ""

    server.replies[:] = [calls(("hangs", {}))]
    with told_by(server, home, tmp_path / "work", tools=[hangs]) as story:

        async def stopped():
            begun = asyncio.Event()

            async def turn():
                async for event in story.hermes.stream("go"):
                    if type(event).__name__ == "ToolStarted":
                        begun.set()

            task = asyncio.create_task(turn())
            await asyncio.wait_for(begun.wait(), SOON)
            task.cancel()
            await asyncio.wait({task}, timeout=SOON)
            assert task.cancelled()
            await story.hermes.__aexit__(None, None, None)

        begun = time.monotonic()
        asyncio.run(stopped())
        assert time.monotonic() - begun < SOON
        roles = [each.role for each in story.hermes.messages]
        assert roles == "user assistant tool assistant".split()
        story.goes_on()


HANGS = {
    "asleep": "import time; time.sleep(1000000)",
    "waiting": "import asyncio; await asyncio.sleep(1000000)",
    "busy": "while True: pass",
    "swallowing": "while True:\n  try: import time; time.sleep(1)\n  except Exception: pass",
    "in a child": "import subprocess; subprocess.run(['sleep', '1000000'])",
    "in a shell": "!sleep 1000000",
    "for a lock": "import threading; threading.Event().wait()",
}


@pytest.fixture
def hurried(cells):
    """Give code in the kernel a second instead of a minute."""
    defaults = "from hermes_nb.notebook.run_tools import kernel_tools\n"
    defaults += "kernel_tools.__kwdefaults__['timeout'] = {}\n%hermes config vision auto"
    assert cells.run(defaults.format(1.0)).status == "ok"
    yield cells
    assert cells.run(defaults.format(60.0)).status == "ok"


@pytest.mark.kernel
@pytest.mark.slow
def test_53_code_in_the_kernel(hurried):
    for code in HANGS.values():
        begun = time.monotonic()
        result = hurried.ask(
            calls(("run_python", {"code": code})),
            says("It hung."),
            options="--new --approve all",
            timeout=90,
        )
        assert time.monotonic() - begun < SOON
        assert result.status == "ok"
        assert "stopped after 1 s" in hurried.results[0], code
