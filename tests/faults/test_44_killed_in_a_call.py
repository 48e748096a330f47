"""Killed between a call and its result: the session that is resumed is one a provider takes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path

import pytest
from hermes_nb.core.loop import LOST_RESULT
from hermes_nb.core.messages import mend
from hermes_nb.memory.sessions import SqliteStore

from tests.conftest import every_call_has_one_result
from tests.faults.cells import calls, environment, says
from tests.faults.provider import check_request, told_by
from tests.faults.stores import is_intact
from tests.loopback import Loopback, Reply, chunk, event, stall

WAITS = "touch begun; sleep 1000"
WRITES = ("write_file", {"path": "made.txt", "content": "once\n"})


def hangs():
    return calls(("terminal", {"command": WAITS, "timeout": 600}))


MOMENTS = {
    "in a call": ([hangs()], ["begun"], [LOST_RESULT]),
    "in the second of two": (
        [calls(WRITES, ("terminal", {"command": WAITS, "timeout": 600}))],
        ["begun", "made.txt"],
        ["made.txt", LOST_RESULT],
    ),
    "behind a result": ([calls(WRITES), Reply([stall])], ["made.txt"], ["made.txt"]),
    "in the answer": ([Reply([event(chunk({"content": "Half of "})), stall])], [], []),
}


@pytest.fixture
def run(server, home, tmp_path):
    """Return a function that starts one turn of the session `work` in a process of its own."""
    env = environment(server, tmp_path) | {"HERMES_HOME": str(home)}
    work = tmp_path / "work"
    work.mkdir()

    def start(prompt):
        command = [sys.executable, "-m", "hermes_nb.cli", "run", "--session", "work"]
        return subprocess.Popen(
            [*command, "--approve", "all", prompt],
            cwd=work,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    return start


def until(happened, process):
    """Wait for something that a process does; fail with what it said when it ends before."""
    deadline = time.monotonic() + 60
    while not happened():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize(("replies", "made", "results"), MOMENTS.values(), ids=MOMENTS)
def test_44_it_is_resumed(run, server, home, tmp_path, replies, made, results):
    server.replies[:] = replies
    process = run("do it")
    work = tmp_path / "work"
    until(
        lambda: (
            len(server.exchanges) == len(replies) and all((work / name).exists() for name in made)
        ),
        process,
    )
    time.sleep(0.2)  # what follows on its heels, such as a row, may have happened or not
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    _end_what_is_left(work)
    assert is_intact(home / "notebook.db")
    server.exchanges.clear()
    server.replies[:] = [says("I know where we were.")]
    resumed = run("and now?")
    out, err = resumed.communicate(timeout=120)
    assert resumed.returncode == 0, err
    assert out == "I know where we were.\n"
    (body,) = server.bodies
    check_request(body)
    messages = body["messages"]
    assert messages[1]["content"].startswith("do it")
    assert messages[-1]["content"].startswith("and now?")
    told = [message["content"] for message in messages if message["role"] == "tool"]
    assert len(told) == len(results)
    assert all(part in each for part, each in zip(results, told, strict=True))
    with closing(SqliteStore(home / "notebook.db")) as store:
        rows = store.messages(store.sessions()[0].id)
    assert mend(rows, note="anything") == rows, (
        "what closed it is stored: it is sent again as it was"
    )


def _end_what_is_left(work):
    """End the command of the killed process; nobody else would."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (entry / "cwd").readlink() == work:
                os.kill(int(entry.name), signal.SIGKILL)


def test_44_a_store_that_was_cut_is_mended_in_every_place(home, tmp_path):
    """Whatever prefix of a turn's rows a kill leaves: mended, it has one result a call."""
    work = tmp_path / "work"
    replies = calls(WRITES, ("read_file", {"path": "made.txt"})), says("Done.")
    with Loopback(*replies) as server, told_by(server, home, work) as story:
        rows = list(story.ask(*replies, prompt="do it").messages)
    assert [row.role for row in rows] == ["user", "assistant", "tool", "tool", "assistant"]
    for cut in range(len(rows) + 1):
        mended = mend(rows[:cut], note=LOST_RESULT)
        assert every_call_has_one_result(mended)
        assert mended[:cut] == rows[:cut]
        assert not mended or mended[-1].role == "assistant"
