"""Putting a turn's cells back into a notebook that somebody may have edited since.

Cells are compared by id. What the turn did to a cell is taken back where the cell still is what the
turn left; where it is not, it stays and is named. Cells that the turn did not touch are not looked
at, and nothing is ever deleted that the turn did not insert.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any

from hermes_nb.app.checkpoints.cells import CellJson, Cells
from hermes_nb.app.checkpoints.undo import CellsRestored
from hermes_nb.core.errors import ToolError
from hermes_nb.core.text import canonical_json, one_line
from hermes_nb.notebook.cells.document import Cell, NotebookDocument
from hermes_nb.notebook.cells.finding import brief_id

Open = Callable[[str], Awaitable[NotebookDocument]]


def cell_json(cell: Cell) -> dict[str, Any]:
    """Return a cell as checkpoints keep it; `outputs` is None where they are not known."""
    outputs = None if cell.outputs is None else [dict(output) for output in cell.outputs]
    return {
        "id": cell.id,
        "type": cell.type,
        "source": cell.source,
        "metadata": dict(cell.metadata),
        "outputs": outputs,
        "execution_count": cell.execution_count,
    }


class DocumentRestorer:
    """Restores cells through `open_document`, which finds a notebook by its key."""

    def __init__(self, open_document: Open) -> None:
        self._open = open_document

    async def restore_cells(
        self, document: str, before: Cells, after: Cells, *, force: bool = False
    ) -> CellsRestored:
        """Turn the notebook from `after` to `before`; see `Restorer`."""
        found = await self._open(document)
        restoring = _Restoring(found, before, after, await found.cells(outputs=True), force=force)
        await restoring.remove_inserted()
        await restoring.rewrite_edited()
        await restoring.put_in_place()
        return restoring.result()


class _Restoring:
    """One restoration, step by step."""

    def __init__(
        self,
        document: NotebookDocument,
        before: Cells,
        after: Cells,
        now: Sequence[Cell],
        *,
        force: bool,
    ) -> None:
        self._document = document
        self._before = {str(cell["id"]): cell for cell in before}
        self._after = {str(cell["id"]): cell for cell in after}
        self._now = {cell.id: cell for cell in now}
        self._force = force
        self._done: list[str] = []
        self._conflicts: list[str] = []
        self._renamed: dict[str, str] = {}

    def result(self) -> CellsRestored:
        """Return what was done."""
        return CellsRestored(
            done=tuple(self._done), conflicts=tuple(self._conflicts), renamed=self._renamed
        )

    async def remove_inserted(self) -> None:
        """Delete the cells that the turn added, unless somebody has written in them."""
        for cell_id, left in self._after.items():
            now = self._now.get(cell_id)
            if cell_id in self._before or now is None:
                continue
            if now.source != left["source"] and not self._force:
                self._conflict(left, "is new and has been changed since, so it stays")
                continue
            await self._try(left, "removed", self._document.delete(cell_id, seen=now.hash))

    async def rewrite_edited(self) -> None:
        """Give the cells that the turn changed their source and their outputs back."""
        for cell_id, was in self._before.items():
            left, now = self._after.get(cell_id), self._now.get(cell_id)
            if left is None or _same(was, left):
                continue
            if now is None:
                self._conflict(was, "has been deleted since")
            elif await self._rewrite_source(was, left, now):
                await self._rewrite_outputs(was, left, now)

    async def _rewrite_source(self, was: CellJson, left: CellJson, now: Cell) -> bool:
        """Restore a source; say whether it is what it was."""
        if now.source == was["source"]:
            return True
        if was["source"] == left["source"]:  # the turn only changed its outputs
            return True
        if now.source != left["source"] and not self._force:
            self._conflict(was, "has been changed since, so it stays as it is")
            return False
        change = self._document.replace(now.id, was["source"], seen=now.hash)
        return await self._try(was, "restored", change)

    async def _rewrite_outputs(self, was: CellJson, left: CellJson, now: Cell) -> None:
        old, new, present = (_outputs(each) for each in (was, left, cell_json(now)))
        if old is None and new is not None:
            self._done.append(
                f"{_named(was)} keeps its outputs: the old ones were too large to save"
            )
        if old is None or new is None or old in (new, present):
            return
        if present != new and not self._force:
            self._conflict(was, "has newer outputs, which stay")
            return
        change = self._document.set_outputs(
            now.id, was["outputs"], execution_count=was.get("execution_count")
        )
        await self._try(was, "has its outputs back", change)

    async def put_in_place(self) -> None:
        """Insert what the turn deleted and move what it moved, each behind its old neighbour."""
        moved = _moved(self._before, self._after)
        anchor: str | None = None
        for cell_id, was in self._before.items():
            if cell_id in self._now:
                if cell_id in moved and not await self._move(was, anchor):
                    continue  # it stands elsewhere, and nothing is to follow it there
                anchor = cell_id
            elif cell_id not in self._after:
                anchor = await self._insert(was, anchor) or anchor

    async def _move(self, was: CellJson, anchor: str | None) -> bool:
        """Move a cell back; say whether it stands where it stood."""
        cell_id = str(was["id"])
        present = _neighbour(cell_id, self._now, self._after)
        if present != _neighbour(cell_id, self._after, self._now) and not self._force:
            if present != _neighbour(cell_id, self._before, self._now):
                self._conflict(was, "has been moved since, so it stays where it is")
                return False
            return True
        return await self._try(was, "moved back", self._document.move(cell_id, after=anchor))

    async def _insert(self, was: CellJson, anchor: str | None) -> str | None:
        """Insert a deleted cell and return its new id; None when that failed."""
        place: dict[str, Any] = {"index": 0} if anchor is None else {"after": anchor}
        try:
            cell = await self._document.insert(
                was["source"], **place, type=was["type"], metadata=was["metadata"]
            )
        except ToolError as error:
            self._conflict(was, f"could not be brought back: {one_line(str(error), 200)}")
            return None
        self._renamed[str(was["id"])] = cell.id
        self._done.append(f"{_named(was)} brought back")
        if was["type"] == "code" and was["outputs"] is None:
            self._done.append(f"{_named(was)} has lost its outputs, which were too large to save")
        elif was["type"] == "code" and (was["outputs"] or was.get("execution_count")):
            change = self._document.set_outputs(
                cell.id, was["outputs"], execution_count=was.get("execution_count")
            )
            await self._try(was, "", change)
        return cell.id

    async def _try(self, cell: CellJson, text: str, change: Awaitable[object]) -> bool:
        """Make a change and note it; a change that is refused becomes a conflict."""
        try:
            await change
        except ToolError as error:
            self._conflict(cell, f"could not be restored: {one_line(str(error), 200)}")
            return False
        if text:
            self._done.append(f"{_named(cell)} {text}")
        return True

    def _conflict(self, cell: CellJson, text: str) -> None:
        self._conflicts.append(f"{_named(cell)} {text}")


def _named(cell: CellJson) -> str:
    source = str(cell["source"]).strip()
    gist = f" “{one_line(source.splitlines()[0], 40)}”" if source else ""
    return f"cell {brief_id(str(cell['id']))}{gist}"


def _outputs(cell: CellJson) -> str | None:
    """Return outputs in a form that compares, None where they are not known."""
    return None if cell["outputs"] is None else canonical_json(cell["outputs"])


def _same(one: CellJson, other: CellJson) -> bool:
    return bool(one["source"] == other["source"]) and _outputs(one) == _outputs(other)


def _neighbour(cell_id: str, order: Iterable[str], known: Mapping[str, object]) -> str | None:
    """Return the nearest cell above in `order` that is `known` as well."""
    above: str | None = None
    for each in order:
        if each == cell_id:
            break
        if each in known:
            above = each
    return above


def _moved(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    """Return a smallest set of cells whose moves explain the new order.

    The others are a longest subsequence that kept its order.
    """
    place = {cell_id: index for index, cell_id in enumerate(after)}
    common = [cell_id for cell_id in before if cell_id in place]
    tails: list[int] = []
    ends: list[str] = []
    previous: dict[str, str | None] = {}
    for cell_id in common:
        at = bisect_left(tails, place[cell_id])
        previous[cell_id] = ends[at - 1] if at else None
        tails[at : at + 1] = [place[cell_id]]
        ends[at : at + 1] = [cell_id]
    kept: set[str] = set()
    last = ends[-1] if ends else None
    while last is not None:
        kept.add(last)
        last = previous[last]
    return set(common) - kept
