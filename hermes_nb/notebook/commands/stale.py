"""`%hermes stale` and `why`: list stale cells, and show what changed a variable or cell."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Sequence

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.text import one_line
from hermes_nb.notebook.display.tables import grid
from hermes_nb.notebook.document.document import Cell, FallbackDocument, source_hash
from hermes_nb.notebook.document.outline import name_of
from hermes_nb.notebook.execute.cell_runs import Run, reason, runs_of
from hermes_nb.notebook.kernel_agent import KernelAgent
from hermes_nb.safety.markup import code_span, escape
from hermes_nb.safety.redact import redact

UNREACHABLE = "The cells of this notebook cannot be read. Open it in JupyterLab or Notebook 7."


async def _cells(agent: KernelAgent) -> list[Cell]:
    document = await agent.document()
    return [] if isinstance(document, FallbackDocument) else await document.cells()


async def stale(agent: KernelAgent, _given: Namespace) -> str:
    """Return a table of the stale cells in the order to run them, as Markdown."""
    if not (cells := await _cells(agent)):
        return UNREACHABLE
    found = runs_of(agent.shell).stale(cells)
    if not found:
        return "No cell is stale."
    name = _names(cells)
    rows = [(name(each.cell), reason(each, name)) for each in found.values()]
    return grid(("cell", "why it is stale"), rows)


async def why(agent: KernelAgent, given: Namespace) -> str:
    """Describe what last changed a variable, or who wrote a cell and when it ran."""
    wanted = str(given.name).strip("[] ")
    runs = runs_of(agent.shell)
    if not wanted.isdecimal():
        run = runs.last_change(wanted)
        if run is None:
            raise ConfigError(f"no run in this kernel has changed a variable {wanted!r}")
        return f"{code_span(wanted)} was last changed by {_run_description(run)}"
    cells = await _cells(agent)
    cell = next((each for each in cells if each.execution_count == int(wanted)), None)
    if cell is None:
        raise ConfigError(f"no cell has the number [{wanted}]")
    stale = runs.stale(cells).get(cell.id)
    last = runs.last_of(cell)
    parts = [f"Written by {_writer(cell)}."]
    parts += [f"Last run by {_run_author(last)}." if last else "It has not run in this kernel."]
    parts += [f"It is stale: {reason(stale, _names(cells))}."] if stale else []
    return " ".join(parts)


def _names(cells: Sequence[Cell]) -> Callable[[int], str]:
    return lambda at: escape(name_of(cells[at]))


def _writer(cell: Cell) -> str:
    mark = cell.metadata.get("hermes")
    if not isinstance(mark, dict) or "turn" not in mark:
        return "you"
    edited = mark.get("hash") not in (None, source_hash(cell.source))
    session = mark.get("session", "")
    by = escape(f"Hermes in turn {mark['turn']} of session {session}")
    return f"{by}, and edited since" if edited else by


def _run_description(run: Run) -> str:
    words = code_span(redact(one_line(run.source, 60)))
    if run.count is not None:
        return f"cell \\[{run.count}\\] ({words}), run by {_run_author(run)}."
    return f"code outside of the cells ({words}), run by {_run_author(run)}."


def _run_author(run: Run) -> str:
    return f"Hermes in turn {run.turn}" if run.session else "you"
