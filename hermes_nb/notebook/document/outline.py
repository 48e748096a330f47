"""The notebook as the agent knows it: what it reads of cells, has seen of them, and calls them.

An edit, or a run, is for a cell as the agent last saw it. Where the cell is another by now, the
agent is shown what it holds and asked again; so what was approved is what happens. Whoever watches
reads of cells by the number that the notebook shows, or their place; ids are for the agent.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hermes_nb.agent.undo.changes import called
from hermes_nb.core.errors import ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Image
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.tools import Arguments, ToolOutput
from hermes_nb.notebook.document.document import (
    Cell,
    NotebookDocument,
    brief_id,
    conflict,
    find,
    short_ids,
)
from hermes_nb.notebook.document.outputs import IMAGES, render
from hermes_nb.notebook.shell import Shell, running_cell

Open = Callable[[], Awaitable[NotebookDocument]]
Naming = Callable[[str], str]
"""Says for a cell's id, or the beginning of one, what the user calls it: `[5]` or `cell 3`."""

WIDTH = 80
"""Characters of code that are told."""
MOST_CELLS = 6
"""Cells that are named one by one."""
_PREPARING = re.compile(r"\s*(?:#|import\s|from\s+\S+\s+import\s|%|@|\"\"\"|$)")


@dataclass(frozen=True, slots=True)
class CellChanges:
    """Ids of the cells that are new, edited and gone since the agent last looked."""

    new: frozenset[str] = frozenset()
    edited: frozenset[str] = frozenset()
    deleted: tuple[str, ...] = ()

    def mark(self, cell_id: str) -> str:
        """Return `new`, `edited` or ""."""
        return "new" if cell_id in self.new else "edited" if cell_id in self.edited else ""


@dataclass(slots=True)
class SeenCells:
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

    def changes(self, notebook: str, cells: Iterable[Cell]) -> CellChanges:
        """Return what changed since the agent last looked; `cells` are all there are.

        Before it looked at the whole notebook, a cell that it does not know need not be new.
        """
        found = changes(cells, self.hashes(notebook))
        return found if notebook in self._whole else replace(found, new=frozenset())


def changes(cells: Iterable[Cell], seen: Mapping[str, str] | None) -> CellChanges:
    """Compare cells with the hashes of those that were seen; without any, nothing changed."""
    if not seen:
        return CellChanges()
    now = {cell.id: cell.hash for cell in cells}
    return CellChanges(
        frozenset(name for name in now if name not in seen),
        frozenset(name for name, mark in now.items() if seen.get(name, mark) != mark),
        tuple(name for name in seen if name not in now),
    )


@dataclass(slots=True, kw_only=True)
class KnownCells:
    """The state behind a set of notebook tools.

    `open` gives the notebook, anew for every call: pages come and go. `turn_mark` is the metadata
    for cells that the agent makes; `seen` may be shared with whoever else shows cells to the agent.
    `here` gives the id of the cell that the turn is at, `foreign` says whether a source is text
    from outside.
    """

    shell: Shell
    open: Open
    turn_mark: Callable[[], Arguments]
    sees_images: Callable[[], bool]
    seen: SeenCells
    here: Callable[[], str]
    foreign: Callable[[str], bool] = lambda _: False
    _words: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    _inserted: tuple[Arguments, str] | None = None

    async def cells(self) -> tuple[NotebookDocument, list[Cell]]:
        """Return the notebook and its cells, without outputs."""
        document = await self.open()
        cells = await document.cells()
        self._words = {cell.id: (cell.execution_count, _told(cell)) for cell in cells}
        return document, cells

    async def known(self, wanted: Sequence[str]) -> tuple[NotebookDocument, list[Cell]]:
        """Return cells by id; raise CellConflict for one that the agent does not know as it is."""
        document, cells = await self.cells()
        found = [find(cells, each) for each in wanted]
        for cell in found:
            if not self.seen.knows(document.way, cell):
                self.seen.learn(document.way, [cell])  # the error shows it
                raise conflict(cell)
        return document, found

    def place(self, cells: Sequence[Cell]) -> str | None:
        """Return the id behind which a new cell goes: this turn's last one, or that it is at."""
        ids = {cell.id for cell in cells}
        if self._inserted is not None:
            mark, last = self._inserted
            if last in ids and mark == self.turn_mark():
                return last
        here = self.here()
        return here if here in ids else None

    def placed(self, cell: Cell) -> None:
        """Note where the agent's last new cell is."""
        self._inserted = (dict(self.turn_mark()), cell.id)
        self.moved(cell)

    def moved(self, cell: Cell) -> None:
        """Note that a cell, which may be new, is at its index now."""
        rest = [each for each in self._words.items() if each[0] != cell.id]
        rest.insert(cell.index, (cell.id, (cell.execution_count, _told(cell))))
        self._words = dict(rest)

    def deleted(self, cell: Cell) -> None:
        self._words.pop(cell.id, None)

    def named(self, wanted: str) -> str:
        """Return what whoever watches calls a cell, as far as it is known: `[5]`, `cell 3`."""
        index = self._index(wanted)
        if index is None:
            return f"cell {visible(brief_id(wanted))}"
        count, _ = list(self._words.values())[index]
        return called(count, index + 1)

    def gist(self, arguments: Arguments) -> str:
        """Return the name and the first words of the cell that a call is for."""
        wanted = str(arguments.get("id", ""))
        index = self._index(wanted)
        words = "" if index is None else f": {list(self._words.values())[index][1]}"
        return f"{self.named(wanted)}{words}"

    def _index(self, wanted: str) -> int | None:
        """Return the index of the cell whose id, alone of all, begins so."""
        ids = list(self._words)
        if wanted in ids:
            return ids.index(wanted)
        found = [i for i, name in enumerate(ids) if wanted and name.startswith(wanted)]
        return found[0] if len(found) == 1 else None


def name_of(cell: Cell) -> str:
    """Return what a person calls a cell: the number that it shows, or its place from 1."""
    return called(cell.execution_count, cell.index + 1)


def titled(cell: Cell) -> str:
    """Return what a person calls a cell, with its first words."""
    return f"{name_of(cell)} {first_words(cell)}"


def first_words(cell: Cell) -> str:
    """Return how a cell's source begins."""
    return one_line(visible(cell.source, lines=True), 60) or "(empty)"


def _told(cell: Cell) -> str:
    return telling(cell.source, 60) if cell.type == "code" else first_words(cell)


def is_message(source: str) -> bool:
    """Say whether a cell's source is a message to the agent."""
    return source.lstrip().startswith(("%hermes", "%%hermes"))


def runnable(shell: Shell, cell: Cell) -> Cell:
    """Return the cell; raise ToolError for one that cannot be run from inside of a turn."""
    if cell.type != "code":
        raise ToolError(f"cell {cell.id} is a {cell.type} cell; only code cells run")
    if cell.id == running_cell(shell) or is_message(cell.source):
        raise ToolError(f"cell {cell.id} asks the agent itself; it cannot run inside of a turn")
    return cell


def telling(source: str, limit: int = WIDTH) -> str:
    """Return the line that says what code does: the first that does more than prepare."""
    lines = source[:20_000].strip().split("\n")
    line = next((each for each in lines if not _PREPARING.match(each)), lines[0])
    more = " …" if len(lines) > 1 else ""
    return one_line(visible(one_line(line, limit)), limit) + more


def reading(arguments: Arguments, name: Naming) -> str:
    """Say which cells are read."""
    wanted = []
    if ids := arguments.get("ids"):
        wanted.append(several(ids, name))
    if span := arguments.get("range"):
        wanted.append(f"cells {_INDEX.sub(_place, str(span)).replace('-', '–')}")
    if section := arguments.get("section"):
        wanted.append(f"section {section}")
    told = ", ".join(wanted) or "all cells"
    return visible(told if arguments.get("outputs", True) else f"{told}, without outputs")


def _place(index: re.Match[str]) -> str:
    return str(int(index[0]) + 1)


def editing(arguments: Arguments, name: Naming) -> str:
    """Say which cell is edited and what is new in it."""
    cell = _named(arguments.get("id", ""), name)
    new, old = (str(arguments.get(key) or "") for key in ("new", "old"))
    room = WIDTH - 20
    if not new.strip():
        return f"{cell}: without {telling(old, room)}" if old else f"{cell}: emptied"
    before = {line.strip() for line in old.split("\n")}
    lines = [line for line in new.split("\n") if line.strip()]
    fresh = next((line for line in lines if line.strip() not in before), lines[0])
    more = " …" if len(lines) > 1 else ""
    return f"{cell}: {one_line(visible(one_line(fresh, room)), room)}{more}"


def moving(arguments: Arguments, name: Naming) -> str:
    """Say which cell goes where."""
    cell, after = (arguments.get(key) or "" for key in ("id", "after"))
    moved = _named(cell, name)
    return f"{moved} behind {_named(after, name)}" if after else f"{moved} to the top"


def several(ids: object, name: Naming) -> str:
    """Name some cells: `cells 1, 2 and 5`, or `[5]` for a single one."""
    known = [_named(each, name) for each in (ids if isinstance(ids, list | tuple) else [ids])]
    if not known[1:]:
        return "".join(known)
    unnumbered = all(each.startswith("cell ") for each in known)
    *names, last = [each.removeprefix("cell ") for each in known] if unnumbered else known
    if len(known) > MOST_CELLS:
        names, last = names[: MOST_CELLS - 1], f"{len(known) - MOST_CELLS + 1} more"
    return f"{'cells ' if unnumbered else ''}{', '.join(names)} and {last}"


def _named(cell: object, name: Naming) -> str:
    return one_line(visible(name(str(cell))), WIDTH)


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
_INDEX = re.compile(r"\b\d{1,9}\b", re.ASCII)
_RANGE = re.compile(r"\s*(\d+)\s*(?:(?:-|:|\.\.)\s*(\d+)\s*)?")
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
_PLOTS = ("image/", "application/vnd.plotly", "application/vnd.vega", "application/vnd.bokehjs")


def outline(
    cells: Sequence[Cell],
    *,
    seen: Mapping[str, str] | None = None,
    changed: CellChanges | None = None,
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
