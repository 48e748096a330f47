"""Which cells a call means, and what of them the model reads."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import Image
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.tools import ToolOutput
from hermes_nb.notebook.cells.document import Cell, NotebookDocument
from hermes_nb.notebook.cells.finding import find
from hermes_nb.notebook.cells.outline import headings, section
from hermes_nb.notebook.cells.outputs import IMAGES, render

SOURCE_LIMIT = 12_000
"""Characters shown of one cell's source."""
TOTAL_LIMIT = 40_000
"""Characters that one call shows, outputs included."""
_LEAST = 1_000
_ONE_BY_ONE = 4
_RANGE = re.compile(r"\s*(\d+)\s*(?:(?:-|:|\.\.)\s*(\d+)\s*)?")


def selected(
    cells: Sequence[Cell], ids: Sequence[str] | None, span: str | None, title: str | None
) -> list[Cell]:
    """Return the cells that are meant, in the notebook's order; all of them if nothing is said.

    Raises ToolError for what is not there.
    """
    if not (ids or span or title):
        return list(cells)
    chosen = {find(cells, each).index for each in ids or ()}
    if span:
        chosen |= _range(cells, span)
    if title:
        chosen |= {cell.index for cell in _section(cells, title)}
    return [cell for cell in cells if cell.index in chosen]


async def with_outputs(document: NotebookDocument, cells: Sequence[Cell]) -> list[Cell]:
    """Return the cells with their outputs, where they have any."""
    shown = [cell for cell in cells if cell.output_count]
    if len(shown) <= _ONE_BY_ONE:
        full = {cell.id: await document.get(cell.id) for cell in shown}
    else:
        full = {cell.id: cell for cell in await document.cells(outputs=True)}
    return [full.get(cell.id, cell) for cell in cells]


def rendered(cells: Sequence[Cell], names: Mapping[str, str], *, images: bool) -> ToolOutput:
    """Return source and outputs of cells, each under a line that says which cell it is.

    `names` has the shorter ids to say it with.
    """
    share = max(TOTAL_LIMIT // max(len(cells), 1), _LEAST)
    texts: list[str] = []
    pictures: list[Image] = []
    for cell in cells:
        room = IMAGES - len(pictures) if images else 0
        output = render(cell.outputs or (), limit=share, images=room)
        pictures += output.images
        source = head_tail(cell.source, min(SOURCE_LIMIT, share))
        texts.append(
            "\n".join(filter(None, [title_of(cell, names[cell.id]), source, _shown(output.text)]))
        )
    text = "\n\n".join(texts)
    return ToolOutput(head_tail(text, TOTAL_LIMIT) or "(no cells)", tuple(pictures))


def title_of(cell: Cell, name: str = "") -> str:
    """Return a line that names a cell, by its id if there is no shorter name."""
    count = f" [{cell.execution_count}]" if cell.execution_count is not None else ""
    return f"--- cell {cell.index} {name or cell.id} {cell.type}{count} ---"


def _shown(text: str) -> str:
    return f"--- shows ---\n{text}" if text else ""


def _range(cells: Sequence[Cell], span: str) -> set[int]:
    match = _RANGE.fullmatch(span)
    if match is None:
        message = f"{one_line(span)!r} is not a range; give indices as '3-7'"
        raise ToolError(message)
    first, last = int(match[1]), int(match[2] or match[1])
    found = set(range(first, min(last, len(cells) - 1) + 1))
    if not found:
        message = f"no cells in the range {one_line(span)}; there are {len(cells)}, from 0 on"
        raise ToolError(message)
    return found


def _section(cells: Sequence[Cell], title: str) -> list[Cell]:
    if found := section(cells, title):
        return found
    titles = [name for cell in cells for _, name in headings(cell)]
    listed = ", ".join(repr(one_line(name, 50)) for name in titles[:20]) or "none"
    message = f"there is no heading with {one_line(title)!r} in it; the headings are: {listed}"
    raise ToolError(message)
