"""Kernels that are stopped or restarted at any moment."""

from __future__ import annotations

import os
import re
import signal
import time

import pytest

from tests.faults.cells import Cells, environment, served_kernel
from tests.faults.provider import check_request
from tests.faults.stores import run_python
from tests.kernels import kernel
from tests.loopback import Reply, calls, chunk, event, says, stall, text_chunks
from tests.patience import STOPS_WITHIN

pytestmark = pytest.mark.kernel


# 51: The stop button, wherever a turn is just then: it ends soon, and the conversation goes on.
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
    is_stopped(result)
    assert result.stop_seconds < STOPS_WITHIN
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
        is_stopped(result)
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
    cells.ask(
        command("trap '' INT TERM; echo be''gun; while :; do sleep 1; done"),
        options="--approve all",
        allow_stdin=True,
        stop_on="begun",
        timeout=90,
    )
    for _ in range(5):
        cells.kernel.manager.interrupt_kernel()
    assert cells.printed("print('here')") == "here"


def test_51_between_two_turns_it_is_nothing(cells):
    cells.ask(says("Hello."))
    cells.kernel.manager.interrupt_kernel()
    assert cells.printed("print('here')") == "here"


# 52: The kernel is restarted in the middle of a turn: the next one offers to go on from there.
DEATHS = {
    "in the answer": (Reply([event(chunk({"content": "The beginning"})), stall]), 0),
    "in a command": (calls(("terminal", {"command": "touch begun; sleep 600"})), 1),
    "in code that ends the kernel": (calls(("run_python", {"code": "import os; os._exit(1)"})), 1),
}


@pytest.mark.slow
@pytest.mark.parametrize(("reply", "results"), DEATHS.values(), ids=DEATHS)
def test_52_it_goes_on_from_there(server, tmp_path, reply, results):
    notebook = tmp_path / "work.ipynb"
    notebook.write_text("{}", encoding="utf-8")
    env = environment(server, tmp_path, JPY_SESSION_NAME=str(notebook))
    with kernel(env, cwd=str(tmp_path)) as first:
        first.run("%load_ext hermes_nb")
        server.replies[:] = [reply]
        first.client.execute("%%hermes --approve all\nmy colour is blue, do it")
        deadline = time.monotonic() + 60
        while not (server.exchanges and (not results or _begun(tmp_path, first))):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        second = first.killed_and_restarted()
        try:
            server.exchanges.clear()
            server.replies[:] = [says("Blue it is.")]
            second.run("%load_ext hermes_nb")
            result = second.run("%hermes which colour?")
            assert result.status == "ok", result.error
            assert "Resumed" in result.markdown and "%hermes new" in result.markdown
            assert "Blue it is." in result.markdown
        finally:
            second.client.stop_channels()
    (body,) = server.bodies
    check_request(body)
    assert "my colour is blue" in body["messages"][1]["content"]
    told = [each["content"] for each in body["messages"] if each["role"] == "tool"]
    assert len(told) == results
    assert all("the process ended" in each for each in told)


def _begun(folder, running):
    return (folder / "begun").exists() or not running.manager.is_alive()


# 75: A stop in any command and in the first import: one line, the prompt kept, nothing after it.
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
    """It failed, so that a run of all cells ends there, and says once that it was stopped."""
    assert result.status == "error", result.text
    told = "".join(result.error["traceback"]) if result.error else ""
    unfolded = re.sub(
        r"(?s)<details>.*?</details>|<sub>.*?</sub>|^\|.*?\|$", "", result.markdown, flags=re.M
    )
    assert (unfolded + told).lower().count("stopped") == 1, result
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
        is_stopped(cells.ask(says("not this"), prompt="are you there?", ends="error"))
        assert not server.exchanges
        assert kept(cells, "are you there?")


@pytest.mark.parametrize("module", ["hermes_nb.notebook.magics", "hermes_nb.notebook.kernel_agent"])
def test_75_in_a_kernel_that_loads_it_when_needed(tmp_path, server, module):
    with kernel(environment(server, tmp_path), cwd=str(tmp_path)) as running:
        cells = Cells(running, server, tmp_path)
        cells.run("from hermes_nb.notebook import lazy\nlazy.watch(get_ipython())")
        cells.run(PRESS_ON_IMPORT.format(module=module))
        is_stopped(cells.ask(says("not this"), prompt="are you there?", ends="error"))
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
