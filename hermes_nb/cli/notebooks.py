"""`jupyter hermes run NOTEBOOK`: all cells in a kernel of their own, with nobody there to ask.

However the run ends, the kernel goes and so does whatever it started: it is interrupted first, so
that a turn can stop its commands, then killed with its group, then what escaped the group.
"""

from __future__ import annotations

import argparse
import asyncio
import keyword
import math
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hermes_nb.cli.main import FAILED, MISSED, OK, REFUSED, STOPPED, UsageProblem, is_miss
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.files import write_atomic
from hermes_nb.core.text import one_line
from hermes_nb.notebook.interrupt import stoppable
from hermes_nb.notebook.values.kinds import Foreign
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

_FILE = "HERMES_NB_CASSETTE_FILE"
TAG, INJECTED = "parameters", "injected-parameters"
_WORDS = {"true": True, "false": False, "none": None}
GRACE = 1.0
"""Seconds that a running cell has to end after a stop."""
LEFT_OUT = ("JPY_SESSION_NAME", "JPY_PARENT_PID")
"""What a kernel would take for its own notebook and server: those of the kernel we run in."""
QUIET = ["--IPKernelApp.log_level=40"]
"""Errors only: the kernel's warnings on standard error are not the notebook's."""


def run(file: Path, arguments: argparse.Namespace) -> int:
    """Run a notebook, write it where it is wanted, say how it ended, and return the exit code."""
    notebook = _read(file)
    if arguments.parameters:
        _parametrise(notebook, arguments.parameters)
    if arguments.accept:
        from hermes_nb.models.cassette_file import Tape

        Tape(_cassette(file)).accept()
    output = Path(arguments.output) if arguments.output else None
    if output is not None and not output.absolute().parent.is_dir():
        message = f"there is no directory {output.absolute().parent}"
        raise UsageProblem(message)
    stopped, failure = asyncio.run(_run(notebook, file.absolute(), arguments))
    if output is not None:
        _write(notebook, output)
    if stopped:
        _tell("stopped")
        return STOPPED
    refused = list(_refused(notebook))
    for line in refused:
        _tell(line)
    if failure is None:
        return REFUSED if refused else OK
    _tell(redact(visible(str(failure))))
    return MISSED if is_miss(failure.error) else FAILED


async def _run(
    notebook: Foreign, file: Path, arguments: argparse.Namespace
) -> tuple[bool, Failure | None]:
    """Return whether Ctrl-C ended the run, and else what failed."""
    failure = None
    with stoppable() as stop:
        failure = await _execute(
            notebook,
            directory=file.parent,
            env=_environment(file, arguments),
            timeout=arguments.timeout,
            progress=_progress(len(notebook.cells)),
        )
    return stop.stopped, failure


def _environment(file: Path, arguments: argparse.Namespace) -> dict[str, str]:
    """Return what tells the kernel's Hermes how to run."""
    wanted = {
        "HERMES_NB_APPROVE": arguments.approve,
        "HERMES_NB_MODEL": arguments.model,
        "HERMES_NB_MAX_REQUESTS": arguments.max_requests,
        "HERMES_NB_CASSETTE": arguments.cassette,
    }
    if arguments.cassette:
        wanted[_FILE] = _cassette(file)  # the kernel knows no notebook of its own
    return {name: str(value) for name, value in wanted.items() if value is not None}


def _cassette(file: Path) -> Path:
    from hermes_nb.models.cassette import SUFFIX

    return Path(os.environ.get(_FILE) or file.absolute().with_name(file.stem + SUFFIX))


def _read(file: Path) -> Foreign:
    import nbformat

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # cells without ids get them
            notebook = nbformat.read(file, as_version=4)
            nbformat.validate(notebook, relax_add_props=True)  # what tools add is their own
    except FileNotFoundError as error:
        message = f"there is no notebook {file}"
        raise UsageProblem(message) from error
    except Exception as error:  # whatever nbformat raises on what is no notebook
        message = f"{file} cannot be read as a notebook: {one_line(str(error), 300)}"
        raise UsageProblem(message) from error
    return notebook


def _parametrise(notebook: Foreign, parameters: Sequence[tuple[str, str]]) -> None:
    """Put values into a cell of their own, as papermill does it; raise `UsageProblem`.

    It stands behind the cell tagged `parameters`, or else first; one of an earlier run goes.
    """
    import nbformat

    language = notebook.metadata.get("kernelspec", {}).get("language", "python")
    if language != "python":
        message = f"-p sets Python variables, and this notebook is in {language}"
        raise UsageProblem(message)
    lines = ["# Parameters"]
    for name, text in parameters:
        if not name.isidentifier() or keyword.iskeyword(name):
            message = f"{name!r} cannot name a variable"
            raise UsageProblem(message)
        lines.append(f"{name} = {value_of(text)!r}")
    # A random id would make every run another notebook.
    made: Any = nbformat.v4.new_code_cell(
        "\n".join(lines), id=INJECTED, metadata={"tags": [INJECTED]}
    )
    tags = [(each, each.metadata.get("tags", ())) for each in notebook.cells]
    cells = [(each, tagged) for each, tagged in tags if INJECTED not in tagged]
    at = next((at for at, (_, tagged) in enumerate(cells, 1) if TAG in tagged), 0)
    notebook.cells = [each for each, _ in cells]
    notebook.cells.insert(at, made)


def value_of(text: str) -> str | float | bool | None:
    """Return what a word on a command line stands for: None, a truth value, a number, or itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number):  # the others have no literal
            return number
    return text


def _write(notebook: Foreign, output: Path) -> None:
    import nbformat

    text: str = nbformat.writes(notebook)
    try:
        write_atomic(output, text.encode("utf-8", "replace"))
    except OSError as error:
        message = f"cannot write {output}: {error.strerror or error}"
        raise ConfigError(message) from error


def _refused(notebook: Foreign) -> Iterator[str]:
    """Yield a line for each call that was refused, as the cells' outputs tell."""
    for number, cell in enumerate(notebook.cells, 1):
        for output in cell.get("outputs", ()):
            for call in output.get("metadata", {}).get("hermes", {}).get("refused", ()):
                yield f"cell {number}: refused: {redact(visible(str(call)))}"


def _progress(cells: int) -> Any:  # noqa: ANN401 - a function of a cell's number and source
    """Return what tells a terminal which cell runs; a pipe or a log hears nothing."""

    def tell(number: int, source: str) -> None:
        if sys.stderr.isatty():
            _tell(f"[{number}/{cells}] {one_line(visible(source, lines=True), 60)}")

    return tell


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


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


async def _execute(
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
