"""Nested execution in a real IPython shell, with and without a cell around it."""

from __future__ import annotations

import asyncio
import gc
import importlib
import json
import logging
import os
import signal
import sys
import threading
import time
from pathlib import Path

import nbformat
import pytest
from hermes_nb.notebook.execute.nested import execute, showing
from hermes_nb.notebook.interrupt import stoppable

from tests.cpu import within
from tests.patience import SOON

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("signals"),
    pytest.mark.filterwarnings("ignore:To exit"),  # IPython's, at each SystemExit
]


def text(execution):
    return "".join(o["text"] for o in execution.outputs if o["output_type"] == "stream")


def kinds(execution):
    return [o["output_type"] for o in execution.outputs]


def test_what_is_printed_and_the_last_value(run, shell):
    done = run("x = 20\nprint('hi')\nx + 1")
    assert done.error is None and not done.interrupted and not done.timed_out
    assert kinds(done) == ["stream", "execute_result"]
    assert text(done) == "hi\n"
    assert done.outputs[1]["data"]["text/plain"] == "21"
    assert done.outputs[1]["execution_count"] is None
    assert 0 < done.seconds < 5
    assert shell.user_ns["x"] == 20


@pytest.mark.parametrize("code", ["", "   \n", "# a comment", "x = 1", "1;", "1; # done", "None"])
def test_code_that_shows_nothing(run, code):
    assert run(code).outputs == []


def test_outputs_are_valid_nbformat(run):
    done = run(
        "import sys\nfrom IPython.display import display, HTML, JSON\nprint('a')\n"
        "print('b', file=sys.stderr)\ndisplay(HTML('<b>x</b>'), JSON({'a': float('nan')}))\n"
        "display({'text/plain': '\\ud800', 'image/png': b'123'}, raw=True)\n1/0"
    )
    cell = nbformat.v4.new_code_cell(outputs=[nbformat.from_dict(o) for o in done.outputs])
    notebook = nbformat.v4.new_notebook(cells=[cell])
    nbformat.validate(notebook)
    json.dumps(notebook, allow_nan=False).encode()


SHOWING = "import sys\nfrom IPython.display import clear_output, display\n"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        (
            "print(1); print(2); display('d'); print(3); print(4, file=sys.stderr); print(5)",
            ["1\n2\n", "'d'", "3\n", "4\n", "5\n"],
        ),
        ("print(1); clear_output(); print(2)", ["2\n"]),
        ("print(1); clear_output(wait=True)", ["1\n"]),
        ("print(1); clear_output(wait=True); print(2)", ["2\n"]),
        ("h = display('old', display_id=True); print(1); h.update('new')", ["'new'", "1\n"]),
        ("sys.stdout.close(); print('still')", ["still\n"]),
        ("import asyncio\nfor i in range(3): await asyncio.sleep(0)\nprint(i)\ni", ["2\n", "2"]),
        ("%pwd", [repr(str(Path.cwd()))]),
        ("a = 1; a", ["1"]),  # a semicolon inside does not silence
        ("'a;'", ["'a;'"]),
        ("%%capture out\nprint('captured')", []),
        ("files = !echo a\nfiles[0]", ["'a'"]),
        (
            "from threading import Thread\n"
            "ts = [Thread(target=sys.stdout.write, args=['t\\n']) for _ in range(20)]\n"
            "[t.start() for t in ts]; [t.join() for t in ts]; print()",
            ["t\n" * 20 + "\n"],
        ),
    ],
)
def test_what_is_shown_in_which_order(run, code, shown):
    done = run(code if code.startswith("%") else SHOWING + code)
    assert [o.get("text") or o["data"]["text/plain"] for o in done.outputs] == shown
    assert len({o.get("name") for o in done.outputs}) == 3 or len(shown) < 5


def test_an_error_keeps_its_colours_in_the_output_only(run, shell):
    shell.colors = "linux"
    done = run("def f():\n    return 1 / 0\nf()")
    assert done.error[:2] == ("ZeroDivisionError", "division by zero")
    assert kinds(done) == ["error"]
    assert "\x1b[" in "".join(done.outputs[0]["traceback"])
    lines = "\n".join(done.error.traceback)
    assert "\x1b" not in lines and "return 1 / 0" in lines
    huge = run("raise KeyError('x' * 10_000_000)")
    assert huge.error.ename == "KeyError" and len(json.dumps(huge.outputs)) < 500_000

    def broken(lines):
        raise RuntimeError("transformer")

    shell.input_transformers_post.append(broken)
    assert run("1").error[:2] == ("RuntimeError", "transformer")


@pytest.mark.parametrize(
    ("code", "ename"),
    [
        ("x = = 1", "SyntaxError"),
        (" x = 1\n  y", "IndentationError"),
        ("return 1", "SyntaxError"),
        ("%no_such_magic", "UsageError"),
        ("%%no_such_magic\nx", "UsageError"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("raise ExceptionGroup('g', [ValueError()])", "ExceptionGroup"),
        ("exit()", "SystemExit"),
        ("quit", "SystemExit"),
        ("%%time\n1/0", "ZeroDivisionError"),
        ("import sys\nsys.exit(3)", "SystemExit"),
        ("import sys\nsys.stdout.write(b'x')", "TypeError"),
        ("class E(Exception):\n    def __str__(self): raise ValueError\nraise E", "E"),
        ("class E(Exception):\n    def __len__(self): return 0\nraise E", "E"),
        ("class R:\n    def __repr__(self): raise ValueError('no')\nR()", "ValueError"),
        ("import asyncio\nawait asyncio.sleep(0)\n1/0", "ZeroDivisionError"),
        ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
        ("get_ipython().input_transformers_post.append(len)", None),
    ],
)
def test_errors(run, code, ename):
    done = run(code)
    assert (done.error and done.error.ename) == ename
    assert not done.timed_out
    assert done.interrupted == (ename == "KeyboardInterrupt")
    if ename == "SystemExit":
        assert text(run("print('alive')")) == "alive\n"


def test_commands_of_the_shell_and_help_are_caught(run):
    assert "from the shell" in text(run("!echo from the shell"))
    assert "Wall time" in text(run("%%time\nx = 1"))
    assert "Prints the values" in run("print?").outputs[0]["data"]["text/plain"]


def test_code_may_break_what_it_likes(run):
    done = run(
        "import sys, json, io\nprint('before')\nprint = 1\njson.dumps = None\n"
        "sys.stdout = io.StringIO()\nsys.displayhook = None\nsys.stderr = None\n'value'"
    )
    importlib.reload(json)
    assert done.outputs[0]["text"] == "before\n"
    assert sys.stdout is not None and not hasattr(sys.stdout, "_collector")
    assert run("1").outputs[0]["data"]["text/plain"] == "1"


def test_a_stream_kept_by_a_handler_writes_on_afterwards(run, capsys):
    run("import logging, sys\nlog = logging.getLogger('kept')\nlog.propagate = False\n"
        "log.addHandler(logging.StreamHandler(sys.stdout))\nlog.warning('inside')")  # fmt: skip
    assert capsys.readouterr().out == ""
    run("log.handlers[0].stream.write('')")
    logging.getLogger("kept").warning("outside")
    assert capsys.readouterr().out == "outside\n"


def test_the_cell_around_is_undisturbed(shell, capsys):
    shell.user_ns["execute"] = execute
    shell.run_cell("41", store_history=True)
    code = "1/0"
    cell = (
        f"r = await execute(get_ipython(), {code!r})\n"
        "s = await execute(get_ipython(), '99\\n%load_ext autoreload')\n"
        "t = await execute(get_ipython(), 'get_ipython().set_next_input(1)')\n"
        "assert _ == 41, _\n'mine'"
    )
    fired = []
    shell.events.register("post_run_cell", fired.append)
    shell.events.register("pre_execute", lambda: fired.append("pre"))
    result = shell.run_cell(cell, store_history=True)
    assert result.success and result.result == "mine"
    assert fired == ["pre", result]
    assert shell.execution_count == 3
    assert shell.user_ns["_"] == "mine" and shell.user_ns["__"] == 41
    assert shell.last_execution_result is result
    assert shell.payload_manager.read_payload() == []
    assert not hasattr(sys, "last_value") or not isinstance(sys.last_value, ZeroDivisionError)
    assert not vars(shell).keys() & {"_showtraceback", "ask_exit"}
    assert "trigger" not in vars(shell.events)
    assert "ZeroDivision" not in capsys.readouterr().out


def test_what_code_registers_stays_registered(run, shell):
    run("get_ipython().events.register('pre_execute', print)")
    assert print in shell.events.callbacks["pre_execute"]
    run("get_ipython().events.unregister('pre_execute', print)")
    assert print not in shell.events.callbacks["pre_execute"]


def test_autoreload_works_in_nested_code(run, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    module = tmp_path / "edited_by_agent.py"
    module.write_text("x = 1")
    run("%load_ext autoreload\n%autoreload 2\nimport edited_by_agent")
    time.sleep(0.01)
    module.write_text("x = 22")
    os.utime(module, (time.time() + 5, time.time() + 5))
    assert run("edited_by_agent.x").outputs[0]["data"]["text/plain"] == "22"


ENDLESS_REPR = """\
import time
class R:
    end = time.monotonic() + 60
    def __repr__(self):
        while time.monotonic() < self.end: pass
        return "R"
R()
"""
"""It has an end all the same: a report of a test that failed asks for it again."""


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "import time\ntime.sleep(60)",
        "while True:\n    try: pass\n    except Exception: pass",
        "import asyncio\nawait asyncio.sleep(60)",
        "import asyncio, time\nawait asyncio.sleep(0)\ntime.sleep(60)",
        "import asyncio\nawait asyncio.gather(asyncio.sleep(60), asyncio.sleep(30))",
        ENDLESS_REPR,
        "!sleep 60",
        "%time while True: pass",
    ],
)
def test_time_limit(run, code):
    done = run("print('before')\n" + code if not code.startswith("%") else code, timeout=0.3)
    assert done.timed_out and not done.interrupted
    assert done.error is not None
    assert (done.error.ename, done.error.evalue) == ("TimeLimit", "stopped after 0.3 s")
    assert done.outputs[-1]["output_type"] == "error"
    assert done.outputs[-1]["ename"] == "TimeLimit"
    assert done.seconds < SOON
    assert "interrupt.py" not in "".join(done.outputs[-1]["traceback"])


WATCHED = """\
import gc
def watch(phase, info):
    end = time.monotonic() + 0.6
    while time.monotonic() < end: pass
gc.callbacks.append(watch)
try:
    gc.collect()
    while True: pass
finally:
    gc.callbacks.remove(watch)
"""
DELETED = """\
class Endless:
    def __del__(self):
        while True: pass
Endless()
while True: pass
"""
REFERRED = """\
import weakref
def endless(_reference):
    while True: pass
class Thing: pass
thing = Thing()
reference = weakref.ref(thing, endless)
del thing
time.sleep(60)
"""


@pytest.mark.parametrize("code", [WATCHED, DELETED, REFERRED], ids=["gc", "del", "weakref"])
def test_a_signal_is_not_lost_in_a_finaliser(run, monkeypatch, code):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lost.append)
    hook = sys.unraisablehook
    done = run(f"import time\n{code}", timeout=0.3)
    assert done.timed_out and done.error.ename == "TimeLimit"
    assert done.seconds < SOON
    done = run(f"{PRESS}{code}")
    assert done.interrupted and done.error.ename == "KeyboardInterrupt"
    assert done.seconds < SOON
    assert not lost
    assert sys.unraisablehook is hook


def test_a_stop_is_not_sent_again_before_the_hook_that_sends_it_returns(run, monkeypatch):
    start = threading.Timer.start

    def slowly(timer):
        start(timer)
        time.sleep(0.3)  # a busy machine

    monkeypatch.setattr(threading.Timer, "start", slowly)
    press = "threading.Thread(target=lambda: time.sleep(.1) or os.kill(os.getpid(), 2)).start()"
    done = run(f"import os, threading, time\n{press}\n{WATCHED}", timeout=SOON)
    assert done.interrupted and done.error.ename == "KeyboardInterrupt"


def test_other_errors_of_finalisers_are_told_as_ever(run, monkeypatch):
    lost = []
    monkeypatch.setattr(sys, "unraisablehook", lambda what: lost.append(what.exc_type))
    run("class E:\n    def __del__(self): 1/0\nE()\nend = 1", timeout=5)
    assert lost == [ZeroDivisionError]


def test_code_that_ignores_being_stopped_is_left_behind(run, monkeypatch):
    monkeypatch.setattr("hermes_nb.notebook.execute.nested.GRACE", 0.2)
    done = run(
        "import asyncio\nfor i in range(16):\n    try: await asyncio.sleep(.05)\n"
        "    except asyncio.CancelledError: pass",
        timeout=0.1,
    )
    assert done.timed_out and done.error.ename == "TimeLimit"
    assert done.seconds < SOON


PRESS = """\
import os, signal, threading, time
threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
"""
"""Begins code that somebody stops while it runs, however long it took to begin."""


def test_a_stop_that_code_handles_is_still_a_stop(run):
    done = run(f"{PRESS}try: time.sleep(60)\nexcept KeyboardInterrupt: print('saved')")
    assert done.interrupted and done.error is None
    assert text(done) == "saved\n"


@pytest.mark.parametrize("code", ["while True: pass", "import asyncio\nawait asyncio.sleep(60)"])
def test_a_stop_from_just_before_is_not_lost(shell, code):
    """It has only asked for a cancellation, and code that never waits would hold that up."""

    async def main():
        with stoppable():
            os.kill(os.getpid(), signal.SIGINT)
            return await execute(shell, code)

    done = asyncio.run(main())
    assert done is None or done.interrupted  # None: the block ended by the stop itself
    assert "_showtraceback" not in vars(shell)


def hooks(shell):
    return (sys.stdout, sys.stderr, sys.displayhook, shell.display_pub, shell.display_trap.hook)


@pytest.mark.parametrize("wait", [n / 5000 for n in range(40)])
def test_a_stop_at_any_moment_leaves_the_shell_whole(shell, wait):
    # Python leaves files open when a stop strikes one of the imports of a first cell.
    asyncio.run(execute(shell, "x = 1\nx"))
    before = hooks(shell)

    async def main():
        with stoppable() as stop:
            press = threading.Timer(0.01 + wait, os.kill, (os.getpid(), signal.SIGINT))
            press.start()
            await asyncio.sleep(0.01)
            while not stop.stopped:
                done = await execute(shell, "x = 1\nx")
                if done.interrupted:
                    break
        press.join()

    asyncio.run(main())
    assert hooks(shell) == before
    assert not vars(shell).keys() & {"_showtraceback", "ask_exit"}
    assert shell.display_trap._nested_level == shell.builtin_trap._nested_level == 0
    assert asyncio.run(execute(shell, "2")).outputs[0]["data"]["text/plain"] == "2"


def test_a_stop_before_the_first_step_leaves_nothing_that_was_never_awaited(shell, monkeypatch):
    ipython = shell.run_cell_async

    def pressed(*args, **kwargs):
        coroutine = ipython(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGINT)
        return coroutine

    async def main():
        with stoppable():
            return await execute(shell, "never = 1")

    with monkeypatch.context() as patch:
        patch.setattr(shell, "run_cell_async", pressed)
        done = asyncio.run(main())
    gc.collect()  # a coroutine that was never awaited would be reported here
    assert done is None or done.interrupted
    assert "never" not in shell.user_ns


async def test_a_foreign_cancellation_stops_the_code_and_passes_through(shell):
    task = asyncio.create_task(execute(shell, "import asyncio\nawait asyncio.sleep(60)\nx = 1"))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait({task})
    assert task.cancelled()
    assert "x" not in shell.user_ns
    assert "_showtraceback" not in vars(shell)


async def test_off_the_main_thread_async_code_has_a_time_limit(shell):
    code = "import asyncio\nawait asyncio.sleep(60)"
    done = await asyncio.to_thread(lambda: asyncio.run(execute(shell, code, timeout=0.1)))
    assert done.timed_out and done.error.ename == "TimeLimit"


def test_a_forked_child_ends_where_the_agent_begins(run, shell, tmp_path):
    trace = tmp_path / "trace"
    code = "import os\npid = os.fork()\nwith open(trace, 'a') as f: f.write(f'{pid == 0} ')"
    shell.user_ns["trace"] = trace
    run(code)
    with trace.open("a") as file:
        file.write("agent ")
    _, status = os.waitpid(shell.user_ns["pid"], 0)
    assert status == 0
    assert sorted(trace.read_text().split()) == ["False", "True", "agent"]
    run("import os, asyncio\nawait asyncio.sleep(0)\npid = os.fork()\nawait asyncio.sleep(.01)")
    _, status = os.waitpid(shell.user_ns["pid"], 0)
    assert os.waitstatus_to_exitcode(status) == 1


def test_output_is_seen_from_other_threads_while_the_code_holds_the_loop(run, shell):
    heard, over = [], threading.Event()

    def look():
        while not over.wait(0.01):
            heard.append(showing(shell, None))

    looking = threading.Thread(target=look)
    looking.start()
    bar = "print('\\r\\x1b[32m', i, end=' %'); time.sleep(.06)"
    done = run(f"import time\nprint('x' * 9_000)\nprint('begun')\nfor i in range(5): {bar}")
    over.set()
    looking.join()
    assert {"begun\n 2 %", "begun\n 3 %"} <= set(heard)
    assert text(done).count("begun") == 1
    assert showing(shell, None) is None


def test_a_nested_run_is_cheap(shell):
    async def many():
        for _ in range(50):
            await execute(shell, "1 + 1", timeout=10)

    within(1, lambda: asyncio.run(many()))  # 50 ms, alone


async def test_runs_side_by_side_wait_for_each_other(shell):
    code = "import asyncio\nprint({0})\nawait asyncio.sleep(.05)\nprint({0})"
    ran = await asyncio.gather(*(execute(shell, code.format(i)) for i in range(3)))
    assert [text(done) for done in ran] == [f"{i}\n{i}\n" for i in range(3)]
    assert "_showtraceback" not in vars(shell)


def test_it_nests_and_a_run_inside_a_run_need_not_wait(run, shell):
    shell.user_ns["execute"] = execute
    inner = "r = await execute(get_ipython(), 'await asyncio.sleep(0)\\nprint(6)\\n7')"
    done = run(f"import asyncio\n{inner}\nprint(1)\nlen(r.outputs)", timeout=5)
    assert text(done) == "1\n" and done.outputs[-1]["data"]["text/plain"] == "2"
    assert text(run("print(1)")) == "1\n"
