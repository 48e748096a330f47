"""A notebook at a glance: one line a cell, sections by heading, what changed since the last look.

Pure functions over cells, and `Seen`, the memory of what the agent has looked at.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol, runtime_checkable

from hermes_nb.core.text import one_line
from hermes_nb.notebook.cells.document import Cell, NotebookDocument
from hermes_nb.notebook.cells.finding import short_ids
from hermes_nb.safety.visible import visible

LIMIT = 12_000
"""Characters of an outline: about 3,400 tokens, or 150 cells."""
_WORDS = 70
_GONE = 10
_DEEPEST = 4

_HEADING = re.compile(r" {0,3}(#{1,6})[ \t]+(\S.*)")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_PLOTS = ("image/", "application/vnd.plotly", "application/vnd.vega", "application/vnd.bokehjs")


@runtime_checkable
class Sketching(Protocol):
    """A document that can tell the kinds of outputs without handing them over."""

    async def sketch(self) -> list[Cell]:
        """Return all the cells; of their outputs only types and MIME types are filled in."""
        ...


async def glance(document: NotebookDocument) -> list[Cell]:
    """Return a notebook's cells as an outline needs them, with the kinds of outputs if possible."""
    if isinstance(document, Sketching):
        return await document.sketch()
    return await document.cells()


@dataclass(frozen=True, slots=True)
class Changes:
    """Ids of the cells that are new, edited and gone since the agent last looked."""

    new: frozenset[str] = frozenset()
    edited: frozenset[str] = frozenset()
    deleted: tuple[str, ...] = ()

    def mark(self, cell_id: str) -> str:
        """Return `new`, `edited` or ""."""
        return "new" if cell_id in self.new else "edited" if cell_id in self.edited else ""


@dataclass(slots=True)
class Seen:
    """The sources that the agent knows, by notebook (its way) and cell id, as hashes."""

    _hashes: dict[str, dict[str, str]] = field(default_factory=dict)
    _whole: set[str] = field(default_factory=set)

    def hashes(self, notebook: str) -> Mapping[str, str]:
        """Return what is known of a notebook: cell id to hash."""
        return self._hashes.get(notebook, {})

    def look(self, notebook: str, cells: Iterable[Cell]) -> None:
        """Note that the agent was shown all the cells there are."""
        self._hashes[notebook] = {cell.id: cell.hash for cell in cells}
        self._whole.add(notebook)

    def learn(self, notebook: str, cells: Iterable[Cell]) -> None:
        """Note that the agent was shown, or wrote, some cells."""
        self._hashes.setdefault(notebook, {}).update({cell.id: cell.hash for cell in cells})

    def forget(self, notebook: str, cell_id: str) -> None:
        """Note that the agent removed a cell."""
        self._hashes.get(notebook, {}).pop(cell_id, None)

    def knows(self, notebook: str, cell: Cell) -> bool:
        """Say whether the agent knows a cell as it is."""
        return self.hashes(notebook).get(cell.id) == cell.hash

    def changes(self, notebook: str, cells: Iterable[Cell]) -> Changes:
        """Return what changed since the agent last looked; `cells` are all there are.

        Before it looked at the whole notebook, a cell that it does not know need not be new.
        """
        found = changes(cells, self.hashes(notebook))
        return found if notebook in self._whole else replace(found, new=frozenset())


def changes(cells: Iterable[Cell], seen: Mapping[str, str] | None) -> Changes:
    """Compare cells with the hashes of those that were seen; without any, nothing changed."""
    if not seen:
        return Changes()
    now = {cell.id: cell.hash for cell in cells}
    return Changes(
        frozenset(name for name in now if name not in seen),
        frozenset(name for name, mark in now.items() if seen.get(name, mark) != mark),
        tuple(name for name in seen if name not in now),
    )


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
        gone = [name[: len(name) if len(name) < 12 else 8] for name in change.deleted[:_GONE]]  # noqa: PLR2004
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
