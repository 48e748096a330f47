"""The tools that run code, cells and whole notebooks, and tools that inspect variables.

They are async, so they run on the event loop's thread, which owns the shell's namespace. A cell's
code is executed nested in the live namespace, and its outputs are written into the cell. The front
end is not asked to run it, because it would wait for the running cell to end.
"""

from __future__ import annotations

import asyncio
import difflib
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

from hermes_nb.core.errors import ToolError, TurnInterrupted
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json, Origin, least_trusted
from hermes_nb.core.protocols import Variable
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import (
    Arguments,
    Content,
    Place,
    Question,
    Risk,
    Tool,
    ToolContext,
    ToolOutput,
    Toolset,
)
from hermes_nb.notebook.display.drawings import show_drawings
from hermes_nb.notebook.document.document import (
    Cell,
    FallbackDocument,
    NotebookDocument,
    Output,
    as_nbformat,
    brief_id,
    find,
)
from hermes_nb.notebook.document.ipynb import read_notebook, source_of
from hermes_nb.notebook.document.outline import (
    TOTAL_LIMIT,
    KnownCells,
    digest,
    name_of,
    runnable,
    several,
    telling,
)
from hermes_nb.notebook.document.outputs import IMAGES, render
from hermes_nb.notebook.execute.cell_runs import runs_of, stale_line
from hermes_nb.notebook.execute.code_lock import agent_code, code_lock
from hermes_nb.notebook.execute.nested import Execution, execute
from hermes_nb.notebook.execute.network import kernel_origin, take_in
from hermes_nb.notebook.execute.trial import copies_of, current_what_if
from hermes_nb.notebook.execute.variable_history import mention
from hermes_nb.notebook.shell import (
    Shell,
    next_number,
    running_cell,
    runs_beside,
    working_directory,
)
from hermes_nb.notebook.variables import (
    brief,
    describe,
    user_variables,
    variables_of,
    without_hidden,
)
from hermes_nb.safety.guard import Way
from hermes_nb.safety.provenance import outside
from hermes_nb.safety.redact import redact
from hermes_nb.tools.schema import tool
from hermes_nb.tools.workspace import Workspace, open_regular

CODE_TIMEOUT = 60.0
"""Default `run_python` time limit in seconds."""
LISTED = 60
"""Maximum variables in a `list_variables` result."""


def kernel_tools(
    shell: Shell,
    *,
    timeout: float | None = CODE_TIMEOUT,
) -> Toolset:
    """Return the tools that work in `shell`'s namespace.

    `timeout` is in seconds, or None for no limit.
    """

    def gist(arguments: Arguments) -> str:
        return telling(str(arguments.get("code", "")))

    @tool(toolset="kernel", risk=Risk.EXECUTE, exclusive=True, describe=gist)
    async def run_python(context: ToolContext, code: str) -> ToolOutput:
        """Run Python in the live kernel; returns output and last value. No cell records it."""
        if current_what_if() is not None:
            return await copied(context, code)
        async with agent_code(shell):
            execution = await permitted(context, shell, code, timeout)
            show_drawings(shell, execution.outputs)
        runs_of(shell).ran(context.place, code, execution.variables.names())
        note = mention(shell, execution.variables)
        return _answer(shell, execution, note, images=IMAGES if context.sees_images else 0)

    @tool(toolset="kernel", risk=Risk.EXECUTE, exclusive=True, describe=gist)
    async def try_python(context: ToolContext, code: str) -> ToolOutput:
        """Run Python on a copy of the variables, without network; changes nothing."""
        return await copied(context, code)

    async def copied(context: ToolContext, code: str) -> ToolOutput:
        execution, note = await copies_of(shell).run(context, code)
        show_drawings(shell, execution.outputs)
        return _answer(shell, execution, note, images=IMAGES if context.sees_images else 0)

    @tool(toolset="kernel", risk=Risk.READ, exclusive=True)
    async def inspect_variable(name: str) -> ToolOutput:
        """Show a variable: type, shape, columns, missing values, first rows or items."""
        variables = user_variables(shell.user_ns, shell.user_ns_hidden)
        if name not in variables and (name.startswith("_") or name not in shell.user_ns):
            raise ToolError(_no_such(name, list(variables)))
        return ToolOutput(describe(name, shell.user_ns[name]), origin=kernel_origin())

    @tool(toolset="kernel", risk=Risk.READ, exclusive=True)
    async def list_variables() -> ToolOutput:
        """List the user's variables with type and shape."""
        variables = variables_of(shell)
        lines = [_line(each, shell.user_ns.get(each.name)) for each in variables[-LISTED:]]
        if len(variables) > LISTED:
            lines.insert(0, f"({len(variables) - LISTED:,} older ones left out)")
        return ToolOutput(redact("\n".join(lines)) or "(no variables)", origin=kernel_origin())

    return Toolset([run_python, try_python, inspect_variable, list_variables])


async def permitted(
    context: ToolContext, shell: Shell, code: str, timeout: float | None
) -> Execution:
    """Run code with the permissions granted by the guard.

    If it is denied network access and the user then allows it, the code runs again. The code may
    store untrusted content from the conversation in variables, so this is recorded first.
    """
    if outside(context.messages):
        take_in()
    run = partial(execute, shell, code, timeout=timeout, place=context.place)
    way = context.permit if isinstance(context.permit, Way) else Way()
    execution = await run(offline=way.offline or bool(way.closed))
    if execution.refused and context.ask is not None and not way.closed:
        question = Question(
            why=(
                "it was refused network access, because the conversation contains untrusted "
                "content. It would run again from the start, with network access"
            ),
            shown=visible(code, lines=True),
        )
        if await context.ask(question) != "deny":
            execution = await run(approved=True)
    return execution


def _answer(shell: Shell, execution: Execution, note: str, *, images: int) -> ToolOutput:
    """Return an execution's result for the model; raise if it failed or was interrupted."""
    output = render(execution.outputs, images=images)
    if execution.interrupted:
        raise TurnInterrupted("the user stopped the code")
    text = "\n".join(part for part in (output.text, note) if part)
    text = without_hidden(text, shell)
    if execution.error is None:
        return ToolOutput(text or "(no output)", output.images, execution.origin)
    if execution.error.ename not in output.text:
        told = without_hidden(execution.error.evalue, shell)
        text = f"{text}\n{execution.error.ename}: {told}".strip()
    error = ToolError(text)
    error.origin = execution.origin
    raise error


def _line(variable: Variable, value: object) -> str:
    columns = (f"{name} {dtype}" for name, dtype in (variable.columns or {}).items())
    listed = ", ".join(columns)
    return one_line(brief(variable, value) + (f": {listed}" if listed else ""), 300)


def _no_such(name: str, names: list[str]) -> str:
    name = one_line(name, 60)
    if not name.isidentifier():
        return f"{name!r} is not a plain name; use run_python to look at an expression"
    near = difflib.get_close_matches(name, names, n=3) or names[-5:]
    hint = f"near it: {', '.join(near)}" if near else "there are no variables yet"
    return f"no variable {name!r}; {hint}"


RUNNER = "run_cell"
"""Name of the tool that runs a cell."""
RAN = "It ran when the user approved its text, and was not run again:"
CELL_TIMEOUT = 600
"""Default time limit in seconds for one cell, or for a clean run of a whole notebook."""
IDLE = 0.5
"""Seconds between looks at a cell that has not begun while the kernel runs nothing."""
_LEAST = 2_000
"""Minimum characters of output per cell."""


def run_tools(bench: KnownCells, *, root: Path | None) -> Toolset:
    """Return the tools that run cells; `root` is the workspace (None: the working directory)."""
    makers = (_run_cell, _run_cells, _wait_for)
    return Toolset([*(make(bench) for make in makers), _run_notebook(bench, root)])


def _scope(bench: KnownCells, ids: object, otherwise: str) -> str:
    """Return the scope of "always": code that Hermes wrote is covered wherever it is."""
    return "run_python" if bench.owns(ids) else otherwise


def _run_cell(bench: KnownCells) -> Tool:
    async def preview(context: ToolContext, arguments: Arguments) -> Content:
        return await _shown(bench, context.place, [arguments["id"]])

    async def result(context: ToolContext, arguments: Arguments) -> str:
        """Return the cell's code, and look again at who wrote it."""
        _, (cell,) = await bench.known(context.place, [arguments["id"]])
        return cell.source

    async def known(context: ToolContext, arguments: Arguments) -> ToolOutput | None:
        """Return the output of a cell that the reply before this call wrote and ran."""
        ran = bench.ran.get(context.place.session)
        if ran is None or ran[0] not in _just_answered(context):
            return None
        _, written, output = ran
        _, (cell,) = await bench.known(context.place, [arguments["id"]])
        if (cell.id, cell.source) != (written.id, written.source):
            return None
        return replace(output, text=f"{RAN}\n{output.text}")

    @tool(
        toolset="notebook",
        risk=Risk.EXECUTE,
        exclusive=True,
        preview=preview,
        result=result,
        known=known,
        describe=bench.gist,
        scope=lambda arguments: _scope(bench, arguments.get("id"), RUNNER),
    )
    async def run_cell(context: ToolContext, id: str, timeout: int = CELL_TIMEOUT) -> ToolOutput:
        """Run a cell in the live kernel and store its outputs in the cell.

        Args:
            timeout: seconds
        """
        return await run_known(bench, context, [id], timeout)

    return run_cell


def _just_answered(context: ToolContext) -> set[str]:
    """Return the ids of the calls of the reply before this one, without other messages between."""
    found: set[str] = set()
    earlier = list(context.messages)
    while earlier and earlier[-1].role == "assistant":
        earlier.pop()
    while earlier and earlier[-1].role == "tool":
        found.add(earlier.pop().call_id)
    return found


def _run_cells(bench: KnownCells) -> Tool:
    async def preview(context: ToolContext, arguments: Arguments) -> Content:
        return await _shown(bench, context.place, arguments["ids"])

    async def result(context: ToolContext, arguments: Arguments) -> str:
        """Return the cells' code, and look again at who wrote it."""
        _, cells = await bench.known(context.place, arguments["ids"])
        return "\n\n".join(cell.source for cell in cells)

    @tool(
        toolset="notebook",
        risk=Risk.EXECUTE,
        exclusive=True,
        preview=preview,
        result=result,
        scope=lambda arguments: _scope(bench, arguments.get("ids"), "run_cells"),
        describe=lambda arguments: several(arguments.get("ids", ()), bench.named),
    )
    async def run_cells(
        context: ToolContext, ids: list[str], timeout: int = CELL_TIMEOUT
    ) -> ToolOutput:
        """Run cells in this order, until one fails.

        Args:
            timeout: seconds per cell
        """
        if not ids:
            raise ToolError("`ids` is empty; notebook_outline lists the cells")
        return await run_known(bench, context, ids, timeout)

    return run_cells


def _wait_for(bench: KnownCells) -> Tool:
    @tool(
        toolset="notebook",
        exclusive=True,
        describe=lambda arguments: bench.gist({"id": arguments.get("cell", "")}),
    )
    async def wait_for(context: ToolContext, cell: str) -> ToolOutput:
        """Sleep until the user's running cell has ended; return its output."""
        document, cells = await bench.cells(context.place)
        known = find(cells, cell)
        if known.type != "code":
            raise ToolError(f"cell {known.id} is a {known.type} cell; only code cells run")
        started, lock = time.monotonic(), code_lock(bench.shell)
        while (ran := await document.get(known.id)).running:
            if lock is None or not runs_beside() or known.id == running_cell(bench.shell):
                raise ToolError(f"cell {known.id} runs after this turn; end your answer first")
            context.progress("waiting for your cell")
            await lock.next_end(IDLE)
            document = await bench.open(context.place)
            if isinstance(document, FallbackDocument):
                raise ToolError(f"cell {known.id} has ended, but its page is closed: no output")
        seconds = time.monotonic() - started
        outputs = list(ran.outputs or ())
        failure = next((each for each in outputs if each["output_type"] == "error"), None)
        images = IMAGES if context.sees_images else 0
        output = render(outputs, limit=TOTAL_LIMIT, images=images)
        verb = "failed" if failure else "has run" if ran.execution_count else "has not run"
        title = f"cell {brief_id(ran.id)} (index {ran.index}) {verb}; waited {seconds:.1f} s"
        text = without_hidden(f"{title}\n{output.text or '(no output)'}", bench.shell)
        if failure is None:
            return ToolOutput(text, output.images, kernel_origin())
        error = ToolError(text)
        error.origin = kernel_origin()
        raise error

    return wait_for


def _run_notebook(bench: KnownCells, root: Path | None) -> Tool:
    async def held(
        place: Place, path: str, *, outputs: bool = False
    ) -> tuple[Path, str, bool, dict[str, Json]]:
        """Return a notebook's path and name, whether it is the open one, and its content.

        For the open notebook the content includes unsaved changes.
        """
        target, name, is_own, document = await in_thread(
            _read, root or working_directory(), path, place.notebook, outputs=outputs
        )
        if is_own:
            opened, cells = await bench.cells(place)
            shown = await opened.cells(outputs=True) if outputs else cells
            document["cells"] = [as_nbformat(cell) for cell in shown]
        return target, name, is_own, document

    async def preview(context: ToolContext, arguments: Arguments) -> Content:
        """Return the complete code cells to run."""
        _, name, is_own, notebook = await held(context.place, str(arguments["path"]))
        code = _code(notebook)
        return Content(
            shown=f"{name}, in a fresh kernel:\n\n{code}",
            digests={name: digest(code)},
            whole=not is_own,  # not remembered, because a later call only compares the saved file
        )

    def gist(arguments: Arguments) -> str:
        return visible(str(arguments.get("path", "")))

    @tool(
        toolset="notebook",
        risk=Risk.EXECUTE,
        exclusive=True,
        paths=("path",),
        preview=preview,
        describe=gist,
    )
    async def run_notebook(
        context: ToolContext, path: str, timeout: int = CELL_TIMEOUT
    ) -> ToolOutput:
        """Run a copy of a notebook in a fresh kernel; list the cells that fail or differ."""
        target, name, _, notebook = await held(context.place, path, outputs=True)
        from hermes_nb.notebook.execute.verify import clean_run

        told = await clean_run(
            notebook,
            name=name,
            directory=target.parent,
            timeout=timeout,
            progress=context.progress,
        )
        # Network access in the fresh kernel is not recorded: judge by the code.
        origin: Origin = "outside" if _RETRIEVES.search(_code(notebook)) else "workspace"
        return ToolOutput(told, origin=origin)

    return run_notebook


_RETRIEVES = re.compile(
    r"https?://|ftp://|s3://|\b(?:requests|httpx|urllib|aiohttp|socket|curl|wget|boto3|gcsfs)\b"
)
"""Code that may fetch something; then the notebook's results are untrusted content."""


def _code(notebook: Mapping[str, Json]) -> str:
    cells = [cell for cell in notebook.get("cells", ()) if cell.get("cell_type") == "code"]
    return "\n\n".join(f"# cell {n}\n{source_of(cell)}" for n, cell in enumerate(cells, 1))


def _read(
    root: Path, path: str, own: str, *, outputs: bool
) -> tuple[Path, str, bool, dict[str, Json]]:
    space = Workspace(root=root)
    target = space.resolve(path)
    name = space.shown(target)
    with space.explained(target), open_regular(target) as file:
        notebook = read_notebook(file, name)
        for cell in notebook.cells:
            if cell["cell_type"] == "code":
                cell["outputs"] = notebook.outputs(cell) if outputs else []
        document = notebook.document
    return target, name, bool(own) and target == Path(own).resolve(), document


async def _shown(bench: KnownCells, place: Place, ids: Sequence[str]) -> Content:
    """Return the complete cells to run."""
    _, cells = await bench.known(place, ids)
    told = [f"# {name_of(cell)}\n{runnable(bench.shell, cell).source}" for cell in cells]
    digests = {f"cell {cell.id}": digest(cell.source) for cell in cells}
    return Content(shown="\n\n".join(told), digests=digests)


async def run_known(
    bench: KnownCells, context: ToolContext, ids: Sequence[str], timeout: int
) -> ToolOutput:
    """Run cells until one fails; in that case, raise `ToolError` with all outputs so far."""
    if timeout < 1:
        raise ToolError(f"`timeout` is {timeout}; give the seconds that a cell may take, 1 or more")
    document, cells = await bench.known(context.place, ids)
    for cell in cells:
        runnable(bench.shell, cell)
    limit = max(TOTAL_LIMIT // len(cells), _LEAST)
    shown, images = ToolOutput(""), IMAGES if context.sees_images else 0
    for number, cell in enumerate(cells):
        if len(cells) > 1:
            context.progress(f"cell {number + 1} of {len(cells)}")
            await asyncio.sleep(0)  # show progress before the cell blocks the loop
        async with agent_code(bench.shell):
            count, lost = next_number(bench.shell), ""
            with _counting(bench.shell, count):
                execution = await permitted(context, bench.shell, cell.source, timeout)
            names = execution.variables.names()
            failed = 0 if execution.error is not None else None
            runs_of(bench.shell).ran(
                context.place, cell.source, names, cell=cell.id, count=count, failed=failed
            )
            try:
                numbered = _numbered(execution.outputs, count)
                await document.set_outputs(cell.id, numbered, execution_count=count)
                _count(bench.shell, count, cell.source)
            except ToolError as refusal:
                lost = f"; its outputs could not be written: {refusal}"
        if execution.interrupted:
            raise TurnInterrupted(f"the user stopped cell {cell.id}")
        shown = _joined(shown, _report(document, cell, execution, lost, limit, images))
        if execution.error is not None:
            left = len(cells) - number - 1
            rest = f"\n({left} cells after it were not run)" if left else ""
            told = (
                head_tail(shown.text, TOTAL_LIMIT) + rest + await stale_note(bench, context.place)
            )
            error = ToolError(told)
            error.origin = shown.origin
            raise error
    text = head_tail(shown.text, TOTAL_LIMIT) + await stale_note(bench, context.place)
    return replace(shown, text=text, images=shown.images[:IMAGES])


async def stale_note(
    bench: KnownCells, place: Place, *, earlier: bool = False, but: str = ""
) -> str:
    """Return a line about the stale cells except `but`, on a line of its own, or ""."""
    try:
        document = await bench.open(place)
        cells = await document.cells()
    except ToolError:  # the result itself says what it could not do
        return ""
    if isinstance(document, FallbackDocument):
        return ""
    found = runs_of(bench.shell).stale(cells)
    found.pop(but, None)
    line = stale_line(found, cells, earlier=earlier)
    return f"\n{line}" if line else ""


def approved_code(context: ToolContext) -> str:
    """Return the code that the user approved to run once the call has written it; "" for none."""
    return context.permit.runs if isinstance(context.permit, Way) else ""


async def run_approved(
    bench: KnownCells, context: ToolContext, cell: Cell, written: str
) -> ToolOutput:
    """Run a cell that the user approved together with its text; on failure, the text stays."""
    try:
        ran = await run_known(bench, context, [cell.id], CELL_TIMEOUT)
    except ToolError as error:
        ran = ToolOutput(str(error), origin=error.origin)
    bench.ran[context.place.session] = (context.call.id, cell, ran)
    return replace(ran, text=f"{written}\n{ran.text}")


@contextmanager
def _counting(shell: Shell, count: int) -> Iterator[None]:
    """Set the kernel's execution count while a cell runs, because error messages contain it."""
    before, shell.execution_count = shell.execution_count, count
    try:
        yield
    finally:
        shell.execution_count = before


def _numbered(outputs: Sequence[Output], count: int) -> list[Output]:
    """Return outputs with their cell's execution count."""
    return [
        {**each, "execution_count": count} if each["output_type"] == "execute_result" else each
        for each in outputs
    ]


def _count(shell: Shell, count: int, source: str) -> None:
    """Make the kernel count a cell that ran inside the running one.

    The running cell gets the next number, in the input history as well.
    """
    for name in ("input_hist_parsed", "input_hist_raw"):
        getattr(shell.history_manager, name, []).insert(count, source)
    shell.execution_count += 1


def _report(
    document: NotebookDocument,
    cell: Cell,
    execution: Execution,
    lost: str,
    limit: int,
    images: int,
) -> ToolOutput:
    output = render(execution.outputs, limit=limit, images=images)
    verb = "failed" if execution.error else "ran"
    title = f"cell {brief_id(cell.id)} (index {cell.index}) {verb} in {execution.seconds:.1f} s"
    text = output.text or "(no output)"
    if execution.error is not None and execution.error.ename not in text:
        text = f"{text}\n{execution.error.ename}: {execution.error.evalue}"
    where = f", outputs in {document.way}" if not lost else ""
    return ToolOutput(f"{title}{where}{lost}\n{text}", output.images, execution.origin)


def _joined(a: ToolOutput, b: ToolOutput) -> ToolOutput:
    origin = least_trusted((a.origin, b.origin))
    return ToolOutput(f"{a.text}\n\n{b.text}".strip(), (*a.images, *b.images), origin)
