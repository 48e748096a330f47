"""Commands: how they run and end, and what is shown of what they print."""

from __future__ import annotations

import asyncio
import os
import resource
import sys
import time
from pathlib import Path

import psutil
import pytest
from hermes_nb.core.errors import ToolError, TurnInterrupted
from hermes_nb.core.events import ToolProgress
from hermes_nb.core.tools import Risk
from hermes_nb.tools.process_output import HEAD, TAIL, WHOLE, Capture
from hermes_nb.tools.terminal import terminal
from hypothesis import given
from hypothesis import strategies as st

from tests.patience import SOON, until
from tests.tools.support import context_for, python, stopped
from tests.tools.support import told as run

pytestmark = pytest.mark.slow


@pytest.fixture
def shell(tmp_path):
    tool = terminal(tmp_path).get("terminal")

    def call(command, **arguments):
        return run(tool, command=command, **arguments)

    call.tool = tool
    return call


def alive(marker):
    """Return whether a process whose command line contains `marker` runs."""
    for process in psutil.process_iter():
        try:
            if process.status() != psutil.STATUS_ZOMBIE and marker in " ".join(process.cmdline()):
                return True
        except psutil.Error:
            continue
    return False


def gone(marker):
    """Wait a moment for such a process to be gone."""
    return until(lambda: not alive(marker))


def marker():
    """Return a duration for `sleep` that nothing else sleeps."""
    return f"1000.{time.monotonic_ns()}"


def test_the_tool(shell):
    assert (shell.tool.risk, shell.tool.exclusive) == (Risk.EXECUTE, True)
    assert shell.tool.describe({"command": "ls\x1b[31m"}) == "ls\\x1b[31m"
    assert "at most 600" in shell.tool.check({"command": "ls", "timeout": 1000})
    assert shell.tool.available() == ""


def test_output_in_order_the_exit_code_and_no_input(shell):
    assert shell("echo a; echo b >&2; echo c; exit 3").startswith("a\nb\nc\n[exit 3, ")
    assert shell("true").startswith("[exit 0, ")
    assert "[exit 137 (SIGKILL), " in shell("kill -9 $$")
    assert "[exit 127, " in shell("no-such-command-at-all")
    assert shell("cat; read x; echo $?").startswith("1\n")


def test_it_runs_where_it_should(shell, tmp_path):
    (tmp_path / "sub").mkdir()
    assert shell("pwd").startswith(f"{tmp_path}\n")
    assert shell("pwd", workdir="sub").startswith(f"{tmp_path}/sub\n")
    refused = {"/": "outside", "no": "no file", "../": "outside", "a" * 300: "name is too long"}
    for workdir, said in refused.items():
        with pytest.raises(ToolError, match=said):
            shell("pwd", workdir=workdir)


def test_the_environment_is_an_allowlist(shell, monkeypatch):
    for name in ("OPENAI_API_KEY", "GITHUB_TOKEN", "MY_SECRET", "PGPASSWORD", "CONDA_TOKEN", "FOO"):
        monkeypatch.setenv(name, "leaked")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:leaked@proxy")
    shown = shell("env")
    assert "leaked" not in shown
    assert "TERM=dumb" in shown
    assert "GIT_TERMINAL_PROMPT=0" in shown
    assert "HOME=" in shown


def test_what_a_terminal_would_do_is_undone(shell):
    assert shell(r"printf '\033[31mred\033[0m\r10%%\r100%%\na\377b'").startswith("100%\na\ufffdb\n")


def test_one_that_left_the_group_does_not_hold_it_up(shell):
    started = time.monotonic()
    assert shell("setsid sleep 30 & echo started").startswith("started\n[exit 0")
    assert time.monotonic() - started < SOON


def cancelled_after(tool, command, *delays):
    """Cancel a command after each delay; return how long it took to end from the first one on."""

    async def body():
        task = asyncio.create_task(tool.run(context_for(tool), {"command": command}))
        await asyncio.sleep(delays[0])
        started = time.monotonic()
        task.cancel()
        for delay in delays[1:]:
            await asyncio.sleep(delay)
            task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return time.monotonic() - started

    return asyncio.run(body())


@pytest.mark.parametrize(
    ("command", "delays"),
    [
        ("sleep {0} & sleep {0}", (0.4,)),
        ("trap '' TERM; sleep {0}; sleep {0}", (0.4,)),
        ("trap '' TERM; sleep {0}", (0.3, 0.05)),
        *(("sleep {0}", (delay,)) for delay in (0, 0.001, 0.003, 0.01, 0.03)),
    ],
)
def test_a_cancellation_at_any_moment_kills_the_group_and_goes_on(shell, command, delays):
    mark = marker()
    assert cancelled_after(shell.tool, command.format(mark), *delays) < SOON
    assert gone(mark)


def test_the_stop_event_ends_it(shell):
    context = context_for(shell.tool, stop=stopped())
    with pytest.raises(TurnInterrupted):
        run(shell.tool, within=context, command="sleep 1000")


def test_a_gigabyte_neither_grows_memory_nor_takes_for_ever(shell):
    shell("true")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    shown = shell("yes | head -c 1G; echo the end", timeout=120)
    assert time.monotonic() - started < 60
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000
    assert len(shown) < 50_000
    assert shown.startswith("y\ny\n")
    assert "bytes dropped" in shown
    assert "the end\n[exit 0, " in shown


@pytest.mark.skipif(sys.platform != "linux", reason="the limit is Linux's")
def test_forks_without_end_meet_a_limit(open_path):
    """The limit binds ordinary users; root becomes one for this."""
    if os.geteuid() != 0:
        pytest.skip("needs root to become somebody else")
    mark = marker()
    code = f"""
import os
from pathlib import Path
from tests.tools.support import told as run
from hermes_nb.tools import terminal as command_run, terminal
tool = terminal.terminal(Path({str(open_path)!r})).get("terminal")
run(tool, command="true")  # imports what nobody may not read
command_run.MORE_PROCESSES = 100 - int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
os.setuid(65534)
print(run(tool, command="ulimit -Hu; for i in $(seq 500); do sleep {mark} & done", timeout=6))
"""
    shown = python(code).stdout
    assert int(shown.split()[0]) < 200, shown
    assert "fork" in shown and "esource temporarily unavailable" in shown
    assert "timed out" in shown  # bash waits for room
    assert gone(mark)


def test_signs_of_life_are_few(shell):
    events = []
    context = context_for(shell.tool, emit=events.append)
    command = "for i in $(seq 60); do echo line $i; sleep 0.02; done"
    run(shell.tool, within=context, command=command)
    assert 1 <= len(events) <= 8
    assert all(isinstance(event, ToolProgress) for event in events)
    lines = events[-1].text.strip().splitlines()
    assert len(lines) > 5 and all(line.startswith("line ") for line in lines)


def test_it_works_on_a_loop_of_another_thread(shell):
    async def body():
        return await asyncio.to_thread(shell, "echo x")

    assert asyncio.run(body()).startswith("x\n")


def test_no_shell_and_no_start(tmp_path, monkeypatch):
    tool = terminal(tmp_path).get("terminal")
    with pytest.raises(ToolError, match="NUL"):
        run(tool, command="a\0b")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ToolError, match="neither bash nor sh"):
        run(tool, command="ls")


@given(st.lists(st.binary(max_size=700_000), max_size=6))
def test_a_capture_keeps_head_and_tail(chunks):
    capture = Capture()
    for chunk in chunks:
        capture.add(chunk)
    data = b"".join(chunks)
    assert capture.size == len(data)
    text = capture.text()
    if len(data) <= WHOLE:
        assert text == data.decode("utf-8", "replace")
    else:
        assert text.startswith(data[:HEAD].decode("utf-8", "replace"))
        assert text.endswith(data[-TAIL:].decode("utf-8", "replace"))
        assert f"{len(data) - HEAD - TAIL:,} bytes dropped" in text


def test_a_relative_root(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert run(terminal(Path()).get("terminal"), command="pwd").startswith(f"{tmp_path}\n")


def test_a_command_too_long_for_the_system_says_what_to_do(shell):
    with pytest.raises(ToolError, match="write_file"):
        shell("cat > a.csv <<'END'\n" + "1,2,3\n" * 500_000 + "END")
