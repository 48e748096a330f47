"""Saving cells before the agent changes them: a document around a document.

What is kept is the agent's part only. A cell is saved as it is at the moment the agent first
touches it, and again if somebody else has written in it since the agent last did: undo goes back to
that. Other people's edits elsewhere in the notebook are in neither state, so undo leaves them be.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hermes_nb.app.checkpoints.checkpoints import Checkpoints
from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ToolError
from hermes_nb.notebook.cells.document import Cell, CellType, NotebookDocument
from hermes_nb.notebook.cells.outline import Sketching
from hermes_nb.notebook.cells.restore import cell_json

CUT_MARKS = ("hermes_clipped", "[... an output of ")
"""What outputs carry that were too large to be read whole; such outputs cannot be put back."""


@dataclass(slots=True)
class _Turn:
    """A notebook's cells in one turn, by id and in order: as they were, as the agent left them."""

    key: tuple[str, int]
    before: dict[str, dict[str, Any]]
    after: dict[str, dict[str, Any]]
    touched: set[str] = field(default_factory=set)


class CellKeeper:
    """Keeps track of the agent's edits, notebook by notebook, for as long as a turn lasts.

    `session` and `turn` say whose edits they are at the time.
    """

    def __init__(
        self, checkpoints: Checkpoints, *, session: Callable[[], str], turn: Callable[[], int]
    ) -> None:
        self._checkpoints = checkpoints
        self._session = session
        self._turn = turn
        self._turns: dict[str, _Turn] = {}

    def kept(self, document: NotebookDocument, key: str) -> KeptDocument:
        """Return the document with every edit saved under `key`, its notebook's absolute path."""
        if isinstance(document, Sketching):
            return _KeptSketching(document, self, key)
        return KeptDocument(document, self, key)

    async def opened(self, document: NotebookDocument, name: str) -> _Turn:
        """Return the notebook's state in this turn, begun now if this is its first edit."""
        key = (self._session(), self._turn())
        known = self._turns.get(name)
        if known is None or known.key != key:
            # Without outputs: those of cells that are never touched are not needed.
            cells = {
                cell.id: {**cell_json(cell), "outputs": None} for cell in await document.cells()
            }
            known = self._turns[name] = _Turn(key, cells, dict(cells))
        return known

    async def save(self, turn: _Turn, name: str) -> None:
        """Save both states."""
        session, number = turn.key
        before, after = list(turn.before.values()), list(turn.after.values())
        await in_thread(
            lambda: self._checkpoints.save_cells(session, number, name, before, after),
            name="hermes-checkpoint",
        )


class KeptDocument:
    """A `NotebookDocument` whose edits can be undone; `inner` is the document itself."""

    def __init__(self, inner: NotebookDocument, keeper: CellKeeper, key: str) -> None:
        self.inner = inner
        self._keeper = keeper
        self._key = key

    @property
    def way(self) -> str:
        """How it is reached."""
        return self.inner.way

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return all the cells in order."""
        return await self.inner.cells(outputs=outputs)

    async def get(self, cell_id: str) -> Cell:
        """Return a cell with its outputs."""
        return await self.inner.get(cell_id)

    async def insert(
        self,
        source: str,
        *,
        after: str | None = None,
        index: int | None = None,
        type: CellType = "code",  # noqa: A002 - nbformat's own word
        metadata: Mapping[str, Any] | None = None,
    ) -> Cell:
        """Add a cell; its id is known only afterwards, so that is when it is noted."""
        turn = await self._keeper.opened(self.inner, self._key)
        await self._keeper.save(turn, self._key)
        cell = await self.inner.insert(
            source, after=after, index=index, type=type, metadata=metadata
        )
        turn.touched.add(cell.id)
        turn.after[cell.id] = _whole(cell)
        turn.after = _in_place(turn.after, cell.id, await self.inner.cells())
        await self._keeper.save(turn, self._key)
        return cell

    async def replace(self, cell_id: str, source: str, *, seen: str) -> Cell:
        """Replace a cell's source."""
        turn = await self._touch(cell_id)
        kept = turn.after[cell_id]
        turn.after[cell_id] = {**kept, "source": source}
        await self._keeper.save(turn, self._key)
        try:
            cell = await self.inner.replace(cell_id, source, seen=seen)
        except ToolError:
            turn.after[cell_id] = kept
            await self._keeper.save(turn, self._key)
            raise
        turn.after[cell_id] = {**kept, "source": cell.source}  # its outputs stay
        await self._keeper.save(turn, self._key)
        return cell

    async def delete(self, cell_id: str, *, seen: str) -> None:
        """Remove a cell."""
        turn = await self._touch(cell_id)
        kept = turn.after
        turn.after = {name: cell for name, cell in kept.items() if name != cell_id}
        await self._keeper.save(turn, self._key)
        try:
            await self.inner.delete(cell_id, seen=seen)
        except ToolError:
            turn.after = kept
            await self._keeper.save(turn, self._key)
            raise

    async def move(self, cell_id: str, *, after: str | None) -> Cell:
        """Move a cell behind another one, or to the top."""
        turn = await self._touch(cell_id)
        await self._keeper.save(turn, self._key)
        cell = await self.inner.move(cell_id, after=after)
        turn.after = _in_place(turn.after, cell_id, await self.inner.cells())
        await self._keeper.save(turn, self._key)
        return cell

    async def set_outputs(
        self,
        cell_id: str,
        outputs: Sequence[Mapping[str, Any]],
        *,
        execution_count: int | None = None,
    ) -> Cell:
        """Write a code cell's outputs."""
        turn = await self._touch(cell_id)
        await self._keeper.save(turn, self._key)
        cell = await self.inner.set_outputs(cell_id, outputs, execution_count=execution_count)
        # As it is read back: a front end may put outputs in another way than they were given.
        turn.after[cell_id] = _whole(await self.inner.get(cell_id))
        await self._keeper.save(turn, self._key)
        return cell

    async def save(self) -> None:
        """Save what was changed, where that is not done anyway."""
        await self.inner.save()

    async def _touch(self, cell_id: str) -> _Turn:
        """Return the turn's state, the cell in it as it is now unless that is the agent's doing."""
        turn = await self._keeper.opened(self.inner, self._key)
        cell = await self.inner.get(cell_id)
        known = turn.after.get(cell_id)
        if cell_id in turn.touched and known is not None and known["source"] == cell.source:
            return turn
        whole = _whole(cell)
        order = None if known is not None and cell_id in turn.before else await self.inner.cells()
        turn.before[cell_id] = turn.after[cell_id] = whole
        if order is not None:  # somebody else inserted it, or made it theirs by writing in it
            turn.before = _in_place(turn.before, cell_id, order)
            turn.after = _in_place(turn.after, cell_id, order)
        turn.touched.add(cell_id)
        return turn


class _KeptSketching(KeptDocument):
    """A kept document of the kind that can also be read without its outputs' values."""

    async def sketch(self) -> list[Cell]:
        """Return the cells with the kinds of their outputs only."""
        return await cast("Sketching", self.inner).sketch()


def _whole(cell: Cell) -> dict[str, Any]:
    """Return a cell as it is kept, without outputs that were not read whole."""
    kept = cell_json(cell)
    if any(mark in str(kept["outputs"]) for mark in CUT_MARKS):
        kept["outputs"] = None
    return kept


def _in_place(
    cells: Mapping[str, dict[str, Any]], cell_id: str, order: Sequence[Cell]
) -> dict[str, dict[str, Any]]:
    """Return the cells with one of them behind the nearest other that is above it in `order`."""
    ids = [cell.id for cell in order]
    above = ids[: ids.index(cell_id)] if cell_id in ids else ids
    others = [name for name in cells if name != cell_id]
    anchor = next((name for name in reversed(above) if name in cells and name != cell_id), None)
    at = others.index(anchor) + 1 if anchor is not None else 0
    others.insert(at, cell_id)
    return {name: cells[name] for name in others}
