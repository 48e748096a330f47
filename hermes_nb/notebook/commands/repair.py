"""`%hermes fix` and `%hermes explain`: turns with prompts of ours.

They go through `interpolate` as every prompt does. What they quote was not typed as a prompt, an
error's message may even come from afar, so nothing in the quotes is ever evaluated. The last
cell's error is in the notebook context of the same message, and is not said twice.
"""

from __future__ import annotations

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import head_tail
from hermes_nb.notebook.cells.document import Cell
from hermes_nb.notebook.cells.workbench import is_message
from hermes_nb.notebook.failed import FailedCell, last_error
from hermes_nb.notebook.input.interpolate import literal
from hermes_nb.notebook.resident import Resident
from hermes_nb.notebook.values.kinds import Foreign
from hermes_nb.safety.markup import code_block
from hermes_nb.safety.redact import redact

SOURCE = 6_000
"""Characters of a cell's source that a prompt quotes; read_cells has the rest."""


async def fix(resident: Resident, words: str) -> str:
    """Take a turn that mends the cell which failed last."""
    await resident.ask(fix_prompt(resident.shell, words))
    return ""


async def explain(resident: Resident, words: str) -> str:
    """Take a turn that explains the last error, or else the last cell."""
    above = await resident.desk.cell_above()
    await resident.ask(explain_prompt(resident.shell, above=above, wish=words))
    return ""


def fix_prompt(shell: Foreign, wish: str = "") -> str:
    """Return the request to mend the cell that failed last.

    `wish` is what the user adds. Raises `ConfigError` when nothing failed.
    """
    failed = last_error(shell, earlier=True)
    if failed is None:
        message = "no cell has failed; run the cell to be fixed first, or say what is wrong"
        raise ConfigError(message)
    if failed.cell_id:
        task = f"Change cell {failed.cell_id} itself with edit_cell, then run it with run_cell"
    else:
        task = (
            "Find that cell with notebook_outline, change it with edit_cell, run it with run_cell"
        )
    parts = [
        "A cell failed. Mend it.",
        *_evidence(failed, told=last_error(shell) is not None),
        f"{task} to see that it works. Change as little as the cause asks for, and nothing that "
        "only hides the error. If the cause is in an earlier cell or in the data, say so and mend "
        "it there. End with one or two sentences: what was wrong, what you changed.",
        wish,
    ]
    return "\n\n".join(part for part in parts if part)


def explain_prompt(shell: Foreign, *, above: Cell | None = None, wish: str = "") -> str:
    """Return the request to explain the last error or, if there is none, the cell above.

    `above` is that cell where the notebook can be read, else the last input stands for it. Raises
    `ConfigError` when there is neither.
    """
    failed = last_error(shell)
    if failed is not None:
        parts = [
            "A cell failed. Explain the error: what it means, which line caused it and why, and "
            "how to mend it. Look at the variables involved if that helps; change nothing.",
            *_evidence(failed, told=True),
            wish,
        ]
        return "\n\n".join(part for part in parts if part)
    source = above.source if above is not None else _last_input(shell)
    if not source.strip():
        message = "there is no error and no cell above to explain"
        raise ConfigError(message)
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
    """Return the failing cell and its error as quotes; `told` is what the context says anyway."""
    where = f" {failed.cell_id}" if failed.cell_id else ""
    cell = [f"Cell{where}:\n{_quoted(failed.source, 'python')}"] if failed.source.strip() else []
    if told:
        return [*cell, "The error is in the notebook context below."]
    error = "\n".join([failed.title, *failed.lines])
    return [*cell, literal(f"Error:\n{code_block(error, 'text')}")]


def _quoted(source: str, language: str) -> str:
    return literal(code_block(redact(head_tail(source.strip("\n"), SOURCE)), language))


def _last_input(shell: Foreign) -> str:
    """Return the last input before the running one that was not a message to the agent."""
    history = getattr(shell.history_manager, "input_hist_raw", [])
    earlier = (source for source in reversed(history[:-1]) if source.strip())
    return next((source for source in earlier if not is_message(source)), "")
