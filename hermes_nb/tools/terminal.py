"""The toolset `terminal`: shell commands in the working directory.

A command gets an allowlisted environment and no input, and runs until it ends, times out or is
stopped; nothing that it started in its group outlives it. In which way it runs, the guard has said.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

from hermes_nb.core.errors import ToolError
from hermes_nb.core.tools import Risk, ToolContext, ToolOutput, Toolset
from hermes_nb.safety.guard import Way
from hermes_nb.safety.sandbox import NoSandboxError, Profile
from hermes_nb.safety.visible import visible
from hermes_nb.tools.command_run import CommandRun
from hermes_nb.tools.schema import tool
from hermes_nb.tools.workspace import Workspace


def terminal(root: Path, *, allowed: Callable[[Path], bool] = lambda _: False) -> Toolset:
    """Return the terminal of `root`; `allowed` opens other directories."""
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
    ) -> ToolOutput:
        """Run a bash command in the working directory. No input; background jobs end with it.

        Args:
            timeout: seconds
            workdir: another directory to run in
        """
        cwd = _directory(space, workdir)
        if "\0" in command:
            message = "the command has a NUL character in it; leave it out"
            raise ToolError(message)
        way = context.permit if isinstance(context.permit, Way) else Way(Profile.OUTSIDE)
        shell = CommandRun(command=command, root=space.real_root(), cwd=cwd, timeout=timeout)
        try:
            return await shell.run(way, context)
        except NoSandboxError as error:
            message = f"the command was not run: {error}; ask the user to approve it"
            raise ToolError(message) from error
        except (OSError, ValueError) as error:
            raise _not_started(error) from error

    return Toolset([terminal])


def _gist(arguments: Mapping[str, Any]) -> str:
    return visible(str(arguments.get("command", "")))


def _available() -> str:
    if os.name != "posix":
        return "terminal needs a POSIX system; use run_python, or start Jupyter in WSL"
    return ""


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
