"""The notebook as the agent knows it: what it has seen, where new cells go, what cells are called.

An edit, or a run, is for a cell as the agent last saw it. Where the cell is another by now, the
agent is shown what it holds and asked again; so what was approved is what happens. Whoever watches
reads of cells by the number that they have in the notebook; ids are for the agent.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from hermes_nb.core.errors import ToolError
from hermes_nb.core.text import one_line, visible
from hermes_nb.core.tools import Arguments
from hermes_nb.notebook.document.document import Cell, NotebookDocument, brief_id, conflict, find
from hermes_nb.notebook.shell import Shell, running_cell

Open = Callable[[], Awaitable[NotebookDocument]]
Naming = Callable[[str], str]
"""Says for a cell's id, or the beginning of one, how the user knows it, such as `cell 5`."""

WIDTH = 80
"""Characters of code that are told."""
MOST_CELLS = 6
"""Cells that are named one by one."""
_PREPARING = re.compile(r"\s*(?:#|import\s|from\s+\S+\s+import\s|%|@|\"\"\"|$)")


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


@dataclass(slots=True, kw_only=True)
class KnownCells:
    """The state behind a set of notebook tools.

    `open` gives the notebook, anew for every call: pages come and go. `turn_mark` is the metadata
    for cells that the agent makes; `seen` may be shared with whoever else shows cells to the agent.
    """

    shell: Shell
    open: Open
    turn_mark: Callable[[], Arguments]
    sees_images: Callable[[], bool]
    seen: Seen
    _words: dict[str, str] = field(default_factory=dict)
    _inserted: tuple[Arguments, str] | None = None

    async def cells(self) -> tuple[NotebookDocument, list[Cell]]:
        """Return the notebook and its cells, without outputs."""
        document = await self.open()
        cells = await document.cells()
        self._words = {cell.id: _told(cell) for cell in cells}
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
        """Return the id behind which a new cell goes: this turn's last one, or the running one."""
        ids = {cell.id for cell in cells}
        if self._inserted is not None:
            mark, last = self._inserted
            if last in ids and mark == self.turn_mark():
                return last
        running = running_cell(self.shell)
        return running if running in ids else None

    def placed(self, cell: Cell) -> None:
        """Note where the agent's last new cell is."""
        self._inserted = (dict(self.turn_mark()), cell.id)
        self.moved(cell)

    def moved(self, cell: Cell) -> None:
        """Note that a cell, which may be new, is at its index now."""
        rest = [each for each in self._words.items() if each[0] != cell.id]
        rest.insert(cell.index, (cell.id, _told(cell)))
        self._words = dict(rest)

    def deleted(self, cell: Cell) -> None:
        self._words.pop(cell.id, None)

    def named(self, wanted: str) -> str:
        """Return how whoever watches knows a cell: by its index, where that is known."""
        index = self._index(wanted)
        return f"cell {visible(brief_id(wanted)) if index is None else index}"

    def gist(self, arguments: Arguments) -> str:
        """Return the name and the first words of the cell that a call is for."""
        wanted = str(arguments.get("id", ""))
        index = self._index(wanted)
        words = "" if index is None else f": {list(self._words.values())[index]}"
        return f"{self.named(wanted)}{words}"

    def _index(self, wanted: str) -> int | None:
        """Return the index of the cell whose id, alone of all, begins so."""
        ids = list(self._words)
        if wanted in ids:
            return ids.index(wanted)
        found = [i for i, name in enumerate(ids) if wanted and name.startswith(wanted)]
        return found[0] if len(found) == 1 else None


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
        wanted.append(f"cells {str(span).replace('-', '–')}")
    if section := arguments.get("section"):
        wanted.append(f"section {section}")
    told = ", ".join(wanted) or "all cells"
    return visible(told if arguments.get("outputs", True) else f"{told}, without outputs")


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
    """Name some cells: `cells 1, 2 and 5`, or `cell 5` for a single one."""
    known = [_named(each, name) for each in (ids if isinstance(ids, list | tuple) else [ids])]
    *names, last = [each.removeprefix("cell ") for each in known] or [""]
    if not names:
        return "".join(known)
    if len(known) > MOST_CELLS:
        names, last = names[: MOST_CELLS - 1], f"{len(known) - MOST_CELLS + 1} more"
    return f"cells {', '.join(names)} and {last}"


def _named(cell: object, name: Naming) -> str:
    return one_line(visible(name(str(cell))), WIDTH)
