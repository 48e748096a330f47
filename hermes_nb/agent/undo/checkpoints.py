"""Saves files and cells that a turn changes, so that the changes can be undone.

Each file and notebook is saved once, before the turn changes it for the first time. After each
change, its new state is recorded, so that undo can distinguish the turn's changes from later ones,
which it overwrites only if forced. If something else changed a file during a turn, undo restores
that version. If saving fails, the tool still runs, and undo reports what could not be saved.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from weakref import WeakValueDictionary

from hermes_nb.agent.undo.cells import Cells, NoRoom, keep_cells
from hermes_nb.agent.undo.changes import Change
from hermes_nb.agent.undo.files import missing_folders, read_state
from hermes_nb.agent.undo.records import CellsItem, FileItem, FileState
from hermes_nb.agent.undo.store import CheckpointStore, OpenTurn
from hermes_nb.agent.undo.undo import NothingToUndo, Restorer, Undoer, UndoReport
from hermes_nb.core.errors import ToolError
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.core.tools import Arguments, Risk, Tool, ToolContext, Toolset
from hermes_nb.safety.guard import Way
from hermes_nb.safety.permissions import SandboxProfile
from hermes_nb.tools.workspace import Workspace

__all__ = ["Checkpoints", "NothingToUndo", "UndoReport", "checkpointed"]

logger = logging.getLogger(__name__)

LIMIT_BYTES = 200_000_000
"""Default maximum size on disk for all sessions, compressed."""
FILE_BYTES = 20_000_000
"""Default maximum size of a saved file, and of a cell's saved outputs."""
KEEP_TURNS = 50
"""Default number of saved turns per session."""
FULL = "the space for checkpoints is full"
"""The reason reported if the size limit prevents saving."""


class Checkpoints:
    """The undo data for all sessions, in one folder; safe to share across threads and kernels.

    Args:
        folder: the folder, created on the first write
        limit_bytes: the maximum size on disk
        keep_turns: the number of saved turns per session
        file_bytes: the maximum size of a saved file, and of a cell's saved outputs
    """

    def __init__(
        self,
        folder: Path,
        *,
        limit_bytes: int = LIMIT_BYTES,
        keep_turns: int = KEEP_TURNS,
        file_bytes: int = FILE_BYTES,
    ) -> None:
        self._store = CheckpointStore(folder, limit=limit_bytes)
        self._keep_turns = keep_turns
        self._file_bytes = file_bytes
        # A session's turn number in this process, and the number of its record. A record from
        # another process is never continued, because its turn numbers may differ.
        self._open: dict[str, tuple[int, int]] = {}
        self._unsaved: dict[str, tuple[int, str]] = {}
        self._changing: WeakValueDictionary[Path, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def changing(self, paths: Iterable[Path]) -> AsyncIterator[None]:
        """Let one call change these files at a time: turns can run side by side."""
        async with AsyncExitStack() as held:
            for path in sorted(set(paths)):
                await held.enter_async_context(self._changing.setdefault(path, asyncio.Lock()))
            yield

    def forget(self, sessions: Iterable[str]) -> None:
        """Remove sessions' undo data; raise TimeoutError or OSError."""
        with self._store.lock():
            self._store.remove(sessions)

    def before(self, session: str, turn: int, paths: Sequence[Path]) -> None:
        """Save files before a call changes them; paths are absolute and without links."""

        def save(open_turn: OpenTurn) -> None:
            for path in paths:
                files = open_turn.record.files
                files[str(path)] = self._item(path, files.get(str(path)), open_turn)

        self._write(session, turn, save)

    def after(self, session: str, turn: int, paths: Sequence[Path]) -> None:
        """Record the files' states after a call."""

        def seal(open_turn: OpenTurn) -> None:
            files = open_turn.record.files
            for path in paths:
                if item := files.get(str(path)):
                    files[str(path)] = replace(item, after=self._state(path, open_turn))

        self._write(session, turn, seal)

    def save_cells(
        self, session: str, turn: int, document: str, before: Cells, after: Cells
    ) -> None:
        """Save a notebook's cells before and after a turn's changes.

        Call it before each change with the expected result, so that undo works even if the process
        is killed. Call it again afterwards if the result differs.

        Args:
            session: the session's id
            turn: the turn's number
            document: the notebook's key
            before: the cells before the turn
            after: the cells after the turn
        """

        def save(open_turn: OpenTurn) -> None:
            cells = open_turn.record.cells

            def put(data: bytes) -> str:
                return self._store.put(data, open_turn)

            try:
                (was, left), outputs = keep_cells((before, after), put, limit=self._file_bytes)
            except NoRoom:
                cells.pop(document, None)
                _add_note(open_turn, f"the cells of {Path(document).name} were not saved: {FULL}")
            else:
                cells[document] = CellsItem(before=was, after=left, outputs=outputs)

        self._write(session, turn, save)

    def note(self, session: str, turn: int, text: str) -> None:
        """Record an effect of a turn that cannot be undone."""
        self._write(session, turn, lambda open_turn: _add_note(open_turn, text))

    async def undo(
        self,
        session: str,
        turn: int | None = None,
        *,
        restorer: Restorer | None = None,
        force: bool = False,
        redo: bool = False,
    ) -> UndoReport:
        """Undo a turn's changes to files and cells, and report the result.

        Args:
            session: the session's id
            turn: the turn's number; by default, the last one not yet undone, and with `redo` the
                last one undone
            restorer: restores cells; without it, changes to cells are reported as conflicts
            force: overwrite changes made after the turn; this can also complete a partial undo
            redo: make the changes of an undone turn again

        Raises:
            NothingToUndo: there is no such turn
        """
        number, why = self._unsaved.get(session, (0, ""))
        undoer = Undoer(self._store, self._file_bytes)
        if redo:
            return await undoer.undo(session, turn, restorer=restorer, force=force, redo=True)
        if turn is None and number > undoer.latest(session):
            del self._unsaved[session]  # reported once; the next undo applies to the previous turn
            message = (
                f"turn {number} cannot be undone, because its checkpoint could not be saved: {why}"
            )
            raise NothingToUndo(message)
        report = await undoer.undo(session, turn, restorer=restorer, force=force)
        if report.turn == number:
            report = replace(
                report, notes=(*report.notes, f"some changes of this turn cannot be undone: {why}")
            )
        return report

    def newest(self, session: str) -> float:
        """Return the start time of the session's last turn that is not undone; 0 if none."""
        return Undoer(self._store, self._file_bytes).newest(session)

    def since(self, session: str, moment: float) -> list[int]:
        """Return the turns since a point in time whose changes are not undone, latest first."""
        return Undoer(self._store, self._file_bytes).since(session, moment)

    def latest(self, session: str) -> int:
        """Return the number of the session's last recorded turn, or 0 for none."""
        return Undoer(self._store, self._file_bytes).latest(session)

    def changes(
        self, session: str, turn: int | None = None, *, root: Path | None = None
    ) -> list[Change]:
        """Return a turn's changes; the default is the last turn.

        Paths inside `root` are relative to it. Raises `NothingToUndo`.
        """
        return Undoer(self._store, self._file_bytes).changes(session, turn, root=root)

    def has(self, session: str, turn: int) -> bool:
        """Return whether `turn` is the session's latest turn here for which anything was saved."""
        return self._open.get(session, (0, 0))[0] == turn

    def unsaved(self, session: str, turn: int) -> str:
        """Return the reason part of a turn was not saved, or "" if everything was saved."""
        number, why = self._unsaved.get(session, (0, ""))
        return why if number == turn else ""

    def _item(self, path: Path, known: FileItem | None, open_turn: OpenTurn) -> FileItem:
        """Return the item for a file that is about to be changed."""
        if known is not None and known.after is None:
            return known
        if known is not None and known.after is not None:
            if read_state(path, self._file_bytes)[0].same(known.after):
                return replace(known, after=None)
            text = "was changed by something else during the turn; undo goes back to that"
            _add_note(open_turn, f"{one_line(path.name)} {text}")
        folders = missing_folders(path) if known is None else known.folders
        return FileItem(before=self._state(path, open_turn), folders=folders)

    def _state(self, path: Path, open_turn: OpenTurn) -> FileState:
        """Return a file's state and save its content."""
        state, data = read_state(path, self._file_bytes)
        if state.kind != "file":
            return state
        saved = bool(self._store.put(data, open_turn))
        return replace(state, saved=saved, why="" if saved else FULL)

    def _write(self, session: str, turn: int, change: Callable[[OpenTurn], None]) -> None:
        """Change the turn's record; errors are recorded, and undo reports them."""
        try:
            with self._store.lock(create=True):
                open_turn = self._open_turn(session, turn)
                change(open_turn)
                self._store.save(session, open_turn.index)
        except OSError as error:  # full disk, read-only home, lock timeout
            logger.warning(
                "turn %d cannot be undone: its checkpoint could not be saved", turn, exc_info=True
            )
            self._unsaved[session] = (turn, error.strerror or str(error))

    def _open_turn(self, session: str, turn: int) -> OpenTurn:
        index = self._store.load(session)
        known, number = self._open.get(session, (0, 0))
        record = index.record(number) if known == turn else None
        if record is not None and not record.state:
            return OpenTurn(session, index, record)
        record = index.add(turn, time.time())
        del index.turns[: -self._keep_turns]
        open_turn = OpenTurn(session, index, record)
        self._store.save(session, index)
        self._store.sweep(open_turn)
        self._open[session] = (turn, record.number)
        return open_turn


def checkpointed(toolset: Toolset, checkpoints: Checkpoints, root: Path) -> Toolset:
    """Wrap tools so that the files in a call's arguments are saved before it changes them.

    This works for writing tools whose `paths` name their path arguments. For tools that run code, a
    note is recorded, because they may change anything. Files outside the tool's root (by default
    `root`) are not saved, which is also noted.
    """

    def noting(tool: Tool) -> Tool:
        here = tool.toolset in ("kernel", "notebook")  # where variables are restored
        what = "its effects outside of variables" if here else "its effects"
        text = f"{tool.name} ran code; {what} are not undone"

        async def run(context: ToolContext, arguments: Arguments) -> object:
            place = context.place
            if not _on_a_copy(context.permit):
                await in_thread(checkpoints.note, place.session, place.turn, text)
            return await tool.run(context, arguments)

        return replace(tool, run=run)

    def saving(tool: Tool) -> Tool:
        space = Workspace(root=tool.root or root)

        async def run(context: ToolContext, arguments: Arguments) -> object:
            turn = context.place.session, context.place.turn

            paths, outside = await in_thread(_paths, tool, space, arguments)
            async with checkpoints.changing(paths):
                await in_thread(checkpoints.before, *turn, paths)
                try:
                    result = await tool.run(context, arguments)
                finally:
                    await in_thread(checkpoints.after, *turn, paths)
            for path in outside:
                text = f"{path!r} is outside the working directory and was not saved for undo"
                await in_thread(checkpoints.note, *turn, text)
            return result

        return replace(tool, run=run)

    def keep(tool: Tool) -> Tool:
        if tool.risk is Risk.EXECUTE:
            return noting(tool)
        return saving(tool) if tool.risk is Risk.WRITE and tool.paths else tool

    return toolset.map(keep)


def _on_a_copy(way: object) -> bool:
    """Return whether a call can change nothing, because it runs in a sandbox on a copy."""
    return isinstance(way, Way) and way.copied and SandboxProfile.OUTSIDE not in way.profile


def _paths(tool: Tool, space: Workspace, arguments: Arguments) -> tuple[list[Path], list[str]]:
    """Return the files in a call's arguments, and the names of those outside the workspace.

    The latter are not saved. They are still passed to the tool, which usually refuses them.
    """
    inside: list[Path] = []
    outside: list[str] = []
    for name in tool.paths:
        given = arguments.get(name)
        for path in given if isinstance(given, list | tuple) else [given]:
            if not isinstance(path, str):
                continue
            try:
                inside.append(space.resolve(path, write=True))
            except ToolError:
                outside.append(path)
    return inside, outside


def _add_note(open_turn: OpenTurn, text: str) -> None:
    if text not in open_turn.record.notes:
        open_turn.record.notes.append(text)
