"""The cells in a turn's message: an outline first, then only later changes.

An update lists cells at their new index, then deleted cells at their index in the outline that the
session already has. To apply it, remove the cells that were deleted or "moved from" an index,
insert the new and moved ones at their index, in ascending order, and replace the other listed ones.
The running cell appears only in the title, unless it was inserted between known cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from hermes_nb.notebook.document.document import Cell, short_ids
from hermes_nb.notebook.document.outline import (
    CellChanges,
    cell_line,
    outline,
    output_kinds,
)
from hermes_nb.notebook.shell import is_message
from hermes_nb.safety.redact import redact

LIMIT = 2_500
"""Maximum characters of the outline in a turn's message; notebook_outline returns it all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsAbove:
    """A notebook as it is at the start of a turn."""

    way: str
    """How the notebook is accessed, as in `NotebookDocument`."""
    cells: Sequence[Cell]
    """All cells, with their output kinds."""
    end: int
    """Number of cells above the running one, or down to the selected one."""
    running: bool
    """Whether a cell is running; False for prompts from the panel, which have a selected cell."""
    changed: CellChanges
    """What has changed since the agent last looked, to mark it in an outline."""
    stale: str = ""
    """A line about stale cells."""

    @property
    def here(self) -> Cell:
        """The running or selected cell."""
        return self.cells[self.end if self.running else self.end - 1]


@dataclass(frozen=True, slots=True)
class CellState:
    """A cell's state when the session last listed it in an outline."""

    id: str
    """The cell's id."""
    source: tuple[str, str]
    """Type and hash of the source."""
    run: tuple[int | None, tuple[str, ...]]
    """Execution count and kinds of outputs; a prompt to the agent has none."""

    @classmethod
    def of(cls, cell: Cell) -> CellState:
        """Return a cell's state."""
        prompt = is_message(cell.source)
        run = (None, ()) if prompt else (cell.execution_count, tuple(output_kinds(cell)))
        return cls(cell.id, (cell.type, cell.hash), run)


@dataclass(frozen=True, slots=True)
class KnownOutline:
    """The cells that a session knows, in the notebook's order."""

    cells: tuple[CellState, ...] = ()
    """Their states."""
    here: str = ""
    """The id of the cell that ran the latest prompt, or that was selected."""


@dataclass(frozen=True, slots=True)
class CellsNote:
    """The part of a message that describes cells."""

    text: str
    """The title and the lines, or "" if nothing has changed."""
    known: KnownOutline | None
    """What the session knows after receiving the text; None if nothing."""
    listed: Sequence[Cell] = ()
    """The cells that have a line."""
    deleted: Sequence[str] = ()
    """The cells that an outline reports as deleted since the agent last looked."""


def cells_note(now: CellsAbove, known: KnownOutline | None) -> CellsNote:
    """Return a session's update, or the outline if it has none yet or if the outline is shorter."""
    whole = _outline(now)
    if known is None:
        return whole
    update = _update(now, known)
    return update if len(update.text) < len(whole.text) else whole


def _outline(now: CellsAbove) -> CellsNote:
    above = now.cells[: now.end]
    place = f" this one ({_short(now)})" if now.running else ", the last one is selected"
    text = redact(outline(above, changed=now.changed, limit=LIMIT))
    known = KnownOutline(_known(now, now.end), now.here.id)
    text = "\n".join(filter(None, (text, redact(now.stale))))
    return CellsNote(f"Cells above{place}:\n{text}", known, above, now.changed.deleted)


def _update(now: CellsAbove, known: KnownOutline) -> CellsNote:
    ids = {state.id for state in known.cells}
    last = max((n for n, cell in enumerate(now.cells) if cell.id in ids), default=-1)
    end = max(now.end, last + 1)  # a known cell stays known when a prompt above it runs
    after = KnownOutline(_known(now, end), now.here.id)
    shown = now.cells[:end]
    marks, lines = _changes(known.cells, shown, now.here.id if now.running else "")
    if not lines and after == known:
        return CellsNote("", known)
    name = f"{now.here.index} {_short(now)}"
    place = f" this one ({name})" if now.running else f", {name} is selected"
    head = f"Cells above{place}{', changes:' if lines else ': no changes'}"
    listed = [cell for cell in shown if cell.id in marks]
    rows = [head, *lines, *([now.stale] if lines and now.stale else [])]
    return CellsNote(redact("\n".join(rows)), after, listed)


def _short(now: CellsAbove) -> str:
    return short_ids(cell.id for cell in now.cells)[now.here.id]


def _known(now: CellsAbove, end: int) -> tuple[CellState, ...]:
    """Return the states of the first `end` cells, and of the running one if it is the next."""
    return tuple(map(CellState.of, now.cells[: end + (now.running and end == now.end)]))


def _changes(
    known: Sequence[CellState], cells: Sequence[Cell], running: str
) -> tuple[dict[str, str], list[str]]:
    """Return the marks of changed cells by id, and the update's lines.

    A running prompt is not marked as edited, because it is the rest of the message.
    """
    before = {state.id: (index, state) for index, state in enumerate(known)}
    ids = [cell.id for cell in cells]
    blocks = SequenceMatcher(None, list(before), ids, autojunk=False).get_matching_blocks()
    kept = {name for block in blocks for name in ids[block.b : block.b + block.size]}
    marks = {}
    for cell in cells:
        index, state = before.get(cell.id, (0, None))
        moved = state is not None and cell.id not in kept
        prompt = state is not None and cell.id == running and is_message(cell.source)
        edits = [] if prompt else _marks(state, CellState.of(cell))
        if mark := ", ".join([*([f"moved from {index}"] if moved else []), *edits]):
            marks[cell.id] = mark
    short = short_ids([*before, *ids])
    lines = [cell_line(cell, short[cell.id], marks[cell.id]) for cell in cells if cell.id in marks]
    there = set(ids)
    gone = [f"{index} {short[name]}" for name, (index, _) in before.items() if name not in there]
    return marks, [*lines, *([f"deleted: {', '.join(gone)}"] if gone else [])]


def _marks(before: CellState | None, after: CellState) -> list[str]:
    """Return what has happened to a cell: new, edited, run, failed or cleared."""
    if before is None:
        return ["new"]
    marks = ["edited"] if before.source != after.source else []
    if before.run != after.run:
        count, kinds = after.run
        marks.append("failed" if "error" in kinds else "run" if count is not None else "cleared")
    return marks
