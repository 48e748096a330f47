"""The agent's view of the notebook: reading and naming cells, and tracking what it has seen.

An edit or a run applies to the state of the cell that the agent last saw. If the cell has changed
since, the agent gets the current source and has to call again, so only an approved change happens.
The user sees cells named by their execution count or position; ids are for the agent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hermes_nb.agent.undo.changes import called
from hermes_nb.core.errors import ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Image, Json
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.core.tools import Arguments, Place, ToolOutput
from hermes_nb.notebook.document.document import (
    Cell,
    NotebookDocument,
    brief_id,
    conflict,
    find,
    short_ids,
)
from hermes_nb.notebook.document.outputs import IMAGES, render
from hermes_nb.notebook.shell import Shell, is_message, running_cell

Open = Callable[[Place], Awaitable[NotebookDocument]]
Naming = Callable[[str], str]
"""Returns a cell's user-facing name, such as `[5]` or `cell 3`, from its id or an id prefix."""

WIDTH = 80
"""Maximum characters of displayed code."""
MOST_CELLS = 6
"""Maximum number of cells to list by name."""
_PREPARING = re.compile(r"\s*(?:#|import\s|from\s+\S+\s+import\s|%|@|\"\"\"|$)")


@dataclass(frozen=True, slots=True)
class CellChanges:
    """The cells that have changed since the agent last looked, by id."""

    new: frozenset[str] = frozenset()
    """Cells that were inserted."""
    edited: frozenset[str] = frozenset()
    """Cells whose source was edited."""
    deleted: tuple[str, ...] = ()
    """Cells that were deleted."""

    def mark(self, cell_id: str) -> str:
        """Return "new", "edited" or ""."""
        return "new" if cell_id in self.new else "edited" if cell_id in self.edited else ""


@dataclass(slots=True)
class SeenCells:
    """Hashes of the sources that the agent has seen, by notebook (its `way`) and cell id."""

    _hashes: dict[str, dict[str, str]] = field(default_factory=dict)
    _whole: set[str] = field(default_factory=set)

    def hashes(self, notebook: str) -> Mapping[str, str]:
        """Return the known hashes of a notebook by cell id."""
        return self._hashes.get(notebook, {})

    def record_all(self, notebook: str, cells: Iterable[Cell]) -> None:
        """Record that the agent has seen all cells of a notebook."""
        self._hashes[notebook] = {cell.id: cell.hash for cell in cells}
        self._whole.add(notebook)

    def learn(self, notebook: str, cells: Iterable[Cell]) -> None:
        """Record that the agent has seen or written some cells."""
        self._hashes.setdefault(notebook, {}).update({cell.id: cell.hash for cell in cells})

    def forget(self, notebook: str, cell_id: str) -> None:
        """Record that the agent has deleted a cell."""
        self._hashes.get(notebook, {}).pop(cell_id, None)

    def knows(self, notebook: str, cell: Cell) -> bool:
        """Return whether the agent has seen the current source of a cell."""
        return self.hashes(notebook).get(cell.id) == cell.hash

    def changes(self, notebook: str, cells: Iterable[Cell]) -> CellChanges:
        """Return the changes since the agent last looked; `cells` are all cells of the notebook.

        Cells are not reported as new until the agent has seen the whole notebook.
        """
        found = changes(cells, self.hashes(notebook))
        return found if notebook in self._whole else replace(found, new=frozenset())


def changes(cells: Iterable[Cell], seen: Mapping[str, str] | None) -> CellChanges:
    """Compare cells with the hashes that the agent has seen; without hashes, return no changes."""
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
    """State shared by a set of notebook tools."""

    shell: Shell
    """The IPython shell."""
    open: Open
    """Returns the notebook; called for every tool call, because front ends come and go."""
    seen: SeenCells
    """The hashes that the agent has seen, shared with other code that shows it cells."""
    foreign: Callable[[str], bool] = lambda _: False
    """Returns whether a source is untrusted content."""
    _words: dict[str, tuple[int | None, str]] = field(default_factory=dict)
    """The cells' execution counts and first words by id, in notebook order."""
    _inserted: dict[str, tuple[Arguments, str]] = field(default_factory=dict)
    """The turn's metadata, and the id of the last cell that it inserted, by session."""
    _written: dict[tuple[str, str], Cell] = field(default_factory=dict)
    """The cells that the agent wrote in this kernel, by notebook and id."""
    _own: frozenset[str] = frozenset()
    """Ids of the cells that are still as the agent wrote them."""
    ran: dict[str, tuple[str, Cell, ToolOutput]] = field(default_factory=dict)
    """Each session's last call that wrote a cell and ran it with the user's approval: id, cell and
    output."""

    async def cells(self, place: Place) -> tuple[NotebookDocument, list[Cell]]:
        """Return the notebook and its cells, without outputs."""
        document = await self.open(place)
        cells = await document.cells()
        self._words = {cell.id: (cell.execution_count, _cell_summary(cell)) for cell in cells}
        written = ((cell, self._written.get((document.way, cell.id))) for cell in cells)
        self._own = frozenset(c.id for c, own in written if own and own.source == c.source)
        return document, cells

    async def known(
        self, place: Place, wanted: Sequence[str]
    ) -> tuple[NotebookDocument, list[Cell]]:
        """Return cells by id; raise CellConflict for one whose source the agent hasn't seen."""
        document, cells = await self.cells(place)
        found = [find(cells, each) for each in wanted]
        for cell in found:
            own = self._written.get((document.way, cell.id))
            forged = own is not None and own.hash == cell.hash and own.source != cell.source
            if forged:  # the hash is short, and other text may have the same
                del self._written[document.way, cell.id]
            if forged or not self.seen.knows(document.way, cell):
                self.seen.learn(document.way, [cell])  # the error contains the source
                raise conflict(cell)
        return document, found

    def below(self, document: NotebookDocument, cells: Sequence[Cell], place: Place) -> str | None:
        """Return the id of the cell below which to insert a new one.

        This is the last cell that the turn inserted, or otherwise the turn's own cell.
        """
        ids = {cell.id for cell in cells}
        mark, last = self._inserted.get(place.session, ({}, ""))
        if last in ids and mark == turn_mark(place):
            return last
        here = place.cell or document.selected
        return here if here in ids else None

    def placed(self, cell: Cell, place: Place) -> None:
        """Record the agent's latest new cell."""
        self._inserted[place.session] = (turn_mark(place), cell.id)
        self.moved(cell)

    def wrote(self, notebook: str, cell: Cell) -> None:
        """Record that the agent has written all of a cell."""
        self._written[notebook, cell.id] = cell
        self._own |= {cell.id}

    def owns(self, ids: object) -> bool:
        """Return whether cells, by id or id prefix, are as the agent wrote them in this kernel."""
        wanted = ids if isinstance(ids, list | tuple) else [ids]
        found = [self._index(str(each)) for each in wanted]
        names = list(self._words)
        return bool(found) and all(i is not None and names[i] in self._own for i in found)

    def moved(self, cell: Cell) -> None:
        """Record position and first words of a cell that was moved, inserted or edited."""
        rest = [each for each in self._words.items() if each[0] != cell.id]
        rest.insert(cell.index, (cell.id, (cell.execution_count, _cell_summary(cell))))
        self._words = dict(rest)

    def deleted(self, cell: Cell) -> None:
        self._words.pop(cell.id, None)

    def named(self, wanted: str) -> str:
        """Return a cell's user-facing name, if known: `[5]`, `cell 3`."""
        index = self._index(wanted)
        if index is None:
            return f"cell {visible(brief_id(wanted))}"
        count, _ = list(self._words.values())[index]
        return called(count, index + 1)

    def gist(self, arguments: Arguments) -> str:
        """Return the name and the first words of the cell in a call's `id` argument."""
        wanted = str(arguments.get("id", ""))
        index = self._index(wanted)
        words = "" if index is None else f": {list(self._words.values())[index][1]}"
        return f"{self.named(wanted)}{words}"

    def _index(self, wanted: str) -> int | None:
        """Return a cell's index by its id or a unique id prefix; None if unknown."""
        ids = list(self._words)
        if wanted in ids:
            return ids.index(wanted)
        found = [i for i, name in enumerate(ids) if wanted and name.startswith(wanted)]
        return found[0] if len(found) == 1 else None


def digest(text: str) -> str:
    """Return the SHA-256 of a text, in hexadecimal."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def turn_mark(place: Place) -> dict[str, Json]:
    """Return the metadata for cells that the agent creates in a turn."""
    return {"session": place.session, "turn": place.turn} if place.session else {}


def name_of(cell: Cell) -> str:
    """Return a cell's user-facing name: its execution count, or its position from 1."""
    return called(cell.execution_count, cell.index + 1)


def titled(cell: Cell) -> str:
    """Return a cell's user-facing name with its first words."""
    return f"{name_of(cell)} {first_words(cell)}"


def first_words(cell: Cell) -> str:
    """Return the first words of a cell's source."""
    return one_line(visible(cell.source, lines=True), 60) or "(empty)"


def _cell_summary(cell: Cell) -> str:
    return telling(cell.source, 60) if cell.type == "code" else first_words(cell)


def runnable(shell: Shell, cell: Cell) -> Cell:
    """Return the cell; raise ToolError if it cannot be run during a turn."""
    if cell.type != "code":
        raise ToolError(f"cell {cell.id} is a {cell.type} cell; only code cells can be run")
    if cell.id == running_cell(shell) or is_message(cell.source):
        raise ToolError(f"cell {cell.id} contains a Hermes prompt, so it cannot run during a turn")
    return cell


def telling(source: str, limit: int = WIDTH) -> str:
    """Return the line that best summarises code: the first after imports and comments."""
    lines = source[:20_000].strip().split("\n")
    line = next((each for each in lines if not _PREPARING.match(each)), lines[0])
    more = " …" if len(lines) > 1 else ""
    return one_line(visible(one_line(line, limit)), limit) + more


def reading(arguments: Arguments, name: Naming) -> str:
    """Describe which cells a call reads."""
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
    """Describe which cell a call edits, with the first new line."""
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
    """Describe which cell a call moves, and where."""
    cell, after = (arguments.get(key) or "" for key in ("id", "after"))
    moved = _named(cell, name)
    return f"{moved} below {_named(after, name)}" if after else f"{moved} to the top"


def several(ids: object, name: Naming) -> str:
    """Name several cells: `cells 1, 2 and 5`, or `[5]` for a single one."""
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
"""Maximum characters of an outline: about 3,400 tokens, or 150 cells."""
SOURCE_LIMIT = 12_000
"""Maximum characters of one cell's source."""
TOTAL_LIMIT = 40_000
"""Maximum characters of one call's result, including outputs."""
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
    """Return an outline with a line for each cell; if it exceeds `limit`, its middle is omitted.

    Args:
        cells: the cells to list.
        seen: the hashes that the agent has seen, to mark changes.
        changed: the changes, used instead of `seen`; needed if `cells` is only a part of the
            notebook, as the other cells would count as deleted.
        limit: maximum characters.
    """
    change = changes(cells, seen) if changed is None else changed
    short = short_ids(cell.id for cell in cells)
    lines = []
    depth = 0
    for cell in cells:
        levels = [level for level, _ in headings(cell)]
        indent = min(levels[0] - 1 if levels else depth, _DEEPEST)
        lines.append("  " * indent + cell_line(cell, short[cell.id], change.mark(cell.id)))
        depth = levels[-1] if levels else depth
    if change.deleted:
        gone = [name if len(name) < _SHORT else name[:8] for name in change.deleted[:_GONE]]
        more = f" and {len(change.deleted) - _GONE} more" if len(change.deleted) > _GONE else ""
        lines.append(f"deleted since you last looked: {', '.join(gone)}{more}")
    return _capped(lines, cells, limit) or "(no cells)"


def headings(cell: Cell) -> list[tuple[int, str]]:
    """Return the level and title of a Markdown cell's headings, ignoring code blocks."""
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
    """Return the cells from the heading that contains `title` to the next heading at its level.

    An exact match takes precedence. Returns [] if no heading matches.
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
    """Return the kinds of a cell's outputs (error, plot, table, output), or their number."""
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


def cell_line(cell: Cell, short: str, mark: str) -> str:
    """Return a cell's outline line; `mark` says what has changed, or is "" for nothing."""
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
    """Return the lines, or the first and last with a note in place of the others."""
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
    """Return how many of the leading lines fit into `room` characters."""
    for count, line in enumerate(lines):
        room -= len(line) + 1
        if room < 0:
            return count
    return len(lines)


def selected(
    cells: Sequence[Cell], ids: Sequence[str] | None, span: str | None, title: str | None
) -> list[Cell]:
    """Return the selected cells in notebook order, or all cells without a selection.

    Raises ToolError if a cell, range or section does not exist.
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
    """Return the cells, with outputs where they exist."""
    shown = [cell for cell in cells if cell.output_count]
    if len(shown) <= _ONE_BY_ONE:
        full = {cell.id: await document.get(cell.id) for cell in shown}
    else:
        full = {cell.id: cell for cell in await document.cells(outputs=True)}
    return [full.get(cell.id, cell) for cell in cells]


def rendered(cells: Sequence[Cell], names: Mapping[str, str], *, images: bool) -> ToolOutput:
    """Return the source and outputs of cells, each under a title line.

    `names` maps ids to shorter ones for the titles.
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
    """Return the title line of a cell, with its id if there is no shorter name."""
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
