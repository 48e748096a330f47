"""The stop button, wherever a turn is just then: it ends soon, and the conversation goes on."""

from __future__ import annotations

import time

import pytest

from tests.faults.cells import calls, says
from tests.faults.stores import run_python
from tests.loopback import Reply, chunk, event, stall, text_chunks
from tests.patience import STOPS_WITHIN

pytestmark = pytest.mark.kernel

BEGUN = [event(each) for each in text_chunks("The beginning")[:-1]]


def runs(code):
    return calls(("run_python", {"code": code}))


def command(text):
    return calls(("terminal", {"command": text, "timeout": 600}))


MOMENTS = {
    "before a word": (Reply([stall]), "", 0.5),
    "in the answer": (Reply([*BEGUN, stall]), "The beginning", 0),
    "in thought": (Reply([event(chunk({"reasoning_content": "Let me see"})), stall]), "Let me", 0),
    "in a command": (command("echo be''gun; sleep 600"), "begun", 0),
    "in a command that ignores it": (
        command("trap '' INT TERM; echo be''gun; while :; do sleep 1; done"),
        "begun",
        0,
    ),
    "in code": (runs("import time; time.sleep(600)"), "run_python", 0.5),
    "in code that waits": (runs("import asyncio; await asyncio.sleep(600)"), "run_python", 0.5),
    "in code that swallows it once": (
        runs("try:\n  import time; time.sleep(600)\nexcept KeyboardInterrupt: pass"),
        "run_python",
        0.5,
    ),
}


@pytest.mark.parametrize(("reply", "shown", "delay"), MOMENTS.values(), ids=MOMENTS)
def test_51_it_ends_soon(cells, reply, shown, delay):
    result = cells.ask(
        reply,
        says("not this"),
        options="--approve all",
        allow_stdin=True,
        stop_on=shown or "running",
        stop_delay=delay,
        timeout=90,
    )
    assert result.status == "error", result.text
    assert result.error["traceback"] == ["stopped"]
    assert result.stop_seconds < STOPS_WITHIN
    assert "topped" in result.markdown
    assert len(cells.server.exchanges) <= 1, "none, if it was stopped before it was sent"
    data = [each for each in reply.steps if isinstance(each, bytes)]
    roles = [message["role"] for message in cells.goes_on()[1:]]
    asked = ["assistant", "tool"] if any(b"tool_calls" in each for each in data) else []
    assert roles == ["user", *asked, "assistant", "user"]


@pytest.mark.parametrize("answer", ["", "y"])
def test_51_in_a_question(cells, answer):
    """A question is open, or has just been answered."""
    cells.run("ran = []")
    again = runs("ran.append(2)")
    result = cells.ask(
        runs("ran.append(1)"),
        again,
        answers=(answer,) if answer else (),
        allow_stdin=True,
        stop_on="Hermes wants to use" if not answer else "ran.append(2)",
        stop_delay=0.3,
        timeout=90,
    )
    assert result.status == "error"
    assert result.stop_seconds < STOPS_WITHIN
    assert cells.printed("print(ran)") == ("[1]" if answer else "[]")
    told = [each["content"] for each in cells.goes_on() if each["role"] == "tool"]
    assert len(told) == (2 if answer else 1)
    assert "topped" in told[-1] or "ot run" in told[-1]


@pytest.mark.slow
def test_51_in_a_write_to_the_store(cells):
    """Another program holds the file locked just then, and the row is not written yet."""
    cells.ask(says("Hello."))
    lock = """
        import sqlite3, sys
        connection = sqlite3.connect(sys.argv[1], isolation_level=None)
        connection.execute("BEGIN EXCLUSIVE")
        print("locked", flush=True)
        sys.stdin.readline()
    """
    other = run_python(lock, cells.folder / "home" / "notebook.db")
    assert other.stdout.readline() == "locked\n"
    try:
        cells.plays(Reply([*BEGUN, stall]))
        press = "threading.Timer(1.5, os.kill, (os.getpid(), signal.SIGINT)).start()"
        begun = time.monotonic()
        result = cells.run(
            f"import os, signal, threading\n{press}\n%hermes are you there?", timeout=90
        )
        assert time.monotonic() - begun < 1.5 + STOPS_WITHIN
        assert result.status == "error"
        assert result.error["traceback"] == ["stopped"]
    finally:
        other.communicate("go on\n", timeout=30)
    sent = cells.goes_on()
    assert any("are you there?" in str(each["content"]) for each in sent)
    told = cells.printed(
        "from hermes_nb.notebook.magics import _magics\n"
        "session = _magics().agent.session\n"
        "print(session.store.messages(session.id) == list(session.agent.messages))"
    )
    assert told == "True"


def test_51_again_and_again(cells):
    """One press after another, faster than anything is cleaned up."""
    result = cells.ask(
        command("trap '' INT TERM; echo be''gun; while :; do sleep 1; done"),
        options="--approve all",
        allow_stdin=True,
        stop_on="begun",
        timeout=90,
    )
    for _ in range(5):
        cells.kernel.manager.interrupt_kernel()
    assert result.status == "error"
    assert cells.printed("print('here')") == "here"


def test_51_between_two_turns_it_is_nothing(cells):
    cells.ask(says("Hello."))
    cells.kernel.manager.interrupt_kernel()
    assert cells.printed("print('here')") == "here"
