"""Taking back what a turn did, and showing it: the reading side of the checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from hermes_nb.app.checkpoints.cells import Cells, load_cells
from hermes_nb.app.checkpoints.diff import cells_diff, file_diff, shown_path
from hermes_nb.app.checkpoints.files import NotRestored, put_back
from hermes_nb.app.checkpoints.records import FileItem, FileState, Index, TurnRecord
from hermes_nb.app.checkpoints.store import CheckpointStore, SavedCopyLost
from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import HermesError


class NothingToUndo(HermesError):  # noqa: N818 - named for the state
    """There is no such turn; the text says which there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CellsRestored:
    """What became of a notebook's cells: lines for the user, and cells that got a new id."""

    done: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    renamed: Mapping[str, str] = field(default_factory=dict)


class Restorer(Protocol):
    """Puts cells back into a notebook."""

    async def restore_cells(
        self, document: str, before: Cells, after: Cells, *, force: bool = False
    ) -> CellsRestored:
        """Turn a notebook from `after`, what the turn left, to `before`.

        What somebody changed since stays and is a conflict, unless `force`. Raises `HermesError`
        when the notebook cannot be reached.
        """
        ...


@dataclass(frozen=True, slots=True)
class Line:
    """What happened to one item: a file's path or a notebook's key, and a phrase."""

    name: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoReport:
    """What an undo did; `notes` say what the turn did that no undo takes back."""

    turn: int
    when: float
    done: tuple[Line, ...] = ()
    conflicts: tuple[Line, ...] = ()
    notes: tuple[str, ...] = ()


class Undoer:
    """Reads what was saved; `file_bytes` is the size up to which files are."""

    def __init__(self, store: CheckpointStore, file_bytes: int) -> None:
        self._store = store
        self._file_bytes = file_bytes

    def latest(self, session: str) -> int:
        """Return the number of the session's last turn with a record, 0 without one."""
        with self._locked():
            turns = self._store.load(session).turns
        return turns[-1].turn if turns else 0

    async def undo(
        self, session: str, turn: int | None, *, restorer: Restorer | None, force: bool
    ) -> UndoReport:
        """Undo a turn: first its files, then its cells."""
        number: int
        report: UndoReport
        number, report = await in_thread(lambda: self._undo_files(session, turn, force=force))
        done, conflicts = list(report.done), list(report.conflicts)
        for name in await in_thread(lambda: self._open_documents(session, number)):
            result = await self._restore(session, number, name, restorer, force=force)
            done += [Line(name, text) for text in result.done]
            conflicts += [Line(name, text) for text in result.conflicts]
        await in_thread(lambda: self._close(session, number))
        return replace(report, done=tuple(done), conflicts=tuple(conflicts))

    def diff(self, session: str, turn: int | None, *, root: Path | None) -> str:
        """Return what a turn changed as a unified diff."""
        with self._locked():
            index = self._store.load(session)
            record = _find(index, turn, ("", "partly", "undone"))
            parts = [self._file_diff(path, item, root) for path, item in record.files.items()]
            for document, cells in record.cells.items():
                name = shown_path(document, root)
                try:
                    before, after = (self._cells(index, x) for x in (cells.before, cells.after))
                except SavedCopyLost as error:
                    parts.append(f"{name}: {error}")
                else:
                    parts.append(cells_diff(name, before, after))
        return "\n".join(part for part in parts if part)

    def _undo_files(self, session: str, turn: int | None, *, force: bool) -> tuple[int, UndoReport]:
        """Put the files back; return the record's number and what was done."""
        done: list[Line] = []
        conflicts: list[Line] = []
        with self._locked():
            index = self._store.load(session)
            states = ("", "partly") if force or turn is not None else ("",)
            record = _find(index, turn, states)
            record.state = "partly"
            for path, item in record.files.items():
                if item.undone:
                    continue
                try:
                    text = put_back(
                        Path(path), item, self._store.get, limit=self._file_bytes, force=force
                    )
                except (NotRestored, SavedCopyLost) as error:
                    conflicts.append(Line(path, str(error)))
                    continue
                record.files[path] = replace(item, undone=True)
                if text:
                    done.append(Line(path, text))
            self._store.save(session, index)
        report = UndoReport(
            turn=record.turn,
            when=record.when,
            done=tuple(done),
            conflicts=tuple(conflicts),
            notes=tuple(record.notes),
        )
        return record.number, report

    def _open_documents(self, session: str, number: int) -> list[str]:
        with self._locked():
            record = self._store.load(session).record(number)
        return [name for name, item in record.cells.items() if not item.undone] if record else []

    async def _restore(
        self, session: str, number: int, document: str, restorer: Restorer | None, *, force: bool
    ) -> CellsRestored:
        """Put one notebook's cells back, and remember that it is done."""
        if restorer is None:
            return CellsRestored(conflicts=("its cells can only be restored in a notebook",))
        try:
            before, after = await in_thread(lambda: self._load(session, number, document))
            if before == after:
                result = CellsRestored()
            else:
                result = await restorer.restore_cells(document, before, after, force=force)
        except HermesError as error:
            return CellsRestored(conflicts=(str(error),))
        await in_thread(lambda: self._cells_done(session, number, document, result))
        return result

    def _load(self, session: str, number: int, document: str) -> tuple[Cells, Cells]:
        with self._locked():
            index = self._store.load(session)
            record = index.record(number)
            item = record.cells.get(document) if record else None
            if item is None:
                message = "its saved copy is gone"
                raise SavedCopyLost(message)
            return self._cells(index, item.before), self._cells(index, item.after)

    def _cells_done(self, session: str, number: int, document: str, result: CellsRestored) -> None:
        with self._locked():
            index = self._store.load(session)
            if record := index.record(number):
                item = record.cells[document]
                record.cells[document] = replace(item, undone=not result.conflicts)
                index.renamed.update(result.renamed)
                self._store.save(session, index)

    def _close(self, session: str, number: int) -> None:
        """Mark the turn as undone when all of it is."""
        with self._locked():
            index = self._store.load(session)
            record = index.record(number)
            if record is None:
                return
            undone = [item.undone for item in record.files.values()]
            undone += [item.undone for item in record.cells.values()]
            record.state = "undone" if all(undone) else "partly"
            self._store.save(session, index)

    def _cells(self, index: Index, sheet: str) -> list[dict[str, Any]]:
        """Return saved cells, under the ids that they have now."""
        cells = load_cells(sheet, self._store.get)
        return [{**cell, "id": index.renamed_to(str(cell["id"]))} for cell in cells]

    def _file_diff(self, path: str, item: FileItem, root: Path | None) -> str:
        name = shown_path(path, root)
        if item.after is None:
            return f"{name}: what became of it is not known"
        try:
            contents = [self._content(state) for state in (item.before, item.after)]
        except (SavedCopyLost, NotRestored) as error:
            return "" if item.before.same(item.after) else f"{name}: changed; {error}"
        return file_diff(name, *contents)

    def _content(self, state: FileState) -> bytes | None:
        if state.kind == "absent":
            return None
        if not state.saved:
            message = f"its content was not saved: {state.why}"
            raise NotRestored(message)
        return self._store.get(state.digest)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            with self._store.lock():
                yield
        except OSError as error:
            message = f"the checkpoints cannot be used: {error.strerror or error}"
            raise HermesError(message) from error


def _find(index: Index, turn: int | None, states: Sequence[str]) -> TurnRecord:
    """Return the last record in one of these states, of a turn if one is given."""
    if not index.turns:
        message = "no turn of this session has changed a file or a cell"
        raise NothingToUndo(message)
    wanted = [each for each in index.turns if turn in (None, each.turn)]
    found = next((each for each in reversed(wanted) if each.state in states), None)
    if found is not None:
        return found
    if wanted:
        which = "every turn" if turn is None else f"turn {turn}"
        message = f"{which} that changed something is undone already"
        raise NothingToUndo(message if turn is None else f"turn {turn} is undone already")
    known = ", ".join(str(number) for number in dict.fromkeys(each.turn for each in index.turns))
    message = f"there is no turn {turn} that has changed a file or a cell; such turns: {known}"
    raise NothingToUndo(message)
