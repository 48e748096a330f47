"""A notebook that the agent edits: open in a front end, closed in a file, or not reachable.

Edits are data objects, which each kind of notebook applies in its own way. Cells are addressed by
id. An edit includes the hash of the source that it applies to: if the cell has since changed, the
edit raises a conflict and does not overwrite it.
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
"""An output in nbformat's format."""

SHORT = 8
"""Length of a shortened id, as in git's short hashes."""
_UUID = 32
_NAMED = 5
_SOURCE_SHOWN = 8_000
_MARKDOWN = "%%markdown\n"

OFFERED = "below"
"""Id of the cell offered below the running one, which does not exist yet."""
_WAY_OUT = (
    "the cells of this notebook cannot be reached; ask the user to open it in JupyterLab or "
    "Notebook 7 with the hermes_nb extension, or to save it as a file"
)


class CellConflict(ToolError):
    """The cell has changed since the edit was made; the message contains its current source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell of a notebook."""

    index: int
    """Position in the notebook, from 0."""
    id: str
    """The cell's id."""
    type: CellType
    """The type: "code", "markdown" or "raw"."""
    source: str
    """The source as one string."""
    hash: str
    """`source_hash(source)`."""
    execution_count: int | None = None
    """The execution count; None if it has not run."""
    output_count: int = 0
    """Number of outputs."""
    outputs: Sequence[Output] | None = None
    """The outputs; None if they were not requested."""
    metadata: Mapping[str, Json] = field(default_factory=dict)
    """The cell's metadata."""
    running: bool = False
    """True if it is running, or waiting to run."""
    run: bool = False
    """True if the user accepted a change to the cell and wants to run it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Insert:
    """Insert a cell below the cell `after`, or at `index`, or at the end."""

    source: str
    """The source."""
    after: str | None = None
    """Id of the cell above; has precedence over `index`."""
    index: int | None = None
    """Position, from 0; None for the end."""
    type: CellType = "code"
    """The type: "code", "markdown" or "raw"."""
    metadata: Mapping[str, Json] = field(default_factory=dict)
    """The cell's metadata."""


@dataclass(frozen=True, slots=True)
class Replace:
    """Replace the source of a cell."""

    id: str
    """Id of the cell."""
    source: str
    """The new source."""
    seen: str
    """Hash of the source that the caller last saw; a different source is a conflict."""
    review: bool = False
    """If true, a front end displays the change and lets the user undo it."""


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a cell."""

    id: str
    """Id of the cell."""
    seen: str
    """Hash of the source that the caller last saw; a different source is a conflict."""


@dataclass(frozen=True, slots=True)
class Move:
    """Move a cell."""

    id: str
    """Id of the cell."""
    after: str | None
    """Id of the cell to move it below; None for the top."""


@dataclass(frozen=True, slots=True)
class SetOutputs:
    """Replace the outputs of a code cell."""

    id: str
    """Id of the cell."""
    outputs: Sequence[Output]
    """The new outputs."""
    execution_count: int | None = None
    """The new execution count; None for none."""


Edit = Insert | Replace | Delete | Move | SetOutputs


class NotebookDocument(ABC):
    """A notebook that can be read and edited; there is a subclass for each kind of notebook.

    Any method may raise `ToolError`, with advice, or `CellConflict` if `seen` is no longer the hash
    of the cell's source.
    """

    way: str
    """How the notebook is accessed, for display: "the open notebook", "the file x.ipynb"."""

    @property
    def selected(self) -> str:
        """The id of the cell that the user has selected, or "" if unknown."""
        return ""

    @abstractmethod
    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return all cells in order."""

    async def sketch(self) -> list[Cell]:
        """Return the cells; if it saves time, outputs contain only their types and MIME types."""
        return await self.cells()

    @abstractmethod
    async def get(self, cell_id: str) -> Cell:
        """Return a cell with its outputs."""

    @abstractmethod
    async def apply(self, edit: Edit) -> Cell | None:
        """Apply an edit and return the cell in its new state; None after a deletion."""

    async def save(self) -> None:  # noqa: B027 - optional: most kinds save every edit
        """Save the changes, if edits are not saved immediately."""

    async def insert(
        self,
        source: str,
        *,
        after: str | None = None,
        index: int | None = None,
        type: CellType = "code",  # noqa: A002 - the name in nbformat
        metadata: Mapping[str, Json] | None = None,
    ) -> Cell:
        edit = Insert(source=source, after=after, index=index, type=type, metadata=metadata or {})
        return cast("Cell", await self.apply(edit))

    async def replace(self, cell_id: str, source: str, *, seen: str, review: bool = False) -> Cell:
        """Return the cell in its new state; the user may have approved only part of the change."""
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
    """The fallback for an unreachable notebook: code that ran, and one new cell offered below.

    The code comes from the input history, and existing cells cannot be changed. When the running
    cell ends, a front end inserts only the last new cell that it received, so several new cells are
    joined into one.
    """

    way = "the input history (the notebook cannot be reached; a new cell is offered below)"

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._offered: list[str] = []
        self._running: object = None

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return the code that ran as cells `in-1`, `in-2`, …, whose outputs are unknown."""
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
        """Offer a cell below the running one, joined with those offered earlier.

        Only a code cell can be offered. So Markdown becomes a code cell with `%%markdown`, or
        comments if joined with code. All edits except `Insert` are refused.
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


def as_nbformat(cell: Cell) -> dict[str, Json]:
    """Return a cell in nbformat's form; a code cell without outputs if they were not read."""
    found: dict[str, Json] = {
        "id": cell.id,
        "cell_type": cell.type,
        "source": cell.source,
        "metadata": dict(cell.metadata),
    }
    if cell.type == "code":
        found["outputs"] = [dict(each) for each in cell.outputs or ()]
        found["execution_count"] = cell.execution_count
    return found


def source_hash(source: str) -> str:
    """Return the hash that the front end also computes: djb2 with xor over UTF-16 code units."""
    value = 5381
    data = source.encode("utf-16-le", "surrogatepass")
    for low, high in zip(data[::2], data[1::2], strict=True):
        value = ((value * 33) ^ (low | high << 8)) & 0xFFFFFFFF
    return f"{value:x}"


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return each id's shortest unique prefix of at least 8 characters."""
    ordered = sorted(set(ids))
    shared = [0, *(len(commonprefix(two)) for two in pairwise(ordered)), 0]  # noqa: RUF071 - no paths
    neighbours = zip(ordered, pairwise(shared), strict=False)
    return {
        name: name[: max(SHORT, before + 1, behind + 1)] for name, (before, behind) in neighbours
    }


def brief_id(cell_id: str) -> str:
    """Return an id for display: the first eight digits of a UUID, other ids unchanged."""
    return cell_id[:SHORT] if len(cell_id) >= _UUID else cell_id


def find(cells: Sequence[Cell], wanted: str) -> Cell:
    """Return the cell with this id or unique id prefix; raise ToolError otherwise."""
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
    """Return the error for an unknown id, suggesting cells that the caller may have meant."""
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
    """Return a cell's id, index and first words as one string."""
    return f"{brief_id(cell.id)} [{cell.index}] {one_line(visible(cell.source, lines=True), 40)!r}"


def conflict(cell: Cell) -> CellConflict:
    """Return the error for an edit whose cell has since changed."""
    source = head_tail(cell.source, _SOURCE_SHOWN)
    return CellConflict(
        f"cell {cell.id} has changed since you last read it, so nothing was edited. It now "
        f"contains:\n{source}\nMake the edit again for this source."
    )
