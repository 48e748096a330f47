"""The toolset `terminal`: shell commands in the working directory.

A command gets an allowlisted environment and no input, and runs until it ends, times out or is
stopped; nothing that it started in its group outlives it.
"""

from __future__ import annotations

import errno
import math
import os
import shutil
import signal
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from hermes_nb.core.errors import ToolError
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Risk, ToolContext, Toolset
from hermes_nb.safety.environment import child_environment
from hermes_nb.safety.visible import visible
from hermes_nb.tools.capture import Capture
from hermes_nb.tools.process import Ended, run_group
from hermes_nb.tools.schema import tool
from hermes_nb.tools.screen import plain
from hermes_nb.tools.workspace import Workspace, size_text

FLOOD = 4_000_000_000
"""Bytes of output after which a command is ended: nobody reads them, they only cost time."""
MORE_PROCESSES = 4_096
"""Processes and threads that a command may add to those of the machine, for what it forks."""
_PROGRESS_EVERY = 0.4

Wrap = Callable[[list[str], Path], list[str]]
"""Puts a command line into a sandbox, given its working directory."""


def terminal(
    root: Path,
    *,
    allowed: Callable[[Path], bool] = lambda _: False,
    wrap: Wrap = lambda command, _: command,
) -> Toolset:
    """Return the terminal of `root`; `allowed` opens other directories, `wrap` is a sandbox."""
    space = Workspace(root=root, allowed=allowed)

    @tool(
        toolset="terminal",
        risk=Risk.EXECUTE,
        exclusive=True,
        root=root,
        available=_available,
        describe=_gist,
    )
    async def terminal(  # noqa: D417 - a schema says nothing that is plain
        context: ToolContext,
        command: str,
        timeout: Annotated[int, {"minimum": 1, "maximum": 600}] = 30,
        workdir: str | None = None,
    ) -> str:
        """Run a bash command in the working directory. No input; background jobs end with it.

        Args:
            timeout: seconds
            workdir: another directory to run in
        """
        cwd = _directory(space, workdir)
        if "\0" in command:
            message = "the command has a NUL character in it; leave it out"
            raise ToolError(message)
        capture = Capture()
        try:
            ended = await run_group(
                wrap(_bounded(_shell(), command), cwd),
                cwd=cwd,
                env={**child_environment(), "PWD": str(cwd)},
                timeout=timeout,
                sink=_sink(capture, context),
                stop=context.stop,
            )
        except (OSError, ValueError) as error:
            raise _not_started(error) from error
        return _told(plain(capture.text()), ended, timeout)

    return Toolset([terminal])


def _gist(arguments: Mapping[str, Any]) -> str:
    return visible(str(arguments.get("command", "")))


def _available() -> str:
    if os.name != "posix":
        return "terminal needs a POSIX system; use run_python, or start Jupyter in WSL"
    return ""


def _shell() -> str:
    shell = shutil.which("bash") or shutil.which("sh")
    if shell is None:
        message = "there is neither bash nor sh on this machine; use Python instead"
        raise ToolError(message)
    return shell


def _bounded(shell: str, command: str) -> list[str]:
    """Return the shell with a command, and with an end to what it may fork (Linux).

    The system counts all processes and threads of the user, so that those of the whole machine are
    the least that has to be allowed; it holds nothing against root.
    """
    try:
        count = Path("/proc/loadavg").read_text(encoding="utf-8").split()[3].partition("/")[2]
        most = int(count) + MORE_PROCESSES
    except (OSError, ValueError, IndexError):
        return [shell, "-c", command]
    # By another shell: once the command runs it may have forked already.
    return [shell, "-c", 'ulimit -u "$0" 2>/dev/null; exec "$1" -c "$2"', str(most), shell, command]


def _not_started(error: OSError | ValueError) -> ToolError:
    if isinstance(error, OSError) and error.errno == errno.E2BIG:
        return ToolError("the command is too long; put what is long into a file with write_file")
    return ToolError(f"the shell could not be started: {error}; try again or ask the user")


def _directory(space: Workspace, workdir: str | None) -> Path:
    if workdir is None:
        return space.real_root()
    directory = space.resolve(workdir)
    with space.explained(directory):
        if stat.S_ISDIR(directory.stat().st_mode):
            return directory
    message = f"{space.shown(directory)!r} is a file; `workdir` is a directory"
    raise ToolError(message)


def _sink(capture: Capture, context: ToolContext) -> Callable[[bytes], bool]:
    """Return what takes the output: it keeps it, and shows the last line a few times a second."""
    shown = -math.inf

    def sink(chunk: bytes) -> bool:
        nonlocal shown
        capture.add(chunk)
        now = time.monotonic()
        if now - shown >= _PROGRESS_EVERY:
            shown = now
            if line := one_line(plain(capture.last_line()), 120):
                context.progress(line)
        return capture.size < FLOOD

    return sink


def _told(output: str, ended: Ended, timeout: int) -> str:
    """Return the output and, on a last line, how the command ended."""
    facts = [_exit_text(ended, timeout), f"{ended.seconds:.1f} s"]
    if ended.cut_off:
        facts.insert(0, f"ended after {size_text(FLOOD)} of output")
    if ended.left_behind and not ended.timed_out:
        facts.append("what it left running was ended")
    body = output.rstrip("\n")
    return f"{body}\n[{', '.join(facts)}]" if body else f"[{', '.join(facts)}]"


def _exit_text(ended: Ended, timeout: int) -> str:
    if ended.timed_out:
        return f"timed out after {timeout} s and was ended"
    if ended.code >= 0:
        return f"exit {ended.code}"
    try:
        name = signal.Signals(-ended.code).name
    except ValueError:
        name = f"signal {-ended.code}"
    return f"exit {128 - ended.code} ({name})"
