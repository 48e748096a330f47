"""What of a notebook the model reads: a line a cell, or some cells with what they show."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import Image
from hermes_nb.core.text import head_tail, one_line, visible
from hermes_nb.core.tools import ToolOutput
from hermes_nb.notebook.document.document import Cell, NotebookDocument, find, short_ids
from hermes_nb.notebook.document.known import Changes, changes
from hermes_nb.notebook.document.outputs import IMAGES, render

LIMIT = 12_000
"""Characters of an outline: about 3,400 tokens, or 150 cells."""
SOURCE_LIMIT = 12_000
"""Characters shown of one cell's source."""
TOTAL_LIMIT = 40_000
"""Characters that one call shows, outputs included."""
_WORDS = 70
_LEAST = 1_000
_ONE_BY_ONE = 4
_GONE = 10
_SHORT = 12
_DEEPEST = 4

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_RANGE = re.compile(r"\s*(\d+)\s*(?:(?:-|:|\.\.)\s*(\d+)\s*)?")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_PLOTS = ("image/", "application/vnd.plotly", "application/vnd.vega", "application/vnd.bokehjs")


def outline(
    cells: Sequence[Cell],
    *,
    seen: Mapping[str, str] | None = None,
    changed: Changes | None = None,
    limit: int = LIMIT,
) -> str:
    """Return one line a cell in at most about `limit` characters, the middle left out beyond.

    Outputs are named by kind where the cells have them, else counted. What changed is compared
    with `seen`, the hashes of the notebook's cells, unless `changed` says it: do so where `cells`
    are only some of them, since the others are not gone.
    """
    change = changes(cells, seen) if changed is None else changed
    short = short_ids(cell.id for cell in cells)
    lines = []
    depth = 0
    for cell in cells:
        levels = [level for level, _ in headings(cell)]
        indent = min(levels[0] - 1 if levels else depth, _DEEPEST)
        lines.append("  " * indent + _line(cell, short[cell.id], change.mark(cell.id)))
        depth = levels[-1] if levels else depth
    if change.deleted:
        gone = [name if len(name) < _SHORT else name[:8] for name in change.deleted[:_GONE]]
        more = f" and {len(change.deleted) - _GONE} more" if len(change.deleted) > _GONE else ""
        lines.append(f"deleted since you last looked: {', '.join(gone)}{more}")
    return _capped(lines, cells, limit) or "(no cells)"


def headings(cell: Cell) -> list[tuple[int, str]]:
    """Return the level and title of a Markdown cell's headings, those in code blocks left out."""
    if cell.type != "markdown":
        return []
    found = []
    fence = ""
    for line in cell.source.splitlines():
        if match := _FENCE.match(line):
            if not fence:
                fence = match[1]
            elif match[1].startswith(fence):
                fence = ""
        elif not fence and (match := _HEADING.match(line)):
            found.append((len(match[1]), match[2].rstrip("# \t") or match[2]))
    return found


def section(cells: Sequence[Cell], title: str) -> list[Cell]:
    """Return the cells from the heading that has `title` in it to the next one of its level.

    Exact titles come before those that contain it; nothing when there is none.
    """
    wanted = title.strip().lstrip("#").strip().casefold()
    places = [(cell.index, *each) for cell in cells for each in headings(cell)]
    exact = [place for place in places if place[2].casefold() == wanted]
    near = [place for place in places if wanted and wanted in place[2].casefold()]
    if not (exact or near):
        return []
    start, level, _ = (exact or near)[0]
    end = next((at for at, depth, _ in places if at > start and depth <= level), len(cells))
    return [cell for cell in cells if start <= cell.index < end]


def output_kinds(cell: Cell) -> list[str]:
    """Return what a cell shows, in a word each: error, plot, table, output; or how many."""
    if cell.outputs is None:
        count = cell.output_count
        return [f"{count} output{'s' if count > 1 else ''}"] if count else []
    kinds = [_kind(output) for output in cell.outputs]
    return [kind for kind in ("error", "plot", "table", "output") if kind in kinds]


def _kind(output: Mapping[str, object]) -> str:
    if output.get("output_type") == "error":
        return "error"
    data = output.get("data")
    mimes = list(data) if isinstance(data, Mapping) else []
    if any(str(mime).startswith(_PLOTS) for mime in mimes):
        return "plot"
    return "table" if "text/html" in mimes else "output"


def _line(cell: Cell, short: str, mark: str) -> str:
    count = f" [{cell.execution_count}]" if cell.execution_count is not None else ""
    shown = ", ".join(output_kinds(cell))
    first = next((line for line in cell.source.splitlines() if line.strip()), "")
    more = cell.source.strip().count("\n")
    words = one_line(visible(first, lines=True), _WORDS) or "(empty)"
    parts = [f"{cell.index} {short} {cell.type}{count}: {words}"]
    if more:
        parts.append(f"(+{more} line{'s' if more > 1 else ''})")
    if shown:
        parts.append(f"-> {shown}")
    if mark:
        parts.append(f"* {mark}")
    return " ".join(parts)


def _capped(lines: list[str], cells: Sequence[Cell], limit: int) -> str:
    """Return the lines, or the first and last of them around a note on the rest."""
    if sum(map(len, lines)) + len(lines) - 1 <= limit:
        return "\n".join(lines)
    head = _fitting(lines, limit * 7 // 10)
    tail = _fitting(lines[:head:-1], limit - limit * 7 // 10) if head < len(lines) else 0
    last = len(lines) - tail
    note = (
        f"[... {last - head} lines left out; read_cells(range='{head}-{min(last, len(cells)) - 1}')"
        " shows those cells ...]"
    )
    return "\n".join([*lines[:head], note, *lines[last:]])


def _fitting(lines: Sequence[str], room: int) -> int:
    """Return how many lines from the first on fit into `room` characters."""
    for count, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return count
    return len(lines)


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
        parts = [title_of(cell, names[cell.id]), source]
        parts += ["--- shows ---", output.text] if output.text else []
        texts.append("\n".join(filter(None, parts)))
    text = "\n\n".join(texts)
    return ToolOutput(head_tail(text, TOTAL_LIMIT) or "(no cells)", tuple(pictures))


def title_of(cell: Cell, name: str = "") -> str:
    """Return a line that names a cell, by its id if there is no shorter name."""
    count = f" [{cell.execution_count}]" if cell.execution_count is not None else ""
    return f"--- cell {cell.index} {name or cell.id} {cell.type}{count} ---"


def _range(cells: Sequence[Cell], span: str) -> set[int]:
    match = _RANGE.fullmatch(span)
    if match is None:
        raise ToolError(f"{one_line(span)!r} is not a range; give indices as '3-7'")
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
