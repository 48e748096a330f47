"""A notebook run from the top in a kernel of its own, for a tool and for the command line.

nbclient drives it. However a run ends, the kernel goes and so does whatever it started: it is
interrupted first, so that a turn can stop its commands, then killed with its group, then what
escaped the group.
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
"""Seconds that a running cell has to end after a stop."""
SHOWN = 10
"""Failing cells that are described."""
_ERROR_LIMIT = 3_000
_OUTPUT_LIMIT = 5_000_000
"""Characters of stream output kept of one cell; only errors are looked at."""
_LEFT_OUT = ("JPY_SESSION_NAME", "JPY_PARENT_PID")
"""What a kernel would take for its own notebook and server: those of the kernel we run in."""
_QUIET = ["--IPKernelApp.log_level=40"]
"""Errors only: the kernel's warnings on standard error are not the notebook's."""
_SET = {"HERMES_NB_APPROVE": "never", "HERMES_NB_CEILING": "never"}
"""Nothing in there raises the mode: what the process was started with is the ceiling."""


class NoKernel(ConfigError):
    """There is no kernel for a notebook: `why`, and whether it is `missing` or did not start."""

    def __init__(self, why: str, *, missing: bool) -> None:
        told = (
            f"{why}: install that kernel first" if missing else f"the kernel did not start: {why}"
        )
        super().__init__(told)
        self.why = why
        self.missing = missing


@dataclass(frozen=True, slots=True)
class Failure:
    """The cell (counted from 1) that ended a run, its first line, and the error in one line."""

    cell: int
    source: str
    error: str

    def __str__(self) -> str:
        head = next(iter(self.source.strip().splitlines()), "")
        return f"cell {self.cell} ({one_line(head, 60)}): {one_line(self.error, 400)}"


Began = Callable[[int, str], None]
"""Hears of each cell that begins: its number, counted from 1, and its source."""


async def run_notebook(
    notebook: Foreign,
    *,
    directory: Path,
    env: Mapping[str, str],
    timeout: float | None,
    progress: Began,
) -> Failure | None:
    """Run all cells in order and return what ended the run early, None when nothing did.

    The outputs go into `notebook`. `timeout` is in seconds a cell, None for as long as it takes.
    Raises `NoKernel`.
    """
    from nbclient import NotebookClient

    # Without times of its own, so that two runs of the same give the same file.
    client = NotebookClient(notebook, timeout=timeout, extra_arguments=_QUIET, record_timing=False)
    async with _started(client, directory, env):
        return await _cells(client, progress)


async def clean_run(
    notebook: Mapping[str, Json],
    *,
    name: str,
    directory: Path,
    timeout: float,
    progress: Callable[[str], None] = lambda _: None,
) -> str:
    """Run a notebook (nbformat 4) in `directory` and say which cells failed, and how.

    A copy of it runs, in a thread with a loop of its own: nbclient would take over the signal
    handlers of ours, and its leftovers die with that loop. A `%%hermes` cell in it gets no
    approvals, so that agents do not start each other, and is not taken for this notebook's session.
    `timeout` is in seconds, for all of it. A cancellation kills the kernel and what it started.
    Raises ToolError when there is no kernel to run it.
    """
    run = _CleanRun(_copy(notebook), directory, timeout, progress)
    try:
        await asyncio.wrap_future(run.thread.submit(run.go()))
    except NoKernel as error:
        message = f"the fresh kernel did not start: {error.why}"
        if error.missing:
            message = f"{error.why}: ask the user to install that kernel"
        raise ToolError(message) from error
    return run.report(name)


def _copy(notebook: Mapping[str, Json]) -> Foreign:
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
class _CleanRun:
    """One run of a copy; its thread ends with it, and so not before the kernel is gone."""

    notebook: Foreign
    directory: Path
    timeout: float
    progress: Callable[[str], None]
    thread: LoopThread = field(default_factory=partial(LoopThread, "hermes-clean-run"))
    seconds: float = 0.0
    at: int = 0
    ending: str = ""
    note: str = ""

    async def go(self) -> None:
        """Run all the cells; a cancellation kills the kernel and what it started."""
        started = time.monotonic()
        client = _bounded(self.notebook)
        # What it says besides its messages would be taken for output of the cell that runs now.
        silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            async with (
                asyncio.timeout(self.timeout),
                _started(client, self.directory, _SET, **silent) as other,
            ):
                if other:
                    self.note = f" (kernel {other!r} is not installed, so python3 took its place)"
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
        """Return the outcome: clean, or each failing cell with its error."""
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
    """Return nbclient's client, with a bound on what it keeps of one cell's prints."""
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
    """Have a kernel run for a client, and nothing of it afterwards; `more` is for its process.

    Yields the name of the notebook's own kernel where python3 took its place.
    """
    manager = client.create_kernel_manager()
    inherited = {name: value for name, value in os.environ.items() if name not in _LEFT_OUT}
    options = {"env": {**inherited, **env}, "cwd": str(directory), **more}
    children: list[Foreign] = []
    try:
        yield await _start(client, manager, options)
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
        manager.kernel_name = "python3"  # a Python kernel by another name
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
            told = f"{error.ename}: {error.evalue}" if error.ename else str(error)
        except CellTimeoutError:
            told = f"it took more than {client.timeout:g} s"
        except DeadKernelError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():  # nbclient takes it for a death
                raise asyncio.CancelledError from None
            told = "the kernel died"
        else:
            continue
        return Failure(index + 1, cell.source, told)
    client.set_widgets_metadata()
    return None


async def _interrupt(client: Foreign, manager: Foreign) -> None:
    from jupyter_core.utils import ensure_async

    if client.kc is None or not manager.has_kernel:
        return
    await ensure_async(manager.interrupt_kernel())
    end = time.monotonic() + GRACE
    while time.monotonic() < end:
        with suppress(Exception):  # whatever it is, the kernel is killed in a moment
            message = await ensure_async(client.kc.get_iopub_msg(timeout=end - time.monotonic()))
            if message["content"].get("execution_state") == "idle":
                return


async def _end(client: Foreign, manager: Foreign, children: list[Foreign]) -> None:
    """Kill the kernel with its process group and what it left, and free sockets and files."""
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
    """Return a cell's errors, unless its tags say that they are meant."""
    if cell.cell_type != "code" or "raises-exception" in cell.metadata.get("tags", []):
        return []
    return [output for output in cell.outputs if output.output_type == "error"]


def _words(cell: Foreign) -> str:
    words = one_line(visible(cell.source, lines=True), 60)
    return f"{cell.get('id', '')}: {words}".lstrip(": ")
