"""`jupyter hermes run NOTEBOOK`: all cells in a kernel of their own, with nobody there to ask."""

from __future__ import annotations

import argparse
import asyncio
import keyword
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from hermes_nb.cli.main import FAILED, MISSED, OK, REFUSED, STOPPED, UsageProblem, is_miss
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.files import write_atomic
from hermes_nb.core.text import one_line
from hermes_nb.notebook.execute.fresh_kernel import Failure, run_notebook
from hermes_nb.notebook.interrupt import stoppable
from hermes_nb.notebook.shell import Foreign
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

_FILE = "HERMES_NB_CASSETTE_FILE"
TAG, INJECTED = "parameters", "injected-parameters"
_WORDS = {"true": True, "false": False, "none": None}


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
        raise UsageProblem(f"there is no directory {output.absolute().parent}")
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
        failure = await run_notebook(
            notebook,
            directory=file.parent,
            env=_environment(file, arguments),
            timeout=arguments.timeout,
            progress=_progress(len(notebook.cells)),
        )
    return stop.stopped, failure


def _environment(file: Path, arguments: argparse.Namespace) -> dict[str, str]:
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
        raise UsageProblem(f"there is no notebook {file}") from error
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
        raise UsageProblem(f"-p sets Python variables, and this notebook is in {language}")
    lines = ["# Parameters"]
    for name, text in parameters:
        if not name.isidentifier() or keyword.iskeyword(name):
            raise UsageProblem(f"{name!r} cannot name a variable")
        lines.append(f"{name} = {value_of(text)!r}")
    # A random id would make every run another notebook.
    made = nbformat.v4.new_code_cell("\n".join(lines), id=INJECTED, metadata={"tags": [INJECTED]})
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
        raise ConfigError(f"cannot write {output}: {error.strerror or error}") from error


def _refused(notebook: Foreign) -> Iterator[str]:
    """Yield a line for each call that was refused, as the cells' outputs tell."""
    for number, cell in enumerate(notebook.cells, 1):
        for output in cell.get("outputs", ()):
            for call in output.get("metadata", {}).get("hermes", {}).get("refused", ()):
                yield f"cell {number}: refused: {redact(visible(str(call)))}"


def _progress(cells: int) -> Callable[[int, str], None]:
    """Return what tells a terminal which cell runs; a pipe or a log hears nothing."""

    def tell(number: int, source: str) -> None:
        if sys.stderr.isatty():
            _tell(f"[{number}/{cells}] {one_line(visible(source, lines=True), 60)}")

    return tell


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
