"""A notebook as the agent edits it: open in a front end, closed on disk, or out of reach.

Edits are values, and a kind of notebook has one way to apply them; every result says which kind it
was. Cells are addressed by id, and an edit names the hash of the source that it was made for: a
cell that somebody changed meanwhile answers with a conflict instead of being overwritten.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from os.path import commonprefix
from typing import Literal, cast

from hermes_nb.core.errors import ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.notebook.shell import Shell

CellType = Literal["code", "markdown", "raw"]
Output = Mapping[str, Json]
"""An output as nbformat has it."""

SHORT = 8
"""Characters of an id that are shown where they are enough; as many as git shows of a hash."""
_UUID = 32
_NAMED = 5
_SOURCE_SHOWN = 8_000
_MARKDOWN = "%%markdown\n"

OFFERED = "below"
"""The id of the cell that is offered; it is no cell yet, so nothing else takes that id."""
_WAY_OUT = (
    "the cells of this notebook cannot be reached; ask the user to open it in JupyterLab or "
    "Notebook 7 with the hermes_nb extension, or to save it as a file"
)


class CellConflict(ToolError):
    """The cell is not what the edit was made for; the text shows what it holds now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell. `hash` is `source_hash(source)`; `outputs` is None where they were not asked for.

    `index` counts from 0.
    """

    index: int
    id: str
    type: CellType
    source: str
    hash: str
    execution_count: int | None = None
    output_count: int = 0
    outputs: Sequence[Output] | None = None
    metadata: Mapping[str, Json] = field(default_factory=dict)
    run: bool = False
    """Whether the user, who has just kept a change of it, wants it run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """A new cell behind the cell `after`, or at `index`, or at the end."""

    source: str
    after: str | None = None
    index: int | None = None
    type: CellType = "code"
    metadata: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Replace:
    """Another source for a cell; `seen` is the hash of the one that the caller last saw.

    With `review`, a page shows what it replaces, and offers to take it back.
    """

    id: str
    source: str
    seen: str
    review: bool = False


@dataclass(frozen=True, slots=True)
class Delete:
    """A cell removed, if its source still is the one with the hash `seen`."""

    id: str
    seen: str


@dataclass(frozen=True, slots=True)
class Move:
    """A cell behind another one, or at the top."""

    id: str
    after: str | None


@dataclass(frozen=True, slots=True)
class SetOutputs:
    """What a code cell shows."""

    id: str
    outputs: Sequence[Output]
    execution_count: int | None = None


Edit = Insert | Replace | Delete | Move | SetOutputs


class NotebookDocument(ABC):
    """A notebook that can be read and edited; a kind of notebook says how it reads and applies.

    Every method raises `ToolError` with what to do instead, `CellConflict` where `seen` is not the
    hash of the cell's source any more. `way` is how it is reached, as a result says it: "the open
    notebook", "the file x.ipynb".
    """

    way: str

    @abstractmethod
    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return all the cells in order."""

    async def sketch(self) -> list[Cell]:
        """Return the cells; of outputs, where that costs little, types and MIME types only."""
        return await self.cells()

    @abstractmethod
    async def get(self, cell_id: str) -> Cell:
        """Return a cell with its outputs."""

    @abstractmethod
    async def apply(self, edit: Edit) -> Cell | None:
        """Make an edit and return the cell as it is now, None for one that is gone."""

    async def save(self) -> None:  # noqa: B027 - where every edit is saved at once
        """Save what was changed, where that is not done anyway."""

    async def insert(
        self,
        source: str,
        *,
        after: str | None = None,
        index: int | None = None,
        type: CellType = "code",  # noqa: A002 - nbformat's own word
        metadata: Mapping[str, Json] | None = None,
    ) -> Cell:
        edit = Insert(source=source, after=after, index=index, type=type, metadata=metadata or {})
        return cast("Cell", await self.apply(edit))

    async def replace(self, cell_id: str, source: str, *, seen: str, review: bool = False) -> Cell:
        """Return the cell as it is then: its user may have approved a part of it alone."""
        return cast("Cell", await self.apply(Replace(cell_id, source, seen, review)))

    async def delete(self, cell_id: str, *, seen: str) -> None:
        await self.apply(Delete(cell_id, seen))

    async def move(self, cell_id: str, *, after: str | None) -> Cell:
        return cast("Cell", await self.apply(Move(cell_id, after)))

    async def set_outputs(
        self, cell_id: str, outputs: Sequence[Output], *, execution_count: int | None = None
    ) -> Cell:
        return cast("Cell", await self.apply(SetOutputs(cell_id, outputs, execution_count)))


class FallbackDocument(NotebookDocument):
    """The last resort: the code that ran, as a shell knows it, and one cell offered below.

    Nothing can be changed. The front end takes one new cell when the running one ends, and only the
    last one it is given: several become one.
    """

    way = "the input history (the notebook is out of reach; a new cell is offered below)"

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._offered: list[str] = []
        self._running: object = None

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return the code that ran, as cells `in-1`, `in-2`, …; outputs are not known."""
        history = getattr(self._shell.history_manager, "input_hist_raw", [""])
        ran = [(count, source) for count, source in enumerate(history) if count and source]
        return [
            Cell(
                index=index,
                id=f"in-{count}",
                type="code",
                source=source,
                hash=source_hash(source),
                execution_count=count,
                outputs=() if outputs else None,
            )
            for index, (count, source) in enumerate(ran)
        ]

    async def get(self, cell_id: str) -> Cell:
        return find(await self.cells(outputs=True), cell_id)

    async def apply(self, edit: Edit) -> Cell:
        """Offer a cell below the running one, joined to what was offered there before.

        Text becomes a code cell with `%%markdown`, the only kind that can be offered; behind code
        it becomes comments. Every other edit is refused.
        """
        if not isinstance(edit, Insert):
            raise ToolError(_WAY_OUT)
        running = self._shell.execution_count
        if running != self._running:
            self._running, self._offered = running, []
        if self._offered and self._offered[0].startswith(_MARKDOWN):
            self._offered[0] = _commented(self._offered[0].removeprefix(_MARKDOWN))
        source = edit.source
        if edit.type != "code":
            source = _commented(source) if self._offered else f"{_MARKDOWN}{source}"
        self._offered.append(source)
        joined = "\n\n".join(self._offered)
        self._shell.set_next_input(joined, replace=False)
        return Cell(
            index=len(await self.cells()),
            id=OFFERED,
            type="code",
            source=joined,
            hash=source_hash(joined),
            metadata=edit.metadata,
        )

    async def save(self) -> None:
        raise ToolError(_WAY_OUT)


def _commented(text: str) -> str:
    return "\n".join(f"# {line}".rstrip() for line in text.split("\n"))


def source_hash(source: str) -> str:
    """Return the hash that the front end computes too: djb2 with xor over UTF-16 code units."""
    value = 5381
    data = source.encode("utf-16-le", "surrogatepass")
    for low, high in zip(data[::2], data[1::2], strict=True):
        value = ((value * 33) ^ (low | high << 8)) & 0xFFFFFFFF
    return f"{value:x}"


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return each id's shortest unique prefix of at least 8 characters."""
    ordered = sorted(set(ids))
    shared = [0, *(len(commonprefix(two)) for two in pairwise(ordered)), 0]  # noqa: RUF071 - texts
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
