"""The part of the `notebook` toolset that runs: cells in the live kernel, notebooks in a fresh one.

A cell's code is run nested in the live namespace and what it shows is written into the cell: the
front end is never asked to run it, since it would wait for the cell that runs now.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ToolError, TurnInterrupted
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.tools import Risk, Tool, ToolContext, ToolOutput, Toolset
from hermes_nb.notebook.cells.document import Cell, NotebookDocument
from hermes_nb.notebook.cells.finding import brief_id
from hermes_nb.notebook.cells.gists import several
from hermes_nb.notebook.cells.ipynb import read_notebook
from hermes_nb.notebook.cells.outputs import IMAGES, render, strip_ansi
from hermes_nb.notebook.cells.selecting import TOTAL_LIMIT
from hermes_nb.notebook.cells.workbench import Arguments, Workbench, runnable
from hermes_nb.notebook.running.clean_run import clean_run
from hermes_nb.notebook.running.kernel import Execution, execute
from hermes_nb.safety.visible import visible
from hermes_nb.tools.schema import tool
from hermes_nb.tools.textfile import open_regular
from hermes_nb.tools.workspace import Workspace

TIMEOUT = 600
"""Seconds that one cell, or the clean run of a whole notebook, has by default."""
_LEAST = 2_000


def run_tools(bench: Workbench, *, path: Callable[[], str], root: Callable[[], Path]) -> Toolset:
    """Return the tools that run; `path()` is the notebook's own file, `root()` the workspace."""
    return Toolset([_run_cell(bench), _run_cells(bench), _run_notebook(bench, path, root)])


def _run_cell(bench: Workbench) -> Tool:
    async def preview(arguments: Arguments) -> str:
        return await _shown(bench, [arguments["id"]])

    def gist(arguments: Arguments) -> str:
        return bench.gist(str(arguments.get("id", "")))

    @tool(toolset="notebook", risk=Risk.EXECUTE, exclusive=True, describe=gist)
    async def run_cell(  # noqa: D417
        context: ToolContext,
        id: str,  # noqa: A002
        timeout: int = TIMEOUT,
    ) -> ToolOutput:
        """Run a cell in the live kernel; what it shows goes into the cell.

        Args:
            timeout: seconds
        """
        return await _run(bench, context, [id], timeout)

    return replace(run_cell, preview=preview)


def _run_cells(bench: Workbench) -> Tool:
    async def preview(arguments: Arguments) -> str:
        return await _shown(bench, arguments["ids"])

    def gist(arguments: Arguments) -> str:
        return several(arguments.get("ids", ()), bench.named)

    @tool(toolset="notebook", risk=Risk.EXECUTE, exclusive=True, describe=gist)
    async def run_cells(  # noqa: D417
        context: ToolContext, ids: list[str], timeout: int = TIMEOUT
    ) -> ToolOutput:
        """Run cells in this order, up to the first error.

        Args:
            timeout: seconds for each
        """
        if not ids:
            message = "`ids` is empty; notebook_outline lists the cells"
            raise ToolError(message)
        return await _run(bench, context, ids, timeout)

    return replace(run_cells, preview=preview)


def _run_notebook(bench: Workbench, own: Callable[[], str], root: Callable[[], Path]) -> Tool:
    def gist(arguments: Arguments) -> str:
        return visible(str(arguments.get("path", "")))

    @tool(toolset="notebook", risk=Risk.EXECUTE, exclusive=True, paths=("path",), describe=gist)
    async def run_notebook(context: ToolContext, path: str, timeout: int = TIMEOUT) -> str:
        """Run a copy of a notebook in a fresh kernel; names the cells that fail."""
        target, name, is_own, notebook = await in_thread(lambda: _read(root(), path, own()))
        if is_own:  # what is not saved yet runs, too
            notebook["cells"] = await _as_shown(bench)
        return await clean_run(
            notebook,
            name=name,
            directory=target.parent,
            timeout=timeout,
            progress=context.progress,
        )

    return run_notebook


def _read(root: Path, path: str, own: str) -> tuple[Path, str, bool, dict[str, Any]]:
    """Return a notebook's path, its name, whether it is the one in hand, and what it holds."""
    space = Workspace(root=root)
    target = space.resolve(path)
    name = space.shown(target)
    with space.explained(target), open_regular(target) as file:
        document = read_notebook(file, name).document
    return target, name, bool(own) and target == Path(own).resolve(), document


async def _as_shown(bench: Workbench) -> list[dict[str, Any]]:
    """Return the cells of the notebook in hand, as they are now."""
    _, cells = await bench.cells()
    return [
        {"id": c.id, "cell_type": c.type, "source": c.source, "metadata": dict(c.metadata)}
        for c in cells
    ]


async def _shown(bench: Workbench, ids: Sequence[str]) -> str:
    """Return the code that would run, whole."""
    _, cells = await bench.known(ids)
    sources = [runnable(bench.shell, cell).source for cell in cells]
    titles = [f"# cell {cell.index} {brief_id(cell.id)}" for cell in cells]
    return "\n\n".join(f"{a}\n{b}" for a, b in zip(titles, sources, strict=True))


async def _run(
    bench: Workbench, context: ToolContext, ids: Sequence[str], timeout: int
) -> ToolOutput:
    """Run cells until one fails; raise ToolError with all that was shown if one did."""
    if timeout < 1:
        message = f"`timeout` is {timeout}; give the seconds that a cell may take, 1 or more"
        raise ToolError(message)
    document, cells = await bench.known(ids)
    for cell in cells:
        runnable(bench.shell, cell)
    limit = max(TOTAL_LIMIT // len(cells), _LEAST)
    shown = ToolOutput("")
    for number, cell in enumerate(cells):
        label = f"cell {cell.index}" if len(cells) == 1 else f"cell {number + 1} of {len(cells)}"
        execution = await execute(
            bench.shell, cell.source, timeout=timeout, on_output=_progress(context, label)
        )
        lost = await _written(document, cell, execution)
        if execution.interrupted:
            message = f"the user stopped cell {cell.id}"
            raise TurnInterrupted(message)
        shown = _joined(shown, _report(bench, document, cell, execution, lost, limit))
        if execution.error is not None:
            left = len(cells) - number - 1
            rest = f"\n({left} cells after it were not run)" if left else ""
            raise ToolError(head_tail(shown.text, TOTAL_LIMIT) + rest)
    return ToolOutput(head_tail(shown.text, TOTAL_LIMIT), shown.images[:IMAGES])


async def _written(document: NotebookDocument, cell: Cell, execution: Execution) -> str:
    """Write what a cell showed into it; return why it could not be, or nothing.

    The execution count stays empty: the kernel's counter belongs to the user's cells.
    """
    try:
        await document.set_outputs(cell.id, execution.outputs, execution_count=None)
    except ToolError as error:
        return f"; its outputs could not be written: {error}"
    return ""


def _report(
    bench: Workbench,
    document: NotebookDocument,
    cell: Cell,
    execution: Execution,
    lost: str,
    limit: int,
) -> ToolOutput:
    """Return what the model reads of one cell that ran."""
    output = render(execution.outputs, limit=limit, images=IMAGES if bench.sees_images() else 0)
    verb = "failed" if execution.error else "ran"
    title = f"cell {brief_id(cell.id)} (index {cell.index}) {verb} in {execution.seconds:.1f} s"
    text = output.text or "(no output)"
    if execution.error is not None and execution.error.ename not in text:
        text = f"{text}\n{execution.error.ename}: {execution.error.evalue}"
    where = f", outputs in {document.way}" if not lost else ""
    return ToolOutput(f"{title}{where}{lost}\n{text}", output.images)


def _joined(a: ToolOutput, b: ToolOutput) -> ToolOutput:
    return ToolOutput(f"{a.text}\n\n{b.text}".strip(), (*a.images, *b.images))


def _progress(context: ToolContext, label: str) -> Callable[[str], None]:
    def tell(text: str) -> None:
        last = re.split(r"[\r\n]", strip_ansi(text).strip())[-1]
        context.progress(f"{label}: {one_line(last, 100)}")

    return tell
