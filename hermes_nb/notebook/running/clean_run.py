"""A notebook run from the top in a kernel of its own, to see whether it still does.

nbclient drives it, on a copy in memory and in a thread with a loop of its own: it would take over
the signal handlers of ours, and its leftovers die with that loop. A `%%hermes` cell in it gets no
approvals, so that agents do not start each other, and is not taken for this notebook's session.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ToolError
from hermes_nb.core.text import one_line
from hermes_nb.notebook.document.outputs import render
from hermes_nb.notebook.values.kinds import Foreign
from hermes_nb.safety.visible import visible

SHOWN = 10
"""Failing cells that are described."""
_ERROR_LIMIT = 3_000
_OUTPUT_LIMIT = 5_000_000
"""Characters of stream output kept of one cell; only errors are looked at."""
_LEFT_OUT = ("JPY_SESSION_NAME", "JPY_PARENT_PID")
_SET = {"HERMES_NB_APPROVE": "never", "HERMES_NB_CEILING": "never"}
"""Nothing in there raises the mode: what the process was started with is the ceiling."""


async def clean_run(
    notebook: Mapping[str, Any],
    *,
    name: str,
    directory: Path,
    timeout: float,
    progress: Callable[[str], None] = lambda _: None,
) -> str:
    """Run a notebook (nbformat 4) in `directory` and say which cells failed, and how.

    `timeout` is in seconds, for all of it. A cancellation kills the kernel and what it started.
    Raises ToolError when there is no kernel to run it.
    """
    run = _Run(_copy(notebook), directory, timeout, progress)
    try:
        await in_thread(run.go, name="hermes-clean-run")
    finally:
        run.stop()
    return run.report(name)


def _copy(notebook: Mapping[str, Any]) -> Foreign:
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
class _Run:
    """One run; `go` blocks its thread, `stop` may be called from any."""

    notebook: Foreign
    directory: Path
    timeout: float
    progress: Callable[[str], None]
    seconds: float = 0.0
    at: int = 0
    ending: str = ""
    note: str = ""
    _loop: asyncio.AbstractEventLoop | None = None
    _task: asyncio.Task[None] | None = None
    _stopped: bool = False
    _done: bool = False

    def go(self) -> None:
        """Run all the cells."""
        started = time.monotonic()
        try:
            asyncio.run(self._main())
        finally:
            self.seconds = time.monotonic() - started
            self._done = True

    def stop(self) -> None:
        """End the run; the kernel and its children are killed."""
        self._stopped = True
        if self._loop is not None and self._task is not None and not self._done:
            with suppress(RuntimeError):  # it ended just now
                self._loop.call_soon_threadsafe(self._task.cancel)

    async def _main(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        if self._stopped:  # before there was a task to cancel
            return
        client = _client(self.notebook)
        manager = client.create_kernel_manager()
        try:
            async with asyncio.timeout(self.timeout):
                await self._start(client, manager)
                await self._run_cells(client)
        except TimeoutError:
            self.ending = f"stopped after {self.timeout:g} s"
        except asyncio.CancelledError:
            self.ending = "stopped"
        finally:
            await _kill(client, manager)

    async def _start(self, client: Foreign, manager: Foreign) -> None:
        from jupyter_client.kernelspec import NoSuchKernel

        environment = {k: v for k, v in os.environ.items() if k not in _LEFT_OUT}
        options: dict[str, Any] = {"env": {**environment, **_SET}, "cwd": str(self.directory)}
        # What it says besides its messages would be taken for output of the cell that runs now.
        options |= {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        try:
            await client.async_start_new_kernel(**options)
        except NoSuchKernel as error:
            if self.notebook.metadata.get("kernelspec", {}).get("language") != "python":
                message = f"{error}: ask the user to install that kernel"
                raise ToolError(message) from error
            self.note = f" (kernel {error.name!r} is not installed, so python3 took its place)"
            manager.kernel_name = "python3"
            await client.async_start_new_kernel(**options)
        try:
            await client.async_start_new_kernel_client()
        except RuntimeError as error:
            message = f"the fresh kernel did not start: {one_line(str(error), 300)}"
            raise ToolError(message) from error

    async def _run_cells(self, client: Foreign) -> None:
        from nbclient.exceptions import DeadKernelError

        for index, cell in enumerate(self.notebook.cells):
            self.at = index
            if cell.cell_type == "code":
                words = one_line(visible(cell.source, lines=True), 60)
                self.progress(f"cell {index + 1} of {len(self.notebook.cells)}: {words}")
            try:
                await client.async_execute_cell(cell, index)
            except DeadKernelError:
                task = asyncio.current_task()
                if task is not None and task.cancelling():  # nbclient takes it for a death
                    raise asyncio.CancelledError from None
                self.ending = "the kernel died"
                return

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


def _client(notebook: Foreign) -> Foreign:
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
    return Client(notebook, allow_errors=True, timeout=None)


async def _kill(client: Foreign, manager: Foreign) -> None:
    """Kill the kernel with its process group, and free sockets and files."""
    from jupyter_core.utils import ensure_async

    if client.kc is not None:
        await ensure_async(client.kc.stop_channels())
    if manager.has_kernel:
        await ensure_async(manager.shutdown_kernel(now=True))
    await ensure_async(manager.cleanup_resources())


def _errors(cell: Foreign) -> list[Foreign]:
    """Return a cell's errors, unless its tags say that they are meant."""
    if cell.cell_type != "code" or "raises-exception" in cell.metadata.get("tags", []):
        return []
    return [output for output in cell.outputs if output.output_type == "error"]


def _words(cell: Foreign) -> str:
    words = one_line(visible(cell.source, lines=True), 60)
    return f"{cell.get('id', '')}: {words}".lstrip(": ")
