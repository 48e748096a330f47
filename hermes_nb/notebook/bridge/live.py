"""The open notebook, edited through the front end's own model.

What the user has typed and not saved stays, every edit is one step of the front end's undo, and
nothing is written behind its back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes_nb.core.errors import ToolError
from hermes_nb.notebook.bridge.channel import Info
from hermes_nb.notebook.bridge.frontend import FrontEnd
from hermes_nb.notebook.cells.document import Cell, CellType

OUTPUT_CAP = 1_000_000
"""Characters of one output that cross the bridge; a longer one is cut and marked with `CLIPPED`."""
CLIPPED = "hermes_clipped"
"""The key that marks a cut output; its value counts what was left out."""
SAVE_SECONDS = 20.0


class LiveDocument:
    """A notebook that is open in a front end: `document.NotebookDocument` over the bridge."""

    way = "the open notebook"

    def __init__(self, frontend: FrontEnd, info: Info) -> None:
        self._frontend = frontend
        self.info = info

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return all the cells in order."""
        found = await self._frontend.call("list", timeout=10, outputs=outputs, cap=OUTPUT_CAP)
        return [_cell(each) for each in found]

    async def sketch(self) -> list[Cell]:
        """Return the cells, of whose outputs only the kinds cross: values are empty."""
        found = await self._frontend.call("list", timeout=10, outputs="kinds")
        return [_cell(each) for each in found]

    async def get(self, cell_id: str) -> Cell:
        """Return a cell with its outputs."""
        return _cell(await self._frontend.call("get", timeout=10, id=cell_id, cap=OUTPUT_CAP))

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
        asked: dict[str, Any] = {"source": source, "after": after, "index": index, "type": type}
        return _cell(await self._frontend.call("insert", **asked, metadata=dict(metadata or {})))

    async def replace(self, cell_id: str, source: str, *, seen: str) -> Cell:
        """Replace a cell's source."""
        changed = await self._frontend.call("replace", id=cell_id, source=source, hash=seen)
        return _cell(changed)

    async def delete(self, cell_id: str, *, seen: str) -> None:
        """Remove a cell."""
        await self._frontend.call("delete", id=cell_id, hash=seen)

    async def move(self, cell_id: str, *, after: str | None) -> Cell:
        """Move a cell behind another one, or to the top."""
        return _cell(await self._frontend.call("move", id=cell_id, after=after))

    async def set_outputs(
        self,
        cell_id: str,
        outputs: Sequence[Mapping[str, Any]],
        *,
        execution_count: int | None = None,
    ) -> Cell:
        """Write a code cell's outputs; refuse ones that were cut on their way here."""
        if any(CLIPPED in output for output in outputs):
            message = f"these outputs of cell {cell_id!r} were cut when they were read"
            raise ToolError(message)
        written = await self._frontend.call(
            "outputs",
            timeout=20,
            id=cell_id,
            outputs=[_joined(output) for output in outputs],
            execution_count=execution_count,
        )
        return _cell(written)

    async def save(self) -> None:
        """Save the notebook, as the user's own save command does."""
        await self._frontend.call("save", timeout=SAVE_SECONDS)


def _cell(found: Mapping[str, Any]) -> Cell:
    known = {name: found[name] for name in Cell.__slots__ if name in found}
    return Cell(**known)


def _joined(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return an output whose text is one string: the front end's model joins lists with commas."""
    text = output.get("text")
    return {**output, "text": "".join(text)} if isinstance(text, list) else dict(output)
