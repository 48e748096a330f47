"""A notebook that no front end has open, edited in its file.

Every edit holds a lock, reads the file again, checks that the cell is what the caller saw, and
replaces the file in one step; what was there before is kept. Whatever goes wrong, the file is the
old one or the new one.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar, cast

from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ToolError
from hermes_nb.core.files import locked, write_atomic
from hermes_nb.core.text import one_line
from hermes_nb.notebook.cells.document import Cell, CellType, source_hash
from hermes_nb.notebook.cells.finding import conflict, no_such_cell
from hermes_nb.notebook.cells.ipynb import Notebook, NotebookCell, Stored, read_notebook
from hermes_nb.notebook.cells.upgrading import source_of
from hermes_nb.notebook.values.mime import json_ready
from hermes_nb.tools.textfile import open_regular
from hermes_nb.tools.workspace import Workspace

LOCK_SECONDS = 10.0
"""How long an edit waits for another process's."""
CHECKED = 32_000_000
"""Bytes of a notebook that is validated with its outputs; of a larger one only the rest is, since
validation needs all of it in memory."""
_TYPES = ("code", "markdown", "raw")

_T = TypeVar("_T")


class FileDocument:
    """A closed notebook's file.

    `keep` is a directory for the version before the last edit (one of each notebook) and for the
    lock; without it nothing is kept and the lock lies beside the notebook. All the work is done in
    threads; one process's edits and other processes' exclude each other by the lock.
    """

    def __init__(self, path: Path, *, keep: Path | None = None) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - links stay
        self.keep = keep

    @property
    def way(self) -> str:
        """How it is reached."""
        return f"the file {self.path.name}"

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        """Return all the cells; reading outputs that were not asked for costs no memory."""
        return cast("list[Cell]", await in_thread(lambda: self._cells(outputs=outputs)))

    async def sketch(self) -> list[Cell]:
        """Return the cells, of whose outputs only the kinds are kept: values are empty."""
        return cast("list[Cell]", await in_thread(self._sketch))

    async def get(self, cell_id: str) -> Cell:
        """Return a cell with its outputs, of very large ones the beginnings."""

        def get() -> Cell:
            with self._opened() as notebook:
                return self._seen(notebook, self._index(notebook, cell_id), outputs=True)

        return cast("Cell", await in_thread(get))

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

        def change(notebook: Notebook) -> Cell:
            where = len(notebook.cells)
            if after is not None:
                where = self._index(notebook, after) + 1
            elif index is not None:
                where = max(0, min(index, where))
            used = {cell["id"] for cell in notebook.cells}
            notebook.cells.insert(where, new_cell(source, type, metadata or {}, used))
            return self._seen(notebook, where)

        return cast("Cell", await self._edit(change))

    async def replace(self, cell_id: str, source: str, *, seen: str) -> Cell:
        """Replace a cell's source; its outputs stay, as they do in a front end."""

        def change(notebook: Notebook) -> Cell:
            index = self._unchanged(notebook, cell_id, seen)
            notebook.cells[index]["source"] = source.splitlines(keepends=True)
            return self._seen(notebook, index)

        return cast("Cell", await self._edit(change))

    async def delete(self, cell_id: str, *, seen: str) -> None:
        """Remove a cell."""

        def change(notebook: Notebook) -> None:
            del notebook.cells[self._unchanged(notebook, cell_id, seen)]

        await self._edit(change)

    async def move(self, cell_id: str, *, after: str | None) -> Cell:
        """Move a cell behind another one, or to the top."""

        def change(notebook: Notebook) -> Cell:
            index = self._index(notebook, cell_id)
            if after == cell_id:
                return self._seen(notebook, index)
            if after is not None:
                self._index(notebook, after)
            cell = notebook.cells.pop(index)
            where = 0 if after is None else self._index(notebook, after) + 1
            notebook.cells.insert(where, cell)
            return self._seen(notebook, where)

        return cast("Cell", await self._edit(change))

    async def set_outputs(
        self,
        cell_id: str,
        outputs: Sequence[Mapping[str, Any]],
        *,
        execution_count: int | None = None,
    ) -> Cell:
        """Write a code cell's outputs."""

        def change(notebook: Notebook) -> Cell:
            index = self._index(notebook, cell_id)
            cell = notebook.cells[index]
            if cell["cell_type"] != "code":
                message = f"cell {cell_id!r} is a {cell['cell_type']} cell; it has no outputs"
                raise ToolError(message)
            cell["outputs"] = on_disk(outputs)
            cell["execution_count"] = execution_count
            return self._seen(notebook, index, outputs=True)

        return cast("Cell", await self._edit(change))

    async def save(self) -> None:
        """Do nothing: every edit is in the file when it returns."""

    def _cells(self, *, outputs: bool) -> list[Cell]:
        with self._opened() as notebook:
            count = range(len(notebook.cells))
            return [self._seen(notebook, index, outputs=outputs) for index in count]

    def _sketch(self) -> list[Cell]:
        with self._opened() as notebook:
            return [self._seen(notebook, index, brief=True) for index in range(len(notebook.cells))]

    async def _edit(self, change: Callable[[Notebook], _T]) -> _T:
        """Apply a change to the file as it is now; raise ToolError and leave it alone if not."""
        return cast("_T", await in_thread(lambda: self._edit_now(change)))

    def _edit_now(self, change: Callable[[Notebook], _T]) -> _T:
        space = Workspace(root=self.path.parent)
        with space.explained(self.path):
            if self.path.exists() and not os.access(self.path, os.W_OK):
                message = f"{self.path.name!r} is write-protected; ask the user"
                raise ToolError(message)
            with locked(self._lock_path(), LOCK_SECONDS):
                before = _version(self.path)
                with self._opened(whole=True) as notebook:
                    result = change(notebook)
                    new = notebook.encode()
                    if not is_valid(notebook, new) and self._was_valid():
                        message = "the change would make the notebook invalid; nothing was written"
                        raise ToolError(message)
                    self._keep_previous(notebook)
                # Not everybody knows the lock: the user's own program, git.
                if _version(self.path) != before:
                    message = (
                        f"{self.path.name!r} has just been changed by something else; try again"
                    )
                    raise ToolError(message)
                write_atomic(self.path, new)
        return result

    def _was_valid(self) -> bool:
        """Say whether the file follows the schema as it is; if not, that is no reason to refuse."""
        with self._opened(whole=True) as notebook:
            return is_valid(notebook, notebook.encode())

    @contextmanager
    def _opened(self, *, whole: bool = False) -> Iterator[Notebook]:
        space = Workspace(root=self.path.parent)
        with space.explained(self.path), open_regular(self.path) as file:
            yield read_notebook(file, self.path.name, whole=whole)

    def _index(self, notebook: Notebook, cell_id: str) -> int:
        for index, cell in enumerate(notebook.cells):
            if cell["id"] == cell_id:
                return index
        count = range(len(notebook.cells))
        raise no_such_cell(cell_id, [self._seen(notebook, each) for each in count])

    def _unchanged(self, notebook: Notebook, cell_id: str, seen: str) -> int:
        """Return a cell's index; raise CellConflict unless its source is what the caller saw."""
        index = self._index(notebook, cell_id)
        cell = self._seen(notebook, index)
        if cell.hash != seen:
            raise conflict(cell)
        return index

    @staticmethod
    def _seen(
        notebook: Notebook, index: int, *, outputs: bool = False, brief: bool = False
    ) -> Cell:
        """Return a cell as callers see it."""
        cell = notebook.cells[index]
        source = source_of(cell)
        kind = cell["cell_type"]
        stored = cell.get("outputs", [])
        shown: Sequence[Mapping[str, Any]] | None = None
        if outputs:
            shown = notebook.outputs(cell)
        elif brief:
            shown = stored.briefs if isinstance(stored, Stored) else stored
        return Cell(
            index=index,
            id=cell["id"],
            type=cast("CellType", kind if kind in _TYPES else "raw"),
            source=source,
            hash=source_hash(source),
            execution_count=cell.get("execution_count"),
            output_count=stored.count if isinstance(stored, Stored) else len(stored),
            outputs=shown,
            metadata=cell["metadata"],
        )

    def _lock_path(self) -> Path:
        if self.keep is not None:
            with suppress(OSError):  # a home that cannot be written must not stop the edit
                _make_private(self.keep)
                if os.access(self.keep, os.W_OK):
                    return self.keep / self._kept_name()
        return Path(os.path.realpath(self.path))

    def _keep_previous(self, notebook: Notebook) -> None:
        """Keep the file's bytes; where that cannot be done, the edit is still worth making."""
        if self.keep is not None:
            with suppress(OSError):
                data = notebook.scanner.everything()
                write_atomic(self.keep / self._kept_name(), data, mode=0o600)

    def _kept_name(self) -> str:
        real = os.path.realpath(self.path)
        mark = hashlib.sha256(os.fsencode(real)).hexdigest()[:10]
        return f"{Path(real).stem[:40]}-{mark}.ipynb"


def _version(path: Path) -> tuple[int, int, int]:
    """Return what changes when a file does."""
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _make_private(directory: Path) -> None:
    """Make a directory and those above it, for their owner only."""
    for each in (*reversed(directory.parents), directory):
        each.mkdir(mode=0o700, exist_ok=True)


def new_cell(
    source: str, kind: CellType, metadata: Mapping[str, Any], used: Collection[str]
) -> NotebookCell:
    """Return a cell, its keys in nbformat's order, with an id that is not among the `used`."""
    name = secrets.token_hex(4)
    while name in used:
        name = secrets.token_hex(4)
    cell: NotebookCell = {"cell_type": kind}
    if kind == "code":
        cell["execution_count"] = None
    cell |= {"id": name, "metadata": json_ready(metadata)}
    if kind == "code":
        cell["outputs"] = []
    return cell | {"source": source.splitlines(keepends=True)}


def on_disk(outputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return outputs as nbformat writes them, longer texts as lists of lines."""
    import nbformat
    from nbformat.v4.rwbase import split_lines

    try:
        plain = json.loads(json.dumps(list(outputs)))
        cell = {"cell_type": "code", "source": "", "outputs": plain}
        lines = split_lines(nbformat.from_dict({"cells": [cell]}))
        nbformat.validate(
            {**cell, "id": "x", "metadata": {}, "execution_count": None}, ref="code_cell", version=4
        )
    except (TypeError, ValueError, AttributeError, nbformat.ValidationError) as error:
        message = f"these are not outputs of a notebook: {one_line(str(error), 200)}"
        raise ToolError(message) from error
    return [dict(output) for output in lines["cells"][0]["outputs"]]


def is_valid(notebook: Notebook, data: bytes) -> bool:
    """Say whether a notebook follows the schema, its outputs included unless they are too many."""
    import nbformat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if len(data) <= CHECKED:
                document = json.loads(data)
            else:
                cells = [
                    {**cell, "outputs": []} if "outputs" in cell else cell
                    for cell in notebook.cells
                ]
                document = {**notebook.document, "cells": cells}
            nbformat.validate(document)
        except (ValueError, nbformat.ValidationError):  # numbers too long for Python, too
            return False
    return True
