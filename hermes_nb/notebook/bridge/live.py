"""The open notebook, edited through the front end's own model.

What the user has typed and not saved stays, every edit is one step of the front end's undo, and
nothing is written behind its back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from hermes_nb.core.errors import ToolError
from hermes_nb.notebook.document.document import (
    Cell,
    Delete,
    Edit,
    Insert,
    Move,
    NotebookDocument,
    Replace,
    SetOutputs,
)
from hermes_nb.notebook.document.ipynb import CLIPPED
from hermes_nb.notebook.frontend import FrontEnd
from hermes_nb.notebook.page_discovery import Info

OUTPUT_CAP = 1_000_000
"""Characters of one output that cross the bridge; a longer one is cut and marked with `CLIPPED`."""
SAVE_SECONDS = 20.0


class LiveDocument(NotebookDocument):
    """A notebook that is open in a front end, over the bridge."""

    way = "the open notebook"

    def __init__(self, frontend: FrontEnd, info: Info) -> None:
        self._call = frontend.call
        self.info = info

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return all the cells in order."""
        found = await self._call("list", timeout=10, outputs=outputs, cap=OUTPUT_CAP)
        return [_cell(each) for each in found]

    async def sketch(self) -> list[Cell]:
        """Return the cells, of whose outputs only the kinds cross: values are empty."""
        return [_cell(each) for each in await self._call("list", timeout=10, outputs="kinds")]

    async def get(self, cell_id: str) -> Cell:
        """Return a cell with its outputs."""
        return _cell(await self._call("get", timeout=10, id=cell_id, cap=OUTPUT_CAP))

    async def apply(self, edit: Edit) -> Cell | None:
        """Make an edit in the page; refuse outputs that were cut on their way here."""
        match edit:
            case Insert():
                return _cell(await self._call("insert", **asdict(edit)))
            case Replace(cell_id, source, seen):
                return _cell(await self._call("replace", id=cell_id, source=source, hash=seen))
            case Delete(cell_id, seen):
                await self._call("delete", id=cell_id, hash=seen)
                return None
            case Move(cell_id, after):
                return _cell(await self._call("move", id=cell_id, after=after))
            case SetOutputs(cell_id, outputs, count):
                if any(CLIPPED in output for output in outputs):
                    message = f"these outputs of cell {cell_id!r} were cut when they were read"
                    raise ToolError(message)
                joined = [_joined(output) for output in outputs]
                asked = {"id": cell_id, "outputs": joined, "execution_count": count}
                return _cell(await self._call("outputs", timeout=20, **asked))

    async def save(self) -> None:
        """Save the notebook, as the user's own save command does."""
        await self._call("save", timeout=SAVE_SECONDS)


def _cell(found: Mapping[str, Any]) -> Cell:
    known = {name: found[name] for name in Cell.__slots__ if name in found}
    return Cell(**known)


def _joined(output: Mapping[str, Any]) -> dict[str, Any]:
    """Return an output whose text is one string: the front end's model joins lists with commas."""
    text = output.get("text")
    return {**output, "text": "".join(text)} if isinstance(text, list) else dict(output)
