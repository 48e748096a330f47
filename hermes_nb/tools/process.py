"""Runs a command to its end, whatever it does: one group, one pipe, bounded time and memory.

The child leads a session of its own, so that whatever it forks can be killed with it. What a child
leaves running when it ends is killed too. A program that makes itself a session of its own
(`setsid`) escapes, as it would from a terminal.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from asyncio.subprocess import Process
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.core.errors import TurnInterrupted

GRACE = 1.0
"""Seconds between SIGTERM and SIGKILL."""
STOP_GRACE = 0.5
"""The same when the user waits for it."""
_DRAIN = 0.25
"""Seconds that the pipe is read after the child has ended, if something else keeps it open."""
_TICK = 0.1
_CHUNK = 1 << 18
_PIPE = 1 << 20

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


async def run_group(
    command: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout: float,
    sink: Sink,
    stop: threading.Event | None = None,
) -> Ended:
    """Run `command` in a group of its own and hand its output to `sink` as it comes.

    Standard output and error come in order through one pipe; standard input is empty. On
    cancellation the group is dead before `CancelledError` goes on; `stop`, once set, does the same
    and raises `TurnInterrupted`. Raises OSError when the command cannot be started.
    """
    started = time.monotonic()
    output, child_end = os.pipe()
    try:  # our end first, before there is a child that could be lost
        reader, transport = await _reader(output)
    except BaseException:
        os.close(child_end)
        raise
    try:
        process = await _start(command, cwd, env, child_end)
    except BaseException:
        transport.close()
        raise
    finally:
        os.close(child_end)
    drain = asyncio.create_task(_drain(reader, sink))
    exited = asyncio.create_task(process.wait())
    grace = STOP_GRACE
    timed_out = left_behind = False
    try:
        timed_out = await _until_done(exited, drain, started + timeout, stop)
        grace = GRACE
        if exited.done():
            await asyncio.wait({drain}, timeout=_DRAIN)
            left_behind = _signal(process.pid, 0)
    finally:
        await _end(process, exited, drain, grace)
        transport.close()
    return Ended(
        code=exited.result() if not exited.cancelled() else -_KILL,
        seconds=time.monotonic() - started,
        timed_out=timed_out,
        cut_off=not drain.cancelled() and drain.result(),
        left_behind=left_behind,
    )


async def _start(command: Sequence[str], cwd: Path, env: Mapping[str, str], out: int) -> Process:
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=cwd,
        env=dict(env),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=out,
        stderr=out,
        start_new_session=True,
    )
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
            message = "the command was stopped"
            raise TurnInterrupted(message)
        left = deadline - time.monotonic()
        if left <= 0:
            return True
        await asyncio.wait({exited}, timeout=min(_TICK, left))
    return False


async def _end(
    process: Process, exited: asyncio.Task[int], drain: asyncio.Task[bool], grace: float
) -> None:
    """Kill what is left of the group: politely if the child still runs, then for good."""
    try:
        if not exited.done() and _signal(process.pid, signal.SIGTERM):
            await asyncio.wait({exited}, timeout=grace)
            await asyncio.wait({drain}, timeout=_DRAIN)
    finally:  # a second cancellation cuts the politeness short
        _signal(process.pid, _KILL)
        drain.cancel()
        await asyncio.wait({exited, drain}, timeout=GRACE)
        exited.cancel()  # a process that not even SIGKILL ends sleeps in the kernel
        await asyncio.wait({exited})


_KILL = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


def _signal(group: int, number: int) -> bool:
    """Send a signal to the group; return whether anybody was there to get it."""
    try:
        if sys.platform == "win32":
            os.kill(group, number)
        else:
            os.killpg(group, number)
    except (ProcessLookupError, PermissionError):
        return False
    return True
