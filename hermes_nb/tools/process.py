"""Runs a pipeline to its end, whatever it does: one pipe for output, bounded time and memory.

The child leads a session of its own, so that whatever it forks can be killed with it. What a child
leaves running when it ends is killed too. A program that makes itself a session of its own
(`setsid`) stays when a command ends by itself, as it would in a terminal; a stop reaches it by the
mark in its environment (`kill_marked`). Where this process is killed, a watcher ends the groups.
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
"""The same when the user waits for it."""
_DRAIN = 0.25
"""Seconds that the pipe is read after the child has ended, if something else keeps it open."""
_TICK = 0.1
_LOOK = 0.005
_CHUNK = 1 << 18
_PIPE = 1 << 20

MARK = "HERMES_NB_COMMAND"
"""The variable by which the processes of a command are known."""

Target = Literal["out", "err", "null"]
Sink = Callable[[bytes], bool]
"""Takes a piece of output and says whether to go on; False ends the command."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `code` is negative for a signal; `left_behind` if children remained."""

    code: int
    seconds: float
    timed_out: bool = False
    cut_off: bool = False
    left_behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One program of a pipeline: its words, what it knows, where its streams go.

    `stdin` is the file that the first one reads. `out` and `err` are "out" for the program behind
    it or the output, "err" for the output, or "null". `descriptors` are handed over open.
    `kill(pid)` is called before it is ended, for what a sandbox started inside of it.
    """

    command: Sequence[str]
    env: Mapping[str, str]
    stdin: Path | None = None
    out: Target = "out"
    err: Target = "err"
    descriptors: Sequence[int] = ()
    kill: Callable[[int], None] = lambda _: None


def kill_marked(mark: str, group: int) -> None:
    """Kill processes of a command that have left its group, unless they cleared the mark."""
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
) -> Ended:
    """Run programs joined by pipes, each in a group of its own, and hand over what they say.

    The output of the last and the errors of all come in order through one pipe to `sink`; standard
    input is empty or a file. On cancellation the groups are dead before `CancelledError` goes on;
    `stop`, once set, does the same and raises `TurnInterrupted`. The exit code is that of the last
    program. Raises OSError when one cannot be started.
    """
    started = time.monotonic()
    output, child_end = os.pipe()
    try:  # our end first, before there is a child that could be lost
        reader, transport = await _reader(output)
    except BaseException:
        os.close(child_end)
        raise
    group = _Group([], [program.kill for program in programs])
    try:  # without an `await`: no cancellation comes between a child's start and its place here
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
    return Ended(
        code=-_KILL if code is None else code,
        seconds=time.monotonic() - started,
        timed_out=timed_out,
        cut_off=not drain.cancelled() and drain.result(),
        left_behind=left_behind,
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """The programs of one pipeline."""

    processes: list[subprocess.Popen[bytes]]
    kill: Sequence[Callable[[int], None]]

    def start(self, programs: Sequence[Program], cwd: Path, output: int) -> None:
        """Start the programs from the first to the last, each reading from the one before."""
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
        """Wait for all of them and return the exit code of the last."""
        waits = (in_thread(process.wait) for process in self.processes)
        return (await asyncio.gather(*waits))[-1]

    def signal(self, number: int) -> bool:
        """Send a signal to all of them; say whether anybody was there to get it."""
        reached = False
        for process, kill in zip(self.processes, self.kill, strict=False):
            if number and process.returncode is None:
                kill(process.pid)
            reached = signal_group(process.pid, number) or reached
        return reached

    async def gone(self) -> None:
        """Wait until none of them lives: SIGKILL does not wait for its effect.

        It waits for `GRACE` at most; what not even SIGKILL ends sleeps in the system.
        """
        looks = range(int(GRACE / _LOOK))
        try:
            for _ in looks:
                if not self._any_lives():
                    break
                await asyncio.sleep(_LOOK)
        except asyncio.CancelledError:  # a further one: the turn is given up, and a loop may end
            for _ in looks:
                if self._any_lives():
                    time.sleep(_LOOK)  # noqa: ASYNC251 - milliseconds
            raise
        finally:
            for process in self.processes:
                _watcher.forget(process.pid)

    def _any_lives(self) -> bool:
        return any(each.poll() is None or _lives(each.pid) for each in self.processes)


def _lives(group: int) -> bool:
    """Say whether a process of a group lives; one that is dead may wait long for its parent."""
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
    """Ends the groups of commands whose starter was killed before it could do so.

    A shell in a session of its own reads their numbers from a pipe, which closes when this process
    ends, however it ends. When a group began goes along, on Linux: the number of one that was not
    taken off the list may be another program's by then. A fork starts a shell of its own.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._shell: subprocess.Popen[bytes] | None = None
        self._groups: dict[int, str] = {}

    def start(self) -> None:
        """Start the shell unless it runs."""
        if os.name != "posix":
            return
        with self._lock:
            if self._shell is None or self._shell.poll() is not None:
                self._start()

    def add(self, group: int) -> None:
        """Have a group ended with this process."""
        self._groups[group] = f"{group}:{_began(group)}"
        self._tell(f"+ {self._groups[group]}\n")

    def forget(self, group: int) -> None:
        """Leave alone what may have the number of a group that has ended."""
        if named := self._groups.pop(group, ""):
            self._tell(f"- {named}\n")

    def _tell(self, line: str) -> None:
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
        """End the shell, and with it what is left of the groups."""
        if self._shell is not None:
            self._shell.communicate()
            self._shell = None

    def leave(self) -> None:
        """Let go of the pipe in a fork, so that it closes when the parent ends."""
        self._lock, self._groups = threading.Lock(), {}
        if self._shell is not None and self._shell.stdin is not None:
            self._shell.stdin.close()
            self._shell.returncode = 0  # another process's child
        self._shell = None


def _began(pid: int) -> str:
    """Return when a process began, in the system's own count, "" where it does not tell."""
    with suppress(OSError, IndexError):
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        return stat.rpartition(")")[2].split()[19]
    return ""


_watcher = _Watcher()


@cache
def _at_ends() -> None:
    """Close the watcher at this process's end, and let go of it in forks; once."""
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

        # From here, because a function between fork and exec may deadlock a threaded process.
        with suppress(OSError):
            resource.prlimit(process.pid, resource.RLIMIT_CORE, (0, 0))
    return process


async def _reader(output: int) -> tuple[asyncio.StreamReader, asyncio.ReadTransport]:
    """Return a stream on our end of the pipe.

    It is our own pipe and not asyncio's: with that one `wait` may not return before every process
    that inherited the pipe has closed it.
    """
    if sys.platform == "linux":
        import fcntl

        with suppress(OSError):  # fewer wake-ups for a flood
            fcntl.fcntl(output, fcntl.F_SETPIPE_SZ, _PIPE)
    reader = asyncio.StreamReader(limit=_CHUNK)
    loop = asyncio.get_running_loop()
    file = os.fdopen(output, "rb", buffering=0)
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
    return reader, transport


async def _drain(reader: asyncio.StreamReader, sink: Sink) -> bool:
    """Feed the sink until the pipe closes; return True if the sink had enough."""
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
    """Wait for the exit, a full sink, the deadline or the stop; return True for the deadline."""
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
    """Kill what is left of the groups: politely if a child still runs, then for good."""
    try:
        if not exited.done() and group.signal(signal.SIGTERM):
            await asyncio.wait({exited}, timeout=grace)
            await asyncio.wait({drain}, timeout=_DRAIN)
    finally:  # a second cancellation cuts the politeness short
        group.signal(_KILL)
        drain.cancel()
        exited.cancel()
        try:
            await asyncio.wait({exited, drain})
        finally:
            await group.gone()


_KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


def signal_group(group: int, number: int) -> bool:
    """Send a signal to the group; return whether anybody was there to get it."""
    try:
        if sys.platform == "win32":
            os.kill(group, number)
        else:
            os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
