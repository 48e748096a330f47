"""Run a notebook from the top in a fresh kernel, for a tool and the command line.

The kernel is driven by nbclient. The kernel and all its processes are killed no matter how the run
ends: first its process group, then processes that have left the group. After a cancellation, the
kernel is interrupted first, so that a turn in it can stop its commands.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from hermes_nb.core.errors import ConfigError, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import LoopThread
from hermes_nb.notebook.document.outputs import render
from hermes_nb.notebook.shell import Foreign

GRACE = 1.0
"""Seconds that a running cell has to finish after an interrupt."""
SHOWN = 10
"""Maximum number of failed cells to describe."""
_ERROR_LIMIT = 3_000
_OUTPUT_LIMIT = 5_000_000
"""Maximum characters of a cell's stream output; only its errors are needed."""
_LEFT_OUT = ("JPY_SESSION_NAME", "JPY_PARENT_PID")
"""This kernel's environment variables that identify its notebook and server."""
_QUIET = ["--IPKernelApp.log_level=40"]
"""Log only errors: the kernel's warnings on stderr are not notebook output."""
DENIED = {"HERMES_NB_APPROVE": "never", "HERMES_NB_CEILING": "never"}
"""Environment that denies all approvals; the process cannot raise its permission mode."""


class NoKernel(ConfigError):
    """The kernel could not be started, because it is not installed (`missing`) or has failed."""

    def __init__(self, why: str, *, missing: bool) -> None:
        text = (
            f"{why}: install that kernel first" if missing else f"the kernel did not start: {why}"
        )
        super().__init__(text)
        self.why = why
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Failure:
    """The failure that ended a run."""

    cell: int
    """The cell's position, from 1."""
    source: str
    """The cell's source."""
    error: str
    """The error."""

    def __str__(self) -> str:
        head = next(iter(self.source.strip().splitlines()), "")
        return f"cell {self.cell} ({one_line(head, 60)}): {one_line(self.error, 400)}"


Began = Callable[[int, str], None]
"""Called for each cell when it starts, with its position from 1 and its source."""


async def run_notebook(
    notebook: Foreign,
    *,
    directory: Path,
    env: Mapping[str, str],
    timeout: float | None,
    progress: Began,
) -> Failure | None:
    """Run all cells in order and return the failure that ended the run, or None.

    Args:
        notebook: the notebook, which receives the outputs.
        directory: the working directory.
        env: additional environment variables for the kernel.
        timeout: limit in seconds for each cell; None for no limit.
        progress: called for each cell when it starts.

    Raises:
        NoKernel: the kernel is missing or did not start.
    """
    from nbclient import NotebookClient

    # No timestamps, so that identical runs produce the same file.
    client = NotebookClient(notebook, timeout=timeout, extra_arguments=_QUIET, record_timing=False)
    async with _started(client, directory, env):
        return await _cells(client, progress)


def copy_of(notebook: Mapping[str, Json]) -> Foreign:
    """Return a notebook's copy without outputs, as nbclient needs it."""
    import nbformat

    cells = [
        {**cell, "outputs": [], "execution_count": None} if cell["cell_type"] == "code" else cell
        for cell in notebook["cells"]
    ]
    copy = nbformat.from_dict({**notebook, "cells": cells})
    for cell in copy.cells:
        cell.source = "".join(cell.source)
    return copy


@dataclass(slots=True)
class CleanRun:
    """One run of a copy; its thread ends once the kernel has been killed."""

    notebook: Foreign
    directory: Path
    timeout: float | None
    progress: Callable[[str], None]
    env: Mapping[str, str]
    thread: LoopThread = field(default_factory=partial(LoopThread, "hermes-clean-run"))
    seconds: float = 0.0
    at: int = 0
    ending: str = ""
    note: str = ""

    async def wait(self) -> None:
        """Run all cells in the run's own thread; raise `ToolError` if the kernel does not start."""
        try:
            await asyncio.wrap_future(self.thread.submit(self.go()))
        except NoKernel as error:
            message = f"the fresh kernel did not start: {error.why}"
            if error.missing:
                message = f"{error.why}: ask the user to install that kernel"
            raise ToolError(message) from error

    async def go(self) -> None:
        """Run all cells; cancelling kills the kernel and its processes."""
        started = time.monotonic()
        client = _bounded(self.notebook)
        # Its own stdout and stderr would be mistaken for the running cell's output.
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            async with (
                asyncio.timeout(self.timeout),
                _started(client, self.directory, self.env, **silent) as other,
            ):
                if other:
                    self.note = f" (kernel {other!r} is not installed, so python3 was used)"
                if failure := await _cells(client, self._begins):
                    self.ending = failure.error
        except TimeoutError:
            self.ending = f"stopped after {self.timeout:g} s"
        finally:
            self.seconds = time.monotonic() - started

    def _begins(self, number: int, source: str) -> None:
        self.at = number - 1
        words = one_line(visible(source, lines=True), 60)
        self.progress(f"cell {number} of {len(self.notebook.cells)}: {words}")

    def report(self, name: str) -> str:
        """Return the result: no errors, or each failed cell with its error."""
        codes = [cell for cell in self.notebook.cells if cell.cell_type == "code"]
        failed = [(i, cell) for i, cell in enumerate(self.notebook.cells) if _errors(cell)]
        took = f"in a fresh kernel{self.note}, {self.seconds:.1f} s; the file was not changed"
        if not failed and not self.ending:
            return f"{name} ran without errors: {len(codes)} code cells {took}"
        lines = [f"{name}: {len(failed)} of {len(codes)} code cells failed {took}"]
        if self.ending:
            cell = self.notebook.cells[self.at] if self.notebook.cells else None
            where = f" at cell {self.at} {_words(cell)}; the rest was not run" if cell else ""
            lines.append(f"{self.ending}{where}")
        for index, cell in failed[:SHOWN]:
            errors = render(_errors(cell), limit=_ERROR_LIMIT, images=0).text
            lines.append(f"--- cell {index} {_words(cell)} ---\n{errors}")
        if len(failed) > SHOWN:
            lines.append(f"[{len(failed) - SHOWN} more cells failed]")
        return "\n".join(lines)


def _bounded(notebook: Foreign) -> Foreign:
    """Return an nbclient client that limits a cell's stream output."""
    from nbclient import NotebookClient

    class Client(NotebookClient):
        def output(
            self, outs: Foreign, msg: Foreign, display_id: Foreign, cell_index: int
        ) -> Foreign:
            text = msg["content"].get("text", "") if msg["msg_type"] == "stream" else ""
            kept[cell_index] = kept.get(cell_index, 0) + len(text)
            if text and kept[cell_index] > _OUTPUT_LIMIT:
                return None
            return super().output(outs, msg, display_id, cell_index)

    kept: dict[int, int] = {}
    return Client(
        notebook, allow_errors=True, timeout=None, extra_arguments=_QUIET, record_timing=False
    )


@asynccontextmanager
async def _started(
    client: Foreign, directory: Path, env: Mapping[str, str], **more: object
) -> AsyncIterator[str]:
    """Start a kernel for a client, and kill it and its processes afterwards.

    `more` contains options for its process. Yields "", or the name of the kernel requested by the
    notebook if python3 was used instead.
    """
    manager = client.create_kernel_manager()
    inherited = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    options = {"env": {**inherited, **env}, "cwd": str(directory), **more}
    children: list[Foreign] = []
    try:
        try:
            replaced = await _start(client, manager, options)
        except NoKernel as error:
            if error.missing:
                raise
            # Ports are chosen before the kernel binds them, so another process may take one.
            manager = client.create_kernel_manager()
            replaced = await _start(client, manager, options)
        yield replaced
    except asyncio.CancelledError:
        children = _descendants(manager)
        await _interrupt(client, manager)
        raise
    finally:
        await _end(client, manager, [*children, *_descendants(manager)])


async def _start(client: Foreign, manager: Foreign, options: Mapping[str, object]) -> str:
    from jupyter_client.kernelspec import NoSuchKernel

    replaced = ""
    try:
        await client.async_start_new_kernel(**options)
    except NoSuchKernel as error:
        if client.nb.metadata.get("kernelspec", {}).get("language", "python") != "python":
            raise NoKernel(str(error), missing=True) from error
        manager.kernel_name = "python3"  # the missing one is a Python kernel with another name
        replaced = error.name
        await client.async_start_new_kernel(**options)
    try:
        await client.async_start_new_kernel_client()
    except RuntimeError as error:
        raise NoKernel(one_line(str(error), 300), missing=False) from error
    return replaced


async def _cells(client: Foreign, progress: Began) -> Failure | None:
    from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError

    for index, cell in enumerate(client.nb.cells):
        if cell.cell_type != "code":
            continue
        cell.outputs, cell.execution_count = [], None
        progress(index + 1, cell.source)
        try:
            await client.async_execute_cell(
                cell, index, execution_count=client.code_cells_executed + 1
            )
        except CellExecutionError as error:
            text = f"{error.ename}: {error.evalue}" if error.ename else str(error)
        except CellTimeoutError:
            text = f"it took more than {client.timeout:g} s"
        except DeadKernelError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # nbclient mistakes it for a dead kernel
                raise asyncio.CancelledError from None
            text = "the kernel died"
        else:
            continue
        return Failure(index + 1, cell.source, text)
    client.set_widgets_metadata()
    return None


async def _interrupt(client: Foreign, manager: Foreign) -> None:
    from jupyter_core.utils import ensure_async

    if client.kc is None or not manager.has_kernel:
        return
    await ensure_async(manager.interrupt_kernel())
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        with suppress(Exception):  # after any error, the kernel is killed anyway
            message = await ensure_async(client.kc.get_iopub_msg(timeout=end - time.monotonic()))
            if message["content"].get("execution_state") == "idle":
                return


async def _end(client: Foreign, manager: Foreign, children: list[Foreign]) -> None:
    """Kill the kernel, its process group and remaining processes; free sockets and files."""
    import psutil
    from jupyter_core.utils import ensure_async

    if client.kc is not None:
        client.kc.stop_channels()
    if manager.has_kernel:
        await ensure_async(manager.shutdown_kernel(now=True))
    await ensure_async(manager.cleanup_resources())
    for process in children:
        with suppress(psutil.Error):
            process.kill()


def _descendants(manager: Foreign) -> list[Foreign]:
    import psutil

    pid = getattr(manager.provisioner, "pid", None)
    if pid is None:
        return []
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def _errors(cell: Foreign) -> list[Foreign]:
    """Return a cell's errors, unless its tags declare that they are expected."""
    if cell.cell_type != "code" or "raises-exception" in cell.metadata.get("tags", []):
        return []
    return [output for output in cell.outputs if output.output_type == "error"]


def _words(cell: Foreign) -> str:
    words = one_line(visible(cell.source, lines=True), 60)
    return f"{cell.get('id', '')}: {words}".lstrip(": ")
