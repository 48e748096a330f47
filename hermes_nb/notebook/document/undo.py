"""Save a turn's edits to a notebook as they happen, and undo them.

Only cells that the agent edits are saved. A cell is saved when the agent first edits it, and again
if the user has edited it since; undo restores that state. Other edits by the user are not saved, so
undo does not touch them.

Cells are identified by id. A change is undone if the cell has not changed since the turn. Otherwise
the cell is left unchanged and reported as a conflict. Undo deletes only cells that the turn
inserted.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from hermes_nb.agent.undo.cells import CellJson, Cells
from hermes_nb.agent.undo.changes import called
from hermes_nb.agent.undo.checkpoints import Checkpoints
from hermes_nb.agent.undo.undo import CellsRestored, VariablesRestored
from hermes_nb.core.errors import ToolError
from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Place
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

CUT_MARKS = ("hermes_clipped", "[... an output of ")
"""Marks in outputs that were too large to be read completely; such outputs cannot be restored."""

MOST_TURNS = 8
"""Maximum number of turns whose edits are tracked at the same time."""

CellStates = dict[str, dict[str, Json]]
"""Cells in checkpoint format, by id and in order."""
Open = Callable[[str], Awaitable[NotebookDocument]]


def cell_json(cell: Cell) -> dict[str, Json]:
    """Return a cell in checkpoint format; `outputs` is None if unknown."""
    outputs = None if cell.outputs is None else [dict(output) for output in cell.outputs]
    return {
        "id": cell.id,
        "type": cell.type,
        "source": cell.source,
        "metadata": dict(cell.metadata),
        "outputs": outputs,
        "execution_count": cell.execution_count,
    }


@dataclass(slots=True)
class _Turn:
    """The state of a notebook's cells before a turn and after the agent's edits."""

    key: tuple[str, int]
    before: CellStates
    after: CellStates
    touched: set[str] = field(default_factory=set)


class CellKeeper:
    """Tracks the agent's edits to each notebook during a turn of each session."""

    def __init__(self, checkpoints: Checkpoints) -> None:
        self._checkpoints = checkpoints
        self._turns: dict[tuple[str, str], _Turn] = {}  # by notebook and session, latest last

    def kept(self, document: NotebookDocument, key: str, place: Place) -> KeptDocument:
        """Wrap the document to save every edit made by the turn in `place`.

        `key` is the notebook's absolute path.
        """
        return KeptDocument(document, self, key, place)

    async def opened(self, document: NotebookDocument, name: str, place: Place) -> _Turn:
        """Return the notebook's state in this turn, created at the first edit."""
        key = (place.session, place.turn)
        known = self._turns.get((name, place.session))
        if known is None or known.key != key:
            # Without outputs, which are needed only for edited cells.
            cells = {
                cell.id: {**cell_json(cell), "outputs": None} for cell in await document.cells()
            }
            self._turns.pop((name, place.session), None)
            known = self._turns[name, place.session] = _Turn(key, cells, dict(cells))
            for old in [*self._turns][:-MOST_TURNS]:
                del self._turns[old]
        return known

    async def save(self, turn: _Turn, name: str) -> None:
        session, number = turn.key
        before, after = list(turn.before.values()), list(turn.after.values())
        await in_thread(self._checkpoints.save_cells, session, number, name, before, after)


class KeptDocument(NotebookDocument):
    """A document whose edits can be undone; `inner` is the wrapped document."""

    def __init__(self, inner: NotebookDocument, keeper: CellKeeper, key: str, place: Place) -> None:
        self.inner = inner
        self.way = inner.way
        self._keeper = keeper
        self._key = key
        self._place = place

    @property
    def selected(self) -> str:
        return self.inner.selected

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        return await self.inner.cells(outputs=outputs)

    async def sketch(self) -> list[Cell]:
        return await self.inner.sketch()

    async def get(self, cell_id: str) -> Cell:
        return await self.inner.get(cell_id)

    async def save(self) -> None:
        await self.inner.save()

    async def apply(self, edit: Edit) -> Cell | None:
        """Make an edit; save the planned state beforehand and the actual state afterwards.

        A new cell is saved only after the edit, because its id is not known until then.
        """
        turn = await self._keeper.opened(self.inner, self._key, self._place)
        if not isinstance(edit, Insert):
            await self._touch(turn, edit.id)
        was = turn.after
        if isinstance(edit, Replace):
            turn.after = {**was, edit.id: {**was[edit.id], "source": edit.source}}
        elif isinstance(edit, Delete):
            turn.after = {name: cell for name, cell in was.items() if name != edit.id}
        await self._keeper.save(turn, self._key)
        try:
            cell = await self.inner.apply(edit)
        except ToolError:
            if turn.after is not was:
                turn.after = was
                await self._keeper.save(turn, self._key)
            raise
        if cell is not None:
            turn.after = await self._states_after(turn, edit, cell)
            await self._keeper.save(turn, self._key)
        return cell

    async def _states_after(self, turn: _Turn, edit: Edit, cell: Cell) -> CellStates:
        match edit:
            case Insert():
                turn.touched.add(cell.id)
                after = turn.after | {cell.id: _checkpoint_cell(cell)}
                return _in_place(after, cell.id, await self.inner.cells())
            case Move():
                return _in_place(turn.after, cell.id, await self.inner.cells())
            case SetOutputs():
                # Read it back, because a front end may change the format of outputs.
                return turn.after | {cell.id: _checkpoint_cell(await self.inner.get(cell.id))}
            case _:  # the outputs stay
                return turn.after | {cell.id: {**turn.after[cell.id], "source": cell.source}}

    async def _touch(self, turn: _Turn, cell_id: str) -> None:
        """Save a cell's current state, unless the agent produced it."""
        cell = await self.inner.get(cell_id)
        known = turn.after.get(cell_id)
        if cell_id in turn.touched and known is not None and known["source"] == cell.source:
            return
        order = None if known is not None and cell_id in turn.before else await self.inner.cells()
        turn.before[cell_id] = turn.after[cell_id] = _checkpoint_cell(cell)
        if order is not None:  # the user inserted it, or edited a cell that the agent inserted
            turn.before = _in_place(turn.before, cell_id, order)
            turn.after = _in_place(turn.after, cell_id, order)
        turn.touched.add(cell_id)


def _checkpoint_cell(cell: Cell) -> dict[str, Json]:
    """Return a cell for a checkpoint, without outputs that were not read completely."""
    kept = cell_json(cell)
    if any(mark in str(kept["outputs"]) for mark in CUT_MARKS):
        kept["outputs"] = None
    return kept


def _in_place(cells: CellStates, cell_id: str, order: Sequence[Cell]) -> CellStates:
    """Return the cells with one of them moved to its place in `order`, the notebook's cells."""
    ids = [cell.id for cell in order]
    above = ids[: ids.index(cell_id)] if cell_id in ids else ids
    others = [name for name in cells if name != cell_id]
    anchor = next((name for name in reversed(above) if name in cells and name != cell_id), None)
    at = others.index(anchor) + 1 if anchor is not None else 0
    others.insert(at, cell_id)
    return {name: cells[name] for name in others}


class DocumentRestorer:
    """Restores cells and variables.

    `open_document` returns a notebook by key; `variables` restores those of a turn. Without it,
    they stay as they are.
    """

    def __init__(
        self, open_document: Open, *, variables: Callable[..., VariablesRestored] | None = None
    ) -> None:
        self._open = open_document
        self._variables = variables

    def restore_variables(
        self, session: str, turn: int, *, force: bool = False, redo: bool = False
    ) -> VariablesRestored:
        """Restore the variables that a turn changed; see `Restorer`."""
        if self._variables is None:
            return VariablesRestored()
        return self._variables(session, turn, force=force, redo=redo)

    async def restore_cells(
        self, document: str, before: Cells, after: Cells, *, force: bool = False
    ) -> CellsRestored:
        """Change the notebook from the state `after` to the state `before`; see `Restorer`."""
        found = await self._open(document)
        restoring = _Restoring(
            found,
            {str(cell["id"]): cell for cell in before},
            {str(cell["id"]): cell for cell in after},
            {cell.id: cell for cell in await found.cells(outputs=True)},
            force,
        )
        await restoring.remove_inserted()
        await restoring.rewrite_edited()
        await restoring.put_in_place()
        return CellsRestored(
            done=tuple(restoring.done),
            conflicts=tuple(restoring.conflicts),
            renamed=restoring.renamed,
        )


@dataclass(slots=True)
class _Restoring:
    """One undo of a turn, in three steps; cells are identified by id."""

    _document: NotebookDocument
    _before: Mapping[str, CellJson]
    _after: Mapping[str, CellJson]
    _now: Mapping[str, Cell]
    _force: bool
    done: list[str] = field(default_factory=list)
    conflicts: list[str] = field(default_factory=list)
    renamed: dict[str, str] = field(default_factory=dict)

    async def remove_inserted(self) -> None:
        """Delete the cells that the turn inserted, unless they have since been edited."""
        for cell_id, left in self._after.items():
            now = self._now.get(cell_id)
            if cell_id in self._before or now is None:
                continue
            if now.source != left["source"] and not self._force:
                self._conflict(left, "is new and has been changed since, so it stays")
                continue
            await self._try(left, "removed", self._document.delete(cell_id, seen=now.hash))

    async def rewrite_edited(self) -> None:
        """Restore the source and outputs of cells that the turn changed."""
        for cell_id, was in self._before.items():
            left, now = self._after.get(cell_id), self._now.get(cell_id)
            if left is None:
                continue
            if was["source"] == left["source"] and _outputs(was) == _outputs(left):
                continue
            if now is None:
                self._conflict(was, "has been deleted since")
            elif await self._rewrite_source(was, left, now):
                await self._rewrite_outputs(was, left, now)

    async def _rewrite_source(self, was: CellJson, left: CellJson, now: Cell) -> bool:
        if was["source"] in (now.source, left["source"]):  # already restored, or not changed
            return True
        if now.source != left["source"] and not self._force:
            self._conflict(was, "has been changed since and was not restored")
            return False
        change = self._document.replace(now.id, was["source"], seen=now.hash)
        return await self._try(was, "restored", change)

    async def _rewrite_outputs(self, was: CellJson, left: CellJson, now: Cell) -> None:
        old, new, present = (_outputs(each) for each in (was, left, cell_json(now)))
        if old is None and new is not None:
            self.done.append(
                f"{self._named(was)} keeps its outputs: the old ones were too large to save"
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
        """Reinsert deleted cells and move others back, each below its original neighbour."""
        moved = _moved(self._before, self._after)
        anchor: str | None = None
        for cell_id, was in self._before.items():
            if cell_id in self._now:
                if cell_id in moved and not await self._move(was, anchor):
                    continue  # it stays at its new position, so nothing goes below it
                anchor = cell_id
            elif cell_id not in self._after:
                anchor = await self._insert(was, anchor) or anchor

    async def _move(self, was: CellJson, anchor: str | None) -> bool:
        """Move a cell back; return whether it is now at its old position."""
        cell_id = str(was["id"])
        present = _neighbour(cell_id, self._now, self._after)
        if present != _neighbour(cell_id, self._after, self._now) and not self._force:
            if present != _neighbour(cell_id, self._before, self._now):
                self._conflict(was, "has been moved since, so it stays where it is")
                return False
            return True
        return await self._try(was, "moved back", self._document.move(cell_id, after=anchor))

    async def _insert(self, was: CellJson, anchor: str | None) -> str | None:
        """Insert a deleted cell and return its new id; None if that failed."""
        index = 0 if anchor is None else None
        facts = {"type": was["type"], "metadata": was["metadata"]}
        try:
            cell = await self._document.insert(was["source"], after=anchor, index=index, **facts)
        except ToolError as error:
            self._conflict(was, f"could not be brought back: {one_line(str(error), 200)}")
            return None
        self.renamed[str(was["id"])] = cell.id
        self.done.append(f"{self._named(was)} brought back")
        if was["type"] == "code" and was["outputs"] is None:
            self.done.append(
                f"{self._named(was)} has lost its outputs, which were too large to save"
            )
        elif was["type"] == "code" and (was["outputs"] or was.get("execution_count")):
            change = self._document.set_outputs(
                cell.id, was["outputs"], execution_count=was.get("execution_count")
            )
            await self._try(was, "", change)
        return cell.id

    async def _try(self, cell: CellJson, text: str, change: Awaitable[object]) -> bool:
        """Make a change and record it; a change that is refused becomes a conflict."""
        try:
            await change
        except ToolError as error:
            self._conflict(cell, f"could not be restored: {one_line(str(error), 200)}")
            return False
        if text:
            self.done.append(f"{self._named(cell)} {text}")
        return True

    def _named(self, cell: CellJson) -> str:
        """Return a user-facing name for a cell; its position is the one before the turn, if any."""
        order = list(self._before if cell["id"] in self._before else self._after)
        source = str(cell["source"]).strip()
        gist = f" “{one_line(source.splitlines()[0], 40)}”" if source else ""
        return f"{called(cell.get('execution_count'), order.index(str(cell['id'])) + 1)}{gist}"

    def _conflict(self, cell: CellJson, text: str) -> None:
        self.conflicts.append(f"{self._named(cell)} {text}")


def _outputs(cell: CellJson) -> str | None:
    return None if cell["outputs"] is None else canonical_json(cell["outputs"])


def _neighbour(cell_id: str, order: Iterable[str], known: Mapping[str, object]) -> str | None:
    above = list(takewhile(cell_id.__ne__, order))
    return next((each for each in reversed(above) if each in known), None)


def _moved(before: Mapping[str, object], after: Mapping[str, object]) -> set[str]:
    """Return the smallest set of cells that must have been moved to produce the new order.

    The other cells are a longest subsequence that kept its order.
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
