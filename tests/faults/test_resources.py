"""Tools that hang or flood, and what must not run out: descriptors, memory, threads."""

from __future__ import annotations

import asyncio
import json
import resource
import time

import pytest
from hermes_nb.tools.schema import tool

from tests.faults.cells import served_kernel
from tests.faults.processes import descriptors, running, unique
from tests.faults.provider import told_by
from tests.faults.stores import finished, run_python
from tests.loopback import DONE, Loopback, Reply, calls, chunk, disconnect, event, failure, says
from tests.patience import until

# 53: A tool that hangs is ended when its time is up, with everything that it has started.
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
    assert until(lambda: not running(mark))


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


# 54: A child that writes without end, or multiplies: a cap, and the end of its whole group.
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
    assert "stopped after 50.0 MB of output" in result
    assert len(result) < 60_000
    assert "\x1b" not in result and "\0" not in result
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 150


def test_54_children_of_children(story):
    mark = unique()
    few = f"(for j in 1 2 3; do (sleep 1000 {mark} & sleep 1000 {mark}) & done; wait)"
    command = f"for i in 1 2 3; do {few} & done; sleep 1000 {mark}"
    turn = story.ask(terminal(command, timeout=3), says("They are gone."))
    assert turn.text == "They are gone."
    assert "timed out" in story.results[0]
    assert until(lambda: not running(mark))


def test_54_those_that_stay_when_the_shell_ends(story):
    mark = unique()
    command = f"for i in $(seq 20); do sleep 1000 {mark} & done; echo started"
    story.ask(terminal(command), says("Gone."))
    assert "its background processes were stopped" in story.results[0]
    assert until(lambda: not running(mark)), "what is killed takes its time on a busy machine"


@pytest.mark.parametrize("bomb", [":(){ :|:& };:", "bomb() { bomb | bomb & }; bomb"])
def test_54_a_fork_bomb_is_not_even_started(story, bomb):
    turn = story.ask(terminal(bomb, timeout=1), says("No."))
    assert turn.text == "No."
    assert "policy refuses" in story.results[0]


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
    assert len(cells.results[0]) < 60_000
    assert len(str(result.outputs)) < 300_000
    grown = "import psutil; print(psutil.Process().memory_info().rss // 10**6)"
    assert int(cells.printed(grown)) < 600


# 56: No descriptor is left: an error, no crash, and all is well when there are some; none leaks.
TURNS = 200

SHORT_OF_THEM = """
import contextlib, json, os, resource, sys
from pathlib import Path
from hermes_nb import Hermes
from hermes_nb.memory.sessions import SqliteStore
url, work, home = sys.argv[1:]
told = []
with Hermes("m", base_url=url, cwd=work, home=home, approve="all") as hermes:
    hermes.progress = False
    told.append(hermes.ask("warm up").reason)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    for spare in (0, 1, 2, 3, 4, 6, 8, 10, 12):
        held = []
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for each in held[:spare]:
            os.close(each)
        turn = hermes.ask("with few of them")
        results = [each.text for each in turn.messages if each.role == "tool"]
        told.append([turn.reason, turn.error, results])
        for each in held[spare:]:
            os.close(each)
    turn = hermes.ask("and with enough")
    told.append([turn.reason, turn.text, turn.error])
    store = SqliteStore(Path(home) / 'notebook.db')
    saved = store.messages(hermes.session_id) == hermes.messages
    store.close()
print(json.dumps([told, saved]))
"""


def test_56_an_error_and_no_crash(home, tmp_path):
    """With so many to spare, a turn works or fails in one line; with enough it works."""
    work = tmp_path / "work"
    work.mkdir()

    class Answers(Loopback):
        def take(self, exchange):
            super().take(exchange)
            asked = exchange.json["messages"][-1]["role"] == "user"
            return calls(("terminal", {"command": "echo hi"})) if asked else says("Done.")

    with Answers(says("unset")) as server:
        _, line = ["", *finished(run_python(SHORT_OF_THEM, server.url, work, home))]
    (first, *few, last), saved = json.loads(line)
    assert first == "answered"
    for reason, error, _ in few:
        assert reason in ("answered", "failed") and "\n" not in error
    assert few[0][0] == "failed" or "could not be started" in few[0][2][0]
    assert few[-1][0] == "answered" and "hi" in few[-1][2][0]
    assert last == ["answered", "Done.", ""]
    assert saved, "what could not be stored then is stored now"


@pytest.mark.slow
def test_56_two_hundred_turns_leave_nothing_open(story):
    """Reads, writes, commands, failures and breaks: none of them costs a descriptor."""
    read = ("read_file", {"path": "a.txt"})
    write = ("write_file", {"path": "a.txt", "content": "x"})
    kinds = [
        [calls(write, read), says("Done.")],
        [calls(("terminal", {"command": "true"})), says("Done.")],
        [failure(500), says("Done.")],
        [Reply([event(chunk({"content": "Half"})), disconnect]), says("Done.")],
        [says("Done.")],
    ]
    for replies in kinds:
        story.ask(*replies)
    before = descriptors()
    for n in range(TURNS):
        story.server.replies[:] = kinds[n % len(kinds)]
        story.server.exchanges.clear()
        assert story.hermes.ask("go").reason == "answered"
    assert descriptors() <= before


# 57: Memory runs out: the call or the turn fails in one line, and the kernel lives.
HOARDING = """
import json, resource, sys
from pathlib import Path
from hermes_nb import Hermes
from hermes_nb.tools.schema import tool

@tool
def hoards() -> str:
    '''Take more than there is.'''
    return "x" * 10**10

url, work, home = sys.argv[1:]
told = []
options = {"cwd": work, "home": home, "approve": "all", "tools": ["files", hoards]}
with Hermes("m", base_url=url, **options) as hermes:
    hermes.progress = False
    told.append(hermes.ask("warm up").reason)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + 200 * 2**20, resource.RLIM_INFINITY))
    turn = hermes.ask("hoard")
    told.append([turn.reason, [m.text for m in turn.messages if m.role == "tool"]])
    turn = hermes.ask("say much")
    told.append([turn.reason, turn.error])
    resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    turn = hermes.ask("and now?")
    told.append([turn.reason, turn.text])
print(json.dumps(told))
"""


def much():
    """Return a reply of 60 MB in large pieces, more than a process with little left can read."""
    piece = event(
        chunk({"tool_calls": [{"index": 0, "function": {"arguments": "x" * 30_000_000}}]})
    )
    return Reply([piece, piece, DONE])


def test_57_a_tool_and_a_reply(home, tmp_path):
    work = tmp_path / "work"
    work.mkdir()
    replies = [says("Hello."), calls(("hoards", {})), says("Too much.")]

    class Answers(Loopback):
        def take(self, exchange):
            super().take(exchange)
            last = exchange.json["messages"][-1]["content"]
            if "say much" in last:
                return much()
            return replies.pop(0) if replies else says("All is well.")

    with Answers(says("unset")) as server:
        (line,) = finished(run_python(HOARDING, server.url, work, home))
    first, hoarded, said, last = json.loads(line)
    assert first == "answered"
    assert hoarded[0] == "answered" and "MemoryError" in hoarded[1][0]
    assert said[0] in ("answered", "failed") and "\n" not in said[1], "cut, or out of memory"
    assert last == ["answered", "All is well."]


@pytest.mark.kernel
def test_57_in_the_kernel(cells):
    result = cells.ask(
        calls(("run_python", {"code": "x = bytearray(10**15)"})),
        calls(("run_python", {"code": "y = [[0] * 10**14 for _ in range(9)]"})),
        calls(("run_python", {"code": "print('x' * 10**15)"})),
        calls(("run_python", {"code": "print(6 * 7)"})),
        says("It lives."),
        options="--approve all",
    )
    assert "It lives." in result.markdown
    memory, lists, text, fine = cells.results
    assert all("MemoryError" in each for each in (memory, lists, text))
    assert "42" in fine


@pytest.mark.kernel
@pytest.mark.slow
def test_57_little_is_left_in_the_kernel(server, tmp_path):
    limit = (
        "import resource\nfrom pathlib import Path\n"
        "used = int(Path('/proc/self/statm').read_text().split()[0]) * resource.getpagesize()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (used + 300 * 2**20, resource.RLIM_INFINITY))"
    )
    with served_kernel(server, tmp_path) as kernel:
        server.replies[:] = [says("Hello.")]
        kernel.run("%hermes hello")
        kernel.run(limit)
        server.exchanges.clear()
        hoard = "kept = []\nwhile True: kept.append(bytearray(50 * 2**20))"
        server.replies[:] = [
            calls(("run_python", {"code": hoard})),
            calls(("run_python", {"code": "del kept"})),
            says("It lives."),
        ]
        result = kernel.run("%%hermes --approve all\nhoard")
        assert result.status == "ok", result.error
        assert "It lives." in result.markdown
        results = [m["content"] for m in server.bodies[-1]["messages"] if m["role"] == "tool"]
        assert "MemoryError" in results[0]


# 80: The extension reloaded, agents never closed, 15 times each: no descriptor, no thread is
# left.
REPEATED = """
import gc, json, sys, threading
from hermes_nb import Hermes, use_model
from hermes_nb.core import threads
from hermes_nb.models.scripted import ScriptedModel
from IPython.core.interactiveshell import InteractiveShell
from tests.faults.processes import descriptors

def reloaded():
    shell = InteractiveShell.instance()
    shell.run_cell("%reload_ext hermes_nb").raise_error()
    use_model(ScriptedModel(["Hello."]))
    shell.run_cell("%%hermes --quiet\\nhello").raise_error()

def unclosed():
    assert Hermes(ScriptedModel(["Hello."])).ask("hello").text == "Hello."

threads.IDLE_SECONDS = 0.1  # a thread that lends itself out ends so long after its last call
counts = []
for _ in range(16):
    before = set(threading.enumerate())
    globals()[sys.argv[1]]()
    gc.collect()
    for thread in set(threading.enumerate()) - before:
        if "hermes" in thread.name:
            thread.join(timeout=60)  # it was told to end
    gc.collect()
    counts.append([descriptors(), threading.active_count()])
print(json.dumps(counts))
"""


@pytest.mark.parametrize("way", ["reloaded", "unclosed"])
def test_80_nothing_is_left(way):
    first, *_, last = json.loads(finished(run_python(REPEATED, way))[-1])
    assert last == first
