"""A notebook as the agent edits it: open in a front end, closed on disk, or out of reach.

One protocol, several ways; every result says which way was taken. Cells are addressed by id, and an
edit names the hash of the source that it was made for: a cell that somebody changed meanwhile
answers with a conflict instead of being overwritten.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from hermes_nb.core.errors import ToolError

CellType = Literal["code", "markdown", "raw"]


class CellConflict(ToolError):  # noqa: N818 - what happened to the cell
    """The cell is not what the edit was made for; the text shows what it holds now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One cell. `hash` is `source_hash(source)`; `outputs` is None where they were not asked for.

    `index` counts from 0. `outputs` are nbformat outputs.
    """

    index: int
    id: str
    type: CellType
    source: str
    hash: str
    execution_count: int | None = None
    output_count: int = 0
    outputs: Sequence[Mapping[str, Any]] | None = None
    metadata: Mapping[str, Any] = field(default_factory=dict)


class NotebookDocument(Protocol):
    """A notebook that can be read and edited.

    Every method raises `ToolError` with what to do instead, `CellConflict` where `seen`, the hash
    of the source the caller last saw, is not the cell's any more.
    """

    @property
    def way(self) -> str:
        """How it is reached, as a result says it: "the open notebook", "the file x.ipynb"."""
        ...

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return all the cells in order."""
        ...

    async def get(self, cell_id: str) -> Cell:
        """Return a cell with its outputs."""
        ...

    async def insert(
        self,
        source: str,
        *,
        after: str | None = None,
        index: int | None = None,
        type: CellType = "code",  # noqa: A002 - nbformat's own word
        metadata: Mapping[str, Any] | None = None,
    ) -> Cell:
        """Add a cell behind the cell `after`, or at `index`, or at the end."""
        ...

    async def replace(self, cell_id: str, source: str, *, seen: str) -> Cell:
        """Replace a cell's source."""
        ...

    async def delete(self, cell_id: str, *, seen: str) -> None:
        """Remove a cell."""
        ...

    async def move(self, cell_id: str, *, after: str | None) -> Cell:
        """Move a cell behind another one, or to the top."""
        ...

    async def set_outputs(
        self,
        cell_id: str,
        outputs: Sequence[Mapping[str, Any]],
        *,
        execution_count: int | None = None,
    ) -> Cell:
        """Write a code cell's outputs."""
        ...

    async def save(self) -> None:
        """Save what was changed, where that is not done anyway."""
        ...


def source_hash(source: str) -> str:
    """Return the hash that the front end computes too: djb2 with xor over UTF-16 code units."""
    value = 5381
    data = source.encode("utf-16-le", "surrogatepass")
    for low, high in zip(data[::2], data[1::2], strict=True):
        value = ((value * 33) ^ (low | high << 8)) & 0xFFFFFFFF
    return f"{value:x}"
