"""Naming cells: short ids that are unique, and errors that say which cells there are."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from itertools import pairwise

from hermes_nb.core.errors import ToolError
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.notebook.cells.document import Cell, CellConflict
from hermes_nb.safety.visible import visible

SHORT = 8
_UUID = 32
"""Characters of an id that are shown where they are enough; as many as git shows of a hash."""
_NAMED = 5
_SOURCE_SHOWN = 8_000


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return each id's shortest unique prefix of at least 8 characters."""
    ordered = sorted(set(ids))
    shared = [0, *(_shared(a, b) for a, b in pairwise(ordered)), 0]
    neighbours = zip(ordered, pairwise(shared), strict=False)
    return {
        name: name[: max(SHORT, before + 1, behind + 1)] for name, (before, behind) in neighbours
    }


def brief_id(cell_id: str) -> str:
    """Return an id as people and models read it: of a UUID, the first eight digits."""
    return cell_id[:SHORT] if len(cell_id) >= _UUID else cell_id


def find(cells: Sequence[Cell], wanted: str) -> Cell:
    """Return the cell of that id, or whose id alone begins so; raise ToolError otherwise."""
    wanted = wanted.strip()
    exact = [cell for cell in cells if cell.id == wanted]
    near = exact or [cell for cell in cells if wanted and cell.id.startswith(wanted)]
    if len(near) == 1:
        return near[0]
    if near:
        listed = "; ".join(named(cell) for cell in near[:_NAMED])
        message = f"{wanted!r} begins the ids of several cells: {listed}; give more of the id"
        raise ToolError(message)
    raise no_such_cell(wanted, cells)


def no_such_cell(wanted: str, cells: Sequence[Cell]) -> ToolError:
    """Return the error for an id that no cell has, with the cells it may have meant."""
    if not cells:
        return ToolError(f"there is no cell {one_line(wanted)!r}; the notebook has no cells yet")
    if wanted.isdecimal() and int(wanted) < len(cells):
        meant = [cells[int(wanted)]]
    else:
        names = [cell.id for cell in cells]
        close = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
        starts = {name[:SHORT]: name for name in names}
        close += [starts[s] for s in difflib.get_close_matches(wanted, starts, n=3, cutoff=0.5)]
        meant = [cell for cell in cells if cell.id in close] or list(cells[-_NAMED:])
    listed = "; ".join(named(cell) for cell in meant[:_NAMED])
    return ToolError(
        f"there is no cell {one_line(wanted)!r}; near it: {listed}. notebook_outline lists them all"
    )


def named(cell: Cell) -> str:
    """Return a cell's id and first words."""
    return f"{brief_id(cell.id)} [{cell.index}] {one_line(visible(cell.source, lines=True), 40)!r}"


def conflict(cell: Cell) -> CellConflict:
    """Return the error for a cell that is not what an edit was made for."""
    source = head_tail(cell.source, _SOURCE_SHOWN)
    return CellConflict(
        f"cell {cell.id} is not as you last saw it, so nothing was changed. It holds now:\n"
        f"{source}\nMake the edit again for this source."
    )


def _shared(a: str, b: str) -> int:
    """Return how many characters two strings begin with alike."""
    count = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        count += 1
    return count
