"""A notebook run cell by cell in a kernel of its own, which is gone when the run is over.

However the run ends, the kernel goes and so does whatever it started: it is interrupted first, so
that a turn can stop its commands, then killed with its group, then what escaped the group.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import one_line
from hermes_nb.notebook.values.kinds import Foreign

GRACE = 1.0
"""Seconds that a running cell has to end after a stop."""
LEFT_OUT = ("JPY_SESSION_NAME", "JPY_PARENT_PID")
"""What a kernel would take for its own notebook and server: those of the kernel we run in."""
QUIET = ["--IPKernelApp.log_level=40"]
"""Errors only: the kernel's warnings on standard error are not the notebook's."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The cell (counted from 1) that ended a run, its first line, and the error in one line."""

    cell: int
    source: str
    error: str

    def __str__(self) -> str:
        """Return it in one line."""
        head = next(iter(self.source.strip().splitlines()), "")
        return f"cell {self.cell} ({one_line(head, 60)}): {one_line(self.error, 400)}"


async def execute(
    notebook: Foreign,
    *,
    directory: Path,
    env: Mapping[str, str],
    timeout: float | None,
    progress: Callable[[int, str], None],
) -> Failure | None:
    """Run all cells in order and return what ended the run early, None when nothing did.

    The outputs go into `notebook`. `timeout` is in seconds a cell, None for as long as it takes.
    `progress` hears of each cell that begins. Raises `ConfigError` when no kernel starts.
    """
    from nbclient import NotebookClient

    # Without times of its own, so that two runs of the same give the same file.
    client = NotebookClient(notebook, timeout=timeout, extra_arguments=QUIET, record_timing=False)
    manager = client.create_kernel_manager()
    children: list[Foreign] = []
    try:
        inherited = {name: value for name, value in os.environ.items() if name not in LEFT_OUT}
        await _start(client, manager, {"env": {**inherited, **env}, "cwd": str(directory)})
        return await _cells(client, progress)
    except asyncio.CancelledError:
        children = _descendants(manager)
        await _interrupt(client, manager)
        raise
    finally:
        await _end(client, manager, [*children, *_descendants(manager)])


async def _start(client: Foreign, manager: Foreign, options: dict[str, Any]) -> None:
    from jupyter_client.kernelspec import NoSuchKernel

    try:
        await client.async_start_new_kernel(**options)
    except NoSuchKernel as error:
        if client.nb.metadata.get("kernelspec", {}).get("language", "python") != "python":
            message = f"{error}: install that kernel first"
            raise ConfigError(message) from error
        manager.kernel_name = "python3"  # a Python kernel by another name
        await client.async_start_new_kernel(**options)
    try:
        await client.async_start_new_kernel_client()
    except RuntimeError as error:
        message = f"the kernel did not start: {one_line(str(error), 300)}"
        raise ConfigError(message) from error


async def _cells(client: Foreign, progress: Callable[[int, str], None]) -> Failure | None:
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
    """Stop the running cell as the stop button does, and give it a moment to clean up."""
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
    from jupyter_core.utils import ensure_async

    if client.kc is not None:
        client.kc.stop_channels()
    if manager.has_kernel:
        await ensure_async(manager.shutdown_kernel(now=True))
    await ensure_async(manager.cleanup_resources())
    _kill(children)


def _descendants(manager: Foreign) -> list[Foreign]:
    """Return the processes that the kernel started, whatever group they are in by now."""
    import psutil

    pid = getattr(manager.provisioner, "pid", None)
    if pid is None:
        return []
    try:
        return list(psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def _kill(processes: list[Foreign]) -> None:
    import psutil

    for process in processes:
        with suppress(psutil.Error):
            process.kill()
