"""What the notebook tools share: the notebook of the moment, and what the agent knows of it.

An edit, or a run, is for a cell as the agent last saw it. Where the cell is another by now, the
agent is shown what it holds and asked again; so what was approved is what happens.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from hermes_nb.core.errors import ToolError
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Arguments
from hermes_nb.notebook.cells.document import Cell, NotebookDocument
from hermes_nb.notebook.cells.finding import brief_id, conflict, find
from hermes_nb.notebook.cells.gists import telling
from hermes_nb.notebook.cells.outline import Seen
from hermes_nb.notebook.values.kinds import Foreign
from hermes_nb.safety.visible import visible

Open = Callable[[], Awaitable[NotebookDocument]]


@dataclass(slots=True, kw_only=True)
class Workbench:
    """The state behind a set of notebook tools.

    `open` gives the notebook, anew for every call: pages come and go. `turn_mark` is the metadata
    for cells that the agent makes; `seen` may be shared with whoever else shows cells to the agent.
    """

    shell: Foreign
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
        """Note that a cell is gone."""
        self._words.pop(cell.id, None)

    def named(self, wanted: str) -> str:
        """Return how whoever watches knows a cell: by its index, where that is known."""
        index = self._index(wanted)
        return f"cell {visible(brief_id(wanted)) if index is None else index}"

    def gist(self, wanted: str) -> str:
        """Return a cell's name with its first words, for whoever watches."""
        index = self._index(wanted)
        words = "" if index is None else f": {list(self._words.values())[index]}"
        return f"{self.named(wanted)}{words}"

    def _index(self, wanted: str) -> int | None:
        """Return the index of the cell whose id, alone of all, begins so."""
        ids = list(self._words)
        found = [i for i, name in enumerate(ids) if wanted and name.startswith(wanted)]
        exact = ids.index(wanted) if wanted in ids else None
        return exact if exact is not None else found[0] if len(found) == 1 else None


def first_words(cell: Cell) -> str:
    """Return how a cell's source begins."""
    return one_line(visible(cell.source, lines=True), 60) or "(empty)"


def _told(cell: Cell) -> str:
    return telling(cell.source, 60) if cell.type == "code" else first_words(cell)


def running_cell(shell: Foreign) -> str:
    """Return the id of the cell whose code runs now, "" where the front end does not say it."""
    kernel = getattr(shell, "kernel", None)
    parent = kernel.get_parent() if kernel is not None else {}
    return str((parent.get("metadata") or {}).get("cellId") or "")


def is_message(source: str) -> bool:
    """Say whether a cell's source is a message to the agent."""
    return source.lstrip().startswith(("%hermes", "%%hermes"))


def runnable(shell: Foreign, cell: Cell) -> Cell:
    """Return the cell; raise ToolError for one that cannot be run from inside of a turn."""
    if cell.type != "code":
        message = f"cell {cell.id} is a {cell.type} cell; only code cells run"
        raise ToolError(message)
    if cell.id == running_cell(shell) or is_message(cell.source):
        message = f"cell {cell.id} asks the agent itself; it cannot run inside of a turn"
        raise ToolError(message)
    return cell
