"""Undoes a turn's changes to files and cells, and reports the result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import takewhile
from pathlib import Path
from typing import Protocol

from hermes_nb.agent.undo.cells import Cells, load_cells
from hermes_nb.agent.undo.changes import Change, cell_changes, file_change, shown_path
from hermes_nb.agent.undo.files import NotRestored, put_back
from hermes_nb.agent.undo.records import (
    CellsItem,
    FileItem,
    FileState,
    SessionIndex,
    TurnRecord,
    TurnState,
)
from hermes_nb.agent.undo.store import CheckpointStore, SavedCopyLost
from hermes_nb.core.errors import HermesError
from hermes_nb.core.threads import in_thread


class NothingToUndo(HermesError):
    """There is no such turn; the message lists those that can be undone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsRestored:
    """The result of restoring a notebook's cells."""

    done: tuple[str, ...] = ()
    """Messages about restored cells."""
    conflicts: tuple[str, ...] = ()
    """Messages about cells that were not restored."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """New ids of reinserted cells, by their old ids."""


@dataclass(frozen=True, slots=True)
class UndoLine:
    """The effect of an undo on one file, notebook or variable."""

    name: str
    """A file's path, a notebook's key or a variable's name."""
    text: str
    """The effect, as a phrase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VariablesRestored:
    """The result of restoring variables."""

    done: tuple[UndoLine, ...] = ()
    """The restored variables."""
    conflicts: tuple[UndoLine, ...] = ()
    """Variables that were not restored, and why."""
    notes: tuple[str, ...] = ()
    """Messages about variables that could not be saved."""


class Restorer(Protocol):
    """Restores a notebook's cells and a kernel's variables."""

    async def restore_cells(
        self, document: str, before: Cells, after: Cells, *, force: bool = False
    ) -> CellsRestored:
        """Change a notebook from its state after a turn to its state before it.

        Args:
            document: the notebook's key
            before: the cells before the turn
            after: the cells after the turn
            force: also restore cells changed since the turn; otherwise they are conflicts

        Raises:
            HermesError: the notebook cannot be accessed
        """
        ...

    def restore_variables(
        self, session: str, turn: int, *, force: bool = False, redo: bool = False
    ) -> VariablesRestored:
        """Restore the variables that a turn, or with `redo` its undo, changed.

        `force` overwrites later changes too.
        """
        ...


Sheets = tuple[Cells, Cells] | SavedCopyLost
"""A notebook's cells before and after a turn, or the reason they are missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoReport:
    """The result of an undo."""

    turn: int
    """The turn's number."""
    when: float
    """When the turn started, in seconds since the epoch."""
    done: tuple[UndoLine, ...] = ()
    """The restored files, cells and variables."""
    conflicts: tuple[UndoLine, ...] = ()
    """Files, cells and variables that were not restored, and why."""
    notes: tuple[str, ...] = ()
    """Messages about effects that cannot be undone."""


class Undoer:
    """Undoes turns, using the data in `store`; `file_bytes` is the maximum size of a saved file."""

    def __init__(self, store: CheckpointStore, file_bytes: int) -> None:
        self._store = store
        self._file_bytes = file_bytes

    def latest(self, session: str) -> int:
        """Return the number of the session's last recorded turn, or 0 for none."""
        with self._index(session) as index:
            return index.turns[-1].turn if index.turns else 0

    def newest(self, session: str) -> float:
        """Return the start time of the session's last turn that is not undone; 0 if none."""
        with self._index(session) as index:
            return max((each.when for each in index.turns if each.state != "undone"), default=0.0)

    def since(self, session: str, moment: float) -> list[int]:
        """Return the turns since a point in time that are not undone, latest first, each once."""
        with self._index(session) as index:
            found = [each for each in index.turns if each.when >= moment and each.state != "undone"]
        return list(dict.fromkeys(each.turn for each in reversed(found)))

    async def undo(
        self,
        session: str,
        turn: int | None,
        *,
        restorer: Restorer | None,
        force: bool,
        redo: bool = False,
    ) -> UndoReport:
        """Undo a turn, or with `redo` its undo: first its files, then its cells, then variables."""
        how = {"force": force, "redo": redo}
        record, report, cells = await in_thread(self._undo_files, session, turn, **how)
        done, conflicts = list(report.done), list(report.conflicts)
        for name, sheets in cells.items():
            result = await _restored(name, sheets, restorer, force=force)
            done += [UndoLine(name, text) for text in result.done]
            conflicts += [UndoLine(name, text) for text in result.conflicts]
            await in_thread(self._note_cells, session, record, name, result, redo=redo)
        notes = report.notes
        if restorer is not None:
            variables = restorer.restore_variables(session, report.turn, **how)
            done += variables.done
            conflicts += variables.conflicts
            notes += variables.notes
            if variables.conflicts:
                await in_thread(self._leave_open, session, record)
        return replace(report, done=tuple(done), conflicts=tuple(conflicts), notes=notes)

    def changes(self, session: str, turn: int | None, *, root: Path | None) -> list[Change]:
        """Return a turn's changes, files first."""
        with self._index(session) as index:
            record = _find(index, turn, ("", "partly", "undone"))
            found = [self._file_change(path, item, root) for path, item in record.files.items()]
            for document, item in record.cells.items():
                name = shown_path(document, root)
                sheets = self._sheets(index, item)
                if isinstance(sheets, SavedCopyLost):
                    found.append(Change(name=name, kind="edited", note=str(sheets)))
                else:
                    found += cell_changes(name, *sheets)
        return [change for change in found if change is not None]

    def _undo_files(
        self, session: str, turn: int | None, *, force: bool, redo: bool
    ) -> tuple[int, UndoReport, dict[str, Sheets]]:
        """Restore files; return the record's number, a report, and the cells to restore.

        The cells are those before and after the turn; with `redo`, the two are exchanged.
        """
        done: list[UndoLine] = []
        conflicts: list[UndoLine] = []
        with self._index(session) as index:
            if redo:
                record = _find_undone(index, turn)
            else:
                record = _find(index, turn, ("", "partly") if force or turn is not None else ("",))
            for path, item in record.files.items():
                if item.undone is not redo:
                    continue  # an earlier attempt that ended with conflicts has done this one
                try:
                    meant = _reversed(item) if redo else item
                    text = put_back(
                        Path(path), meant, self._store.get, limit=self._file_bytes, force=force
                    )
                except (NotRestored, SavedCopyLost) as error:
                    conflicts.append(UndoLine(path, str(error)))
                    continue
                record.files[path] = replace(item, undone=not redo)
                if text:
                    done.append(UndoLine(path, text))
            record.state = _state(record, redo=redo)
            # Saved now, because restoring the cells happens later and can fail.
            self._store.save(session, index)
            cells = {
                name: self._sheets(index, item, redo=redo)
                for name, item in record.cells.items()
                if redo or not item.undone
            }
        report = UndoReport(
            turn=record.turn,
            when=record.when,
            done=tuple(done),
            conflicts=tuple(conflicts),
            notes=() if redo else tuple(record.notes),
        )
        return record.number, report, cells

    def _note_cells(
        self, session: str, number: int, name: str, result: CellsRestored, *, redo: bool
    ) -> None:
        """Record the result for a notebook's cells."""
        with self._index(session) as index:
            if record := index.record(number):
                undone = bool(result.conflicts) is redo
                record.cells[name] = replace(record.cells[name], undone=undone)
                record.state = _state(record, redo=redo)
                index.renamed.update(result.renamed)
                self._store.save(session, index)

    def _leave_open(self, session: str, number: int) -> None:
        """Record that a part of a turn is not undone, so that it can be forced."""
        with self._index(session) as index:
            if record := index.record(number):
                record.state = "partly"
                self._store.save(session, index)

    def _sheets(self, index: SessionIndex, item: CellsItem, *, redo: bool = False) -> Sheets:
        """Load the cells before and after a turn, with their current ids; with `redo`, exchanged.

        If they are lost, the error is returned.
        """
        try:
            before, after = (
                [
                    {**cell, "id": index.renamed_to(str(cell["id"]))}
                    for cell in load_cells(sheet, self._store.get)
                ]
                for sheet in (item.before, item.after)
            )
        except SavedCopyLost as error:
            return error
        return (after, before) if redo else (before, after)

    def _file_change(self, path: str, item: FileItem, root: Path | None) -> Change | None:
        name = shown_path(path, root)
        if item.after is None:
            note = "its state after the turn is unknown"
            return Change(name=name, kind="edited", note=note)
        try:
            contents = [self._content(state) for state in (item.before, item.after)]
        except (SavedCopyLost, NotRestored) as error:
            changed = Change(name=name, kind="edited", note=f"changed; {error}")
            return None if item.before.same(item.after) else changed
        return file_change(name, *contents)

    def _content(self, state: FileState) -> bytes | None:
        if state.kind == "absent":
            return None
        if not state.saved:
            raise NotRestored(f"its content was not saved: {state.why}")
        return self._store.get(state.digest)

    @contextmanager
    def _index(self, session: str) -> Iterator[SessionIndex]:
        try:
            with self._store.lock():
                yield self._store.load(session)
        except OSError as error:
            message = f"the checkpoints cannot be used: {error.strerror or error}"
            raise HermesError(message) from error


async def _restored(
    document: str, sheets: Sheets, restorer: Restorer | None, *, force: bool
) -> CellsRestored:
    """Restore one notebook's cells."""
    if restorer is None:
        return CellsRestored(conflicts=("its cells can only be restored in a notebook",))
    if isinstance(sheets, SavedCopyLost):
        return CellsRestored(conflicts=(str(sheets),))
    before, after = sheets
    try:
        if before != after:
            return await restorer.restore_cells(document, before, after, force=force)
    except HermesError as error:
        return CellsRestored(conflicts=(str(error),))
    return CellsRestored()


def _state(record: TurnRecord, *, redo: bool) -> TurnState:
    undone = [item.undone for item in record.files.values()]
    undone += [item.undone for item in record.cells.values()]
    if redo:
        return "partly" if any(undone) else ""
    return "undone" if all(undone) else "partly"


def _reversed(item: FileItem) -> FileItem:
    """Return the item with its two states exchanged: undoing that redoes the change."""
    unknown = FileState(kind="odd", why="its state after the turn is unknown")
    return replace(item, before=item.after or unknown, after=item.before)


def _find_undone(index: SessionIndex, turn: int | None) -> TurnRecord:
    """Return the turn to redo: by default, the first of the undone turns at the end."""
    if turn is None:
        last = list(takewhile(lambda each: each.state, reversed(index.turns)))
        others = [each for each in index.turns if each.state]
        found = [*reversed(last), *reversed(others)]
    else:
        found = [each for each in reversed(index.turns) if each.turn == turn and each.state]
    if not found:
        raise NothingToUndo("no turn is undone" if turn is None else f"turn {turn} is not undone")
    return found[0]


def _find(index: SessionIndex, turn: int | None, states: Sequence[str]) -> TurnRecord:
    """Return the last record in one of these states, considering only `turn` if given."""
    if not index.turns:
        raise NothingToUndo("no turn of this session has changed a file or a cell")
    wanted = [each for each in index.turns if turn in (None, each.turn)]
    found = next((each for each in reversed(wanted) if each.state in states), None)
    if found is not None:
        return found
    if wanted:
        which = "every turn" if turn is None else f"turn {turn}"
        message = f"{which} that changed something is already undone"
        raise NothingToUndo(message if turn is None else f"turn {turn} is already undone")
    known = ", ".join(dict.fromkeys(str(each.turn) for each in index.turns))
    message = f"there is no turn {turn} that has changed a file or a cell; such turns: {known}"
    raise NothingToUndo(message)
