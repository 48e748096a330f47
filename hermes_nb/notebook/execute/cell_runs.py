"""The runs of code in this kernel: cells, and code of the agent outside of them.

Cells that ran before the extension was loaded are taken from the input history.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from traceback import walk_tb
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from hermes_nb.notebook.document.dataflow import Lineage, RanCell, Stale, flow_of, stale_cells
from hermes_nb.notebook.shell import Foreign, Shell, is_message

if TYPE_CHECKING:
    from hermes_nb.core.tools import Place
    from hermes_nb.notebook.document.document import Cell

KEEP_RUNS = 5_000
"""Number of runs that are kept."""
LISTED = 8
"""Maximum cells in a line for the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run of code."""

    source: str
    """The code."""
    cell: str = ""
    """Id of the cell; "" if unknown, or for code outside of cells."""
    count: int | None = None
    """Its execution count; None for code outside of cells."""
    names: frozenset[str] | None = None
    """Variables that it changed; None if not observed."""
    failed: int | None = None
    """The line at which it failed, 0 if unknown; None if it did not fail."""
    session: str = ""
    """Session of the agent's turn; "" if the user ran it."""
    turn: int = 0
    """The agent's turn."""

    def changed(self) -> frozenset[str]:
        """Return the variables that it changed, from its source if not observed."""
        if self.names is not None:
            return self.names
        flow = flow_of(self.source)
        return frozenset(flow.binds | flow.changes)


class CellRuns:
    """The runs in one kernel, in order."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._runs: dict[int, Run] = {}
        self._read: dict[int, dict[str, int]] = {}
        self._left: dict[int, dict[str, int]] = {}
        self._lineage = Lineage()
        self._next = 0
        self._since = shell.execution_count
        for count, source in enumerate(getattr(shell.history_manager, "input_hist_raw", [])):
            if count and source and count < self._since:
                self.add(Run(source=source, count=count))

    def add(self, run: Run) -> None:
        """Record a run."""
        known = self._lineage
        names = known.done(run.source, run.failed) if run.failed else run.names
        self._runs[self._next] = run
        self._read[self._next] = known.run(run.source, names)
        if run.failed is not None and names is not None:
            flow = flow_of(run.source)
            missing = (flow.binds | known.changed(flow)) - names
            self._left[self._next] = {name: known.versions.get(name, 0) for name in missing}
        self._next += 1
        if len(self._runs) > KEEP_RUNS:
            oldest = next(iter(self._runs))
            del self._runs[oldest], self._read[oldest]
            self._left.pop(oldest, None)

    def ran(self, place: Place, source: str, names: Iterable[str], **cell: Foreign) -> None:
        """Record a run of the agent's code, with more fields of `Run` if it ran in a cell."""
        run = Run(
            source=source, names=frozenset(names), session=place.session, turn=place.turn, **cell
        )
        if run.count is not None or run.names:
            self.add(run)

    def last_change(self, name: str) -> Run | None:
        """Return the last run that changed a variable."""
        found = (run for run in reversed(self._runs.values()) if name in run.changed())
        return next(found, None)

    def last_of(self, cell: Cell) -> Run | None:
        """Return the last run of a cell."""
        number = self._number(cell)
        return None if number is None else self._runs[number]

    def _number(self, cell: Cell) -> int | None:
        for number, run in reversed(self._runs.items()):
            if run.count is not None and run.count == cell.execution_count:
                same = run.cell == cell.id or (not run.cell and run.source == cell.source)
                return number if same else None
        return None

    def stale(self, cells: Sequence[Cell]) -> dict[str, Stale]:
        """Return the stale cells by id, in the notebook's order; their indices count all cells."""
        codes = [cell for cell in cells if cell.type == "code" and not is_message(cell.source)]
        outside: dict[str, int] = {}
        for number, run in self._runs.items():
            if run.count is None:
                outside |= dict.fromkeys(run.names or (), number)
        found = {}
        for each in stale_cells([self._ran(cell) for cell in codes], outside):
            source = codes[each.source].index if each.source >= 0 else -1
            cell = codes[each.cell]
            found[cell.id] = Stale(cell.index, each.kind, each.name, source, each.certain)
        return found

    def _ran(self, cell: Cell) -> RanCell:
        number = self._number(cell)
        shown = cell.execution_count is not None
        if number is None:
            return RanCell(source=cell.source, shown=shown)
        run = self._runs[number]
        return RanCell(
            source=cell.source,
            when=number,
            ran=run.source,
            names=run.names,
            read=self._read[number],
            left=self._left.get(number, {}),
            shown=shown,
        )


_kernels: WeakKeyDictionary[Shell, CellRuns] = WeakKeyDictionary()


def runs_of(shell: Shell) -> CellRuns:
    """Return the runs of a kernel."""
    if shell not in _kernels:
        _kernels[shell] = CellRuns(shell)
    return _kernels[shell]


def note_cell(shell: Shell, result: Foreign) -> None:
    """Record a cell that the user ran, after it has ended."""
    info = getattr(result, "info", None)
    if info is None or not (info.store_history and result.execution_count):
        return
    source = str(info.raw_cell or "")
    if not is_message(source):
        cell, failed = str(info.cell_id or ""), None
        if not result.success:
            failed = 0 if source.startswith("%%") else _line(result.error_in_exec, shell)
        run = Run(source=source, cell=cell, count=result.execution_count, failed=failed)
        runs_of(shell).add(run)


def _line(error: BaseException | None, shell: Shell) -> int:
    """Return the line of a cell at which an error was raised; 1 if none of it has run."""
    frames = walk_tb(error.__traceback__) if error is not None else ()
    for frame, line in frames:
        if frame.f_globals is shell.user_ns and frame.f_code.co_name == "<module>":
            return line
    return 1


def reason(stale: Stale, name: Callable[[int], str]) -> str:
    """Describe why a cell is stale; `name` returns a cell's name from its index."""
    match stale.kind:
        case "edited":
            text = "edited and not run since"
        case "earlier":
            text = "its output is from an earlier kernel"
        case "outside":
            text = f"reads `{stale.name}`, which code outside of the cells changed later"
        case "values":
            text = f"ran with another `{stale.name}` than the cells above make"
        case "hidden":
            text = "cells above ran later, and its source does not show what it reads"
        case _:
            text = f"reads `{stale.name}` of {name(stale.source)}, which ran later or is stale"
    return text if stale.certain else f"perhaps: {text}"


def stale_line(stale: Mapping[str, Stale], cells: Sequence[Cell], *, earlier: bool = False) -> str:
    """Return a line for the model about stale cells in the order to run them, or "".

    Cells with output of an earlier kernel are only counted, and only with `earlier`.
    """
    from hermes_nb.notebook.document.document import short_ids

    short = short_ids(cell.id for cell in cells)
    current = {key: each for key, each in stale.items() if each.kind != "earlier"}
    parts = [f"{each.cell} {short[key]} {reason(each, str)}" for key, each in current.items()]
    if len(parts) > LISTED:
        parts[LISTED:] = [f"{len(parts) - LISTED} more"]
    if earlier and len(stale) > len(current):
        parts.append(f"{len(stale) - len(current)} with output of an earlier kernel")
    return f"[stale cells: {'; '.join(parts)}]" if parts else ""
