"""Run a pipeline of programs with one output pipe, within time and memory limits.

Each child leads its own session, so that its descendants can be killed with it, including those
that it leaves running when it exits. A program that starts its own session (`setsid`) survives a
command that exits normally, as in a terminal; an interrupt finds it by the mark in its environment
(`kill_marked`). If this process is killed, a watcher kills the process groups.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

from hermes_nb.core.errors import TurnInterrupted
from hermes_nb.core.threads import in_thread

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""
STOP_GRACE = 0.5
"""Seconds between SIGTERM and SIGKILL after an interrupt, when the user is waiting."""
_DRAIN = 0.25
"""Seconds to read the pipe after the child has exited, if another process keeps it open."""
_TICK = 0.1
_LOOK = 0.005
_CHUNK = 1 << 18
_PIPE = 1 << 20

MARK = "HERMES_NB_COMMAND"
"""The environment variable that identifies a command's processes."""

Target = Literal["out", "err", "null"]
Sink = Callable[[bytes], bool]
"""Takes a chunk of output; returns False to end the command."""


@dataclass(frozen=True, slots=True)
class ProcessResult:
    """How a command ended."""

    code: int
    """The last program's exit code; negative for a signal."""
    seconds: float
    """Duration in seconds."""
    timed_out: bool = False
    """True if it reached its timeout."""
    cut_off: bool = False
    """True if the sink refused more output."""
    left_behind: bool = False
    """True if child processes were still running when it ended; they were killed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program in a pipeline."""

    command: Sequence[str]
    """The program and its arguments."""
    env: Mapping[str, str]
    """The environment variables."""
    stdin: Path | None = None
    """File for standard input; None for the previous program's output, or empty input."""
    out: Target = "out"
    """Destination of stdout: "out" (the next program or the output), "err" (the output) or
    "null"."""
    err: Target = "err"
    """Destination of stderr, with the same values."""
    descriptors: Sequence[int] = ()
    """Open file descriptors to inherit."""
    kill: Callable[[int], None] = lambda _: None
    """Called with the pid before a signal, to end processes started inside a sandbox."""


def kill_marked(mark: str, group: int) -> None:
    """Kill a command's processes that have left its process group `group`.

    They are recognised by `mark` in their environment, so a process that removed it survives.
    """
    for file in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):
            pid = int(file.parent.name)
            if f"{MARK}={mark}".encode() in file.read_bytes() and os.getpgid(pid) != group:
                os.kill(pid, _KILL)


async def run_pipeline(
    programs: Sequence[Program],
    *,
    cwd: Path,
    timeout: float,
    sink: Sink,
    stop: threading.Event | None = None,
) -> ProcessResult:
    """Run programs connected by pipes, each in its own process group, and pass on their output.

    The last program's output and the errors of all programs go through one pipe to `sink`, in
    order. Standard input is empty or a file. When cancelled, it kills the groups before
    `CancelledError` propagates; a set `stop` does the same and raises `TurnInterrupted`. The exit
    code is that of the last program.

    Args:
        programs: the pipeline, first to last.
        cwd: the working directory.
        timeout: limit in seconds.
        sink: takes the output.
        stop: event that interrupts the pipeline.

    Raises:
        OSError: a program cannot be started.
        TurnInterrupted: `stop` was set.
    """
    started = time.monotonic()
    output, child_end = os.pipe()
    try:  # open our end first, so that no child exists yet if this fails
        reader, transport = await _reader(output)
    except BaseException:
        os.close(child_end)
        raise
    group = _Group([], [program.kill for program in programs])
    try:  # no `await` in here: a cancellation cannot separate a child's start from its entry
        group.start(programs, cwd, child_end)
    except BaseException:
        transport.close()
        raise
    finally:
        os.close(child_end)
    drain = asyncio.create_task(_drain(reader, sink))
    exited = asyncio.create_task(group.wait())
    grace = STOP_GRACE
    timed_out = left_behind = False
    try:
        timed_out = await _until_done(exited, drain, started + timeout, stop)
        grace = GRACE
        if exited.done():
            await asyncio.wait({drain}, timeout=_DRAIN)
            left_behind = group.signal(0)
    finally:
        try:
            await _end(group, exited, drain, grace)
        finally:
            transport.close()
    code = group.processes[-1].returncode
    return ProcessResult(
        code=-_KILL if code is None else code,
        seconds=time.monotonic() - started,
        timed_out=timed_out,
        cut_off=not drain.cancelled() and drain.result(),
        left_behind=left_behind,
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """The programs of one pipeline; each is the leader of a process group."""

    processes: list[subprocess.Popen[bytes]]
    kill: Sequence[Callable[[int], None]]

    def start(self, programs: Sequence[Program], cwd: Path, output: int) -> None:
        """Start the programs in order; each reads the output of the previous one."""
        opened: list[int] = []
        _watcher.start()
        try:
            null = os.open(os.devnull, os.O_RDWR)
            opened.append(null)
            source = null
            for number, program in enumerate(programs):
                last = number + 1 == len(programs)
                following, out = (null, output) if last else os.pipe()
                opened += [] if last else [following, out]
                if program.stdin is not None:
                    source = os.open(cwd / program.stdin, os.O_RDONLY | os.O_NONBLOCK)
                    opened.append(source)
                where = {"out": out, "err": output, "null": null}
                self.processes.append(
                    _started(program, cwd, source, where[program.out], where[program.err])
                )
                source = following
        except BaseException:
            self.signal(_KILL)
            for process in self.processes:
                process.wait()
                _watcher.forget(process.pid)
            raise
        finally:
            for descriptor in opened:
                os.close(descriptor)

    async def wait(self) -> int:
        """Wait for all programs and return the last one's exit code."""
        waits = (in_thread(process.wait) for process in self.processes)
        return (await asyncio.gather(*waits))[-1]

    def signal(self, number: int) -> bool:
        """Send a signal to all groups; return whether any process received it."""
        reached = False
        for process, kill in zip(self.processes, self.kill, strict=False):
            if number and process.returncode is None:
                kill(process.pid)
            reached = signal_group(process.pid, number) or reached
        return reached

    async def gone(self) -> None:
        """Wait until no process in the groups is alive, because SIGKILL is asynchronous.

        Waits at most `GRACE` seconds: a process in uninterruptible sleep survives even SIGKILL.
        """
        looks = range(int(GRACE / _LOOK))
        try:
            for _ in looks:
                if not self._any_lives():
                    break
                await asyncio.sleep(_LOOK)
        except asyncio.CancelledError:  # cancelled again; the loop may be about to close, so block
            for _ in looks:
                if self._any_lives():
                    time.sleep(_LOOK)  # noqa: ASYNC251 - for milliseconds only
            raise
        finally:
            for process in self.processes:
                _watcher.forget(process.pid)

    def _any_lives(self) -> bool:
        return any(each.poll() is None or _lives(each.pid) for each in self.processes)


def _lives(group: int) -> bool:
    """Return whether a group has a live process; zombies don't count (Linux only)."""
    if not signal_group(group, 0) or sys.platform != "linux":
        return signal_group(group, 0)
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            state, _, member, *_ = file.read_text(errors="replace").rpartition(")")[2].split()
            if int(member) == group and state not in "ZX":
                return True
    return False


_WATCH = """
while read -r sign group; do
  case $sign in
    +) set -- "$@" "$group" ;;
    -) for each do shift; [ "$each" = "$group" ] || set -- "$@" "$each"; done ;;
  esac
done
for each do
  group=${each%:*} began=${each#*:}
  now=$(read -r line <"/proc/$group/stat" && set -- ${line##*) } && echo "${20}")
  if [ -z "$now" ] || [ "$now" = "$began" ]; then kill -s KILL -- "-$group"; fi
done
"""


class _Watcher:
    """Kills the process groups of running commands if this process is killed.

    A shell in its own session reads the group numbers from a pipe, which closes whenever this
    process ends. On Linux, a group's start time is sent too, because the number of a finished group
    may be reused. A forked child starts its own shell.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shell: subprocess.Popen[bytes] | None = None
        self._groups: dict[int, str] = {}

    def start(self) -> None:
        """Start the shell unless it is running."""
        if os.name != "posix":
            return
        with self._lock:
            if self._shell is None or self._shell.poll() is not None:
                self._start()

    def add(self, group: int) -> None:
        """Register a group to be killed when this process ends."""
        self._groups[group] = f"{group}:{_began(group)}"
        self._send_line(f"+ {self._groups[group]}\n")

    def forget(self, group: int) -> None:
        """Unregister a group that has ended, because its number may be reused."""
        if named := self._groups.pop(group, ""):
            self._send_line(f"- {named}\n")

    def _send_line(self, line: str) -> None:
        with self._lock:
            if self._shell is None or self._shell.stdin is None:
                return
            try:
                self._shell.stdin.write(line.encode())
            except BrokenPipeError:  # it was killed
                self._start()

    def _start(self) -> None:
        _at_ends()
        self._shell = subprocess.Popen(
            ["/bin/sh", "-c", _WATCH],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={},
            bufsize=0,
        )
        if self._shell.stdin is not None:
            self._shell.stdin.write(
                "".join(f"+ {each}\n" for each in self._groups.values()).encode()
            )

    def close(self) -> None:
        """End the shell, which kills the remaining groups."""
        if self._shell is not None:
            self._shell.communicate()
            self._shell = None

    def leave(self) -> None:
        """Close the pipe in a forked child, so that it closes when the parent ends."""
        self._lock, self._groups = threading.Lock(), {}
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()
            self._shell.returncode = 0  # the shell is a child of the parent process
        self._shell = None


def _began(pid: int) -> str:
    """Return the start time of a process in clock ticks since boot; "" if unknown."""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[19]
    return ""


_watcher = _Watcher()


@cache
def _at_ends() -> None:
    """Register, once, to close the watcher on exit and detach it in forked children."""
    atexit.register(_watcher.close)
    os.register_at_fork(after_in_child=_watcher.leave)


def _started(
    program: Program, cwd: Path, source: int, out: int, err: int
) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        program.command,
        cwd=cwd,
        env=dict(program.env),
        stdin=source,
        stdout=out,
        stderr=err,
        start_new_session=True,
        pass_fds=tuple(program.descriptors),
    )
    _watcher.add(process.pid)
    if sys.platform == "linux":
        import resource

        # Set here and not in preexec_fn, which may deadlock in a threaded process.
        with suppress(OSError):
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
    return process


async def _reader(output: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Return a stream that reads our end of the pipe.

    asyncio's own pipe is not used: with it, `wait` may not return before every process that
    inherited the pipe has closed it.
    """
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # with a larger pipe, large outputs cause fewer wake-ups
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE)
    reader = asyncio.StreamReader(limit=_CHUNK)
    loop = asyncio.get_running_loop()
    file = os.fdopen(output, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader, transport


async def _drain(reader: asyncio.StreamReader, sink: Sink) -> bool:
    """Feed the sink until the pipe closes; return True if the sink refused more."""
    while chunk := await reader.read(_CHUNK):
        if not sink(chunk):
            return True
    return False


async def _until_done(
    exited: asyncio.Task[int],
    drain: asyncio.Task[bool],
    deadline: float,
    stop: threading.Event | None,
) -> bool:
    """Wait until the programs exit or the sink is full; return True if the deadline passed first.

    An interrupt also ends the wait.
    """
    while not exited.done():
        if drain.done() and drain.result():
            return False
        if stop is not None and stop.is_set():
            raise TurnInterrupted("the command was stopped")
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        await asyncio.wait({exited}, timeout=min(_TICK, left))
    return False


async def _end(
    group: _Group, exited: asyncio.Task[int], drain: asyncio.Task[bool], grace: float
) -> None:
    """Kill the remaining processes: SIGTERM first if a child is still running, then SIGKILL."""
    try:
        if not exited.done() and group.signal(signal.SIGTERM):
            await asyncio.wait({exited}, timeout=grace)
            await asyncio.wait({drain}, timeout=_DRAIN)
    finally:  # a second cancellation skips the wait above
        group.signal(_KILL)
        drain.cancel()
        exited.cancel()
        try:
            await asyncio.wait({exited, drain})
        finally:
            await group.gone()


_KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


def signal_group(group: int, number: int) -> bool:
    """Send a signal to the group; return whether any process received it."""
    try:
        if sys.platform == "win32":
            os.kill(group, number)
        else:
            os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
