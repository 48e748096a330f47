"""`%hermes fix` and `explain`: turns about the last error or a cell."""

from __future__ import annotations

from argparse import Namespace

from hermes_nb.agent.undo.changes import called
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.notebook.document.document import Cell
from hermes_nb.notebook.document.outputs import strip_ansi
from hermes_nb.notebook.failed_cell import MESSAGE, FailedCell, last_error
from hermes_nb.notebook.interpolate import literal
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.notebook.shell import Shell, is_message
from hermes_nb.safety.markup import code_block
from hermes_nb.safety.redact import redact

SOURCE = 6_000
"""Maximum characters of a cell's source in a prompt; read_cells returns the whole source."""


async def fix(agent: KernelAgent, given: Namespace) -> str:
    """Run a turn that fixes the last failed cell, or the cell given by `--cell`."""
    cell = await _cell(agent, given.cell)
    await agent.ask(fix_prompt(agent.shell, given.wish, cell=cell))
    return ""


async def explain(agent: KernelAgent, given: Namespace) -> str:
    """Run a turn that explains the last error, the last cell, or the cell given by `--cell`."""
    cell = await _cell(agent, given.cell)
    above = await agent.access.cell_above(agent.place) if cell is None else cell
    named = cell is not None
    await agent.ask(explain_prompt(agent.shell, above=above, wish=given.wish, named=named))
    return ""


async def _cell(agent: KernelAgent, wanted: str) -> Cell | None:
    """Return the specified cell with its outputs, or None if no cell was specified.

    `wanted` is a cell's id or its execution count, `5` or `[5]`.
    """
    if not wanted:
        return None
    document = await agent.document()
    cells = await document.sketch()
    counted = [cell.id for cell in cells if str(cell.execution_count) == wanted.strip("[]")]
    known = any(cell.id == wanted for cell in cells)
    return await document.get(counted[-1] if counted and not known else wanted)


def _failure(shell: Shell, cell: Cell) -> tuple[FailedCell | None, bool]:
    """Return a cell's failure or None, and whether the turn's context includes it anyway."""
    output = next((o for o in cell.outputs or () if o.get("output_type") == "error"), None)
    if output is None:
        return None, False
    last = last_error(shell)
    if last is not None and last.cell_id == cell.id:
        return last, True
    trace = output.get("traceback")
    lines = [str(line) for line in trace] if isinstance(trace, list) else []
    told = FailedCell(
        ename=one_line(str(output.get("ename", "")), 300),
        evalue=head_tail(redact(strip_ansi(str(output.get("evalue", "")))), MESSAGE),
        lines=(head_tail(redact(strip_ansi("\n".join(lines))), SOURCE),) if lines else (),
        source=cell.source,
        cell_id=cell.id,
    )
    return told, False


def fix_prompt(shell: Shell, wish: str = "", *, cell: Cell | None = None) -> str:
    """Return the prompt to fix the last failed cell, or `cell`.

    `wish` is text from the user. Raises `ConfigError` if no cell has failed.
    """
    if cell is not None:
        failed, told = _failure(shell, cell)
        if failed is None:
            name = called(cell.execution_count, cell.index + 1)
            raise ConfigError(
                f"{name} shows no error; run it first, or describe the problem in a prompt"
            )
    else:
        failed, told = last_error(shell, earlier=True), last_error(shell) is not None
    if failed is None:
        message = "no cell has failed; run the cell first, or describe the problem in a prompt"
        raise ConfigError(message)
    if failed.cell_id:
        task = f"Change cell {failed.cell_id} itself with edit_cell, then run it with run_cell"
    else:
        task = (
            "Find that cell with notebook_outline, change it with edit_cell, run it with run_cell"
        )
    parts = [
        "A cell failed. Mend it.",
        *_evidence(failed, told=told),
        f"{task} to see that it works. Change as little as the cause asks for, and nothing that "
        "only hides the error. If the cause is in an earlier cell or in the data, say so and mend "
        "it there. End with one or two sentences: what was wrong, what you changed.",
        wish,
    ]
    return "\n\n".join(part for part in parts if part)


def explain_prompt(
    shell: Shell, *, above: Cell | None = None, wish: str = "", named: bool = False
) -> str:
    """Return the prompt to explain the last error or, without one, the cell above.

    Raises `ConfigError` if there is neither.

    Args:
        shell: the kernel's IPython shell
        above: the cell to explain, or None to use the last input instead
        wish: text from the user
        named: whether the user chose `above`; then its own error is explained, not the last one
    """
    told = True
    if named and above is not None:
        failed, told = _failure(shell, above)
    else:
        failed = last_error(shell)
    if failed is not None:
        parts = [
            "A cell failed. Explain the error: what it means, which line caused it and why, and "
            "how to mend it. Look at the variables involved if that helps; change nothing.",
            *_evidence(failed, told=told),
            wish,
        ]
        return "\n\n".join(part for part in parts if part)
    source = above.source if above is not None else _last_input(shell)
    if not source.strip():
        raise ConfigError("there is no error and no cell above to explain")
    where = f" {above.id}" if above is not None else ""
    language = "python" if above is None or above.type == "code" else "markdown"
    parts = [
        f"Explain cell{where}: what it does, step by step where it is not plain, and what one "
        "should know before relying on it. Change nothing.",
        _quoted(source, language),
        wish,
    ]
    return "\n\n".join(part for part in parts if part)


def _evidence(failed: FailedCell, *, told: bool) -> list[str]:
    """Quote the failed cell and its error, or with `told`, point to the context for the error."""
    where = f" {failed.cell_id}" if failed.cell_id else ""
    cell = [f"Cell{where}:\n{_quoted(failed.source, 'python')}"] if failed.source.strip() else []
    if told:
        return [*cell, "The error is in the notebook context below."]
    error = "\n".join([failed.title, *failed.lines])
    return [*cell, literal(f"Error:\n{code_block(error, 'text')}")]


def _quoted(source: str, language: str) -> str:
    return literal(code_block(redact(head_tail(source.strip("\n"), SOURCE)), language))


def _last_input(shell: Shell) -> str:
    """Return the last input before the running cell that was not a prompt to the agent."""
    history = getattr(shell.history_manager, "input_hist_raw", [])
    earlier = (source for source in reversed(history[:-1]) if source.strip())
    return next((source for source in earlier if not is_message(source)), "")
