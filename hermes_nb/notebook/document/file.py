"""Edit a notebook's file while no front end has it open.

Every edit holds a lock, reads the file again, checks that the cell is in the state that the caller
saw, and replaces the file atomically. A backup of the previous version is saved. After any failure,
the file is either the old or the new version.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import warnings
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import cast

from hermes_nb.core.errors import ToolError
from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.core.json_values import clean
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.core.threads import in_thread
from hermes_nb.notebook.document.document import (
    Cell,
    CellType,
    Delete,
    Edit,
    Insert,
    Move,
    NotebookDocument,
    Output,
    Replace,
    SetOutputs,
    conflict,
    no_such_cell,
    source_hash,
)
from hermes_nb.notebook.document.ipynb import (
    Notebook,
    NotebookCell,
    Stored,
    read_notebook,
    source_of,
)
from hermes_nb.tools.workspace import Workspace, open_regular

LOCK_SECONDS = 10.0
"""Seconds that an edit waits for another process's edit."""
CHECKED = 32_000_000
"""Maximum size in bytes of a notebook that is validated with its outputs. Larger ones are validated
without them, because validation needs everything in memory."""
_TYPES = ("code", "markdown", "raw")
_INVALID = "the change would make the notebook invalid; nothing was written"


class FileDocument(NotebookDocument):
    """A closed notebook in its file.

    `keep` is a directory for the lock, and for one backup per notebook: its version before the last
    edit. Without it there is no backup, and the lock is next to the notebook. All work is done in
    threads. The lock excludes edits by other threads and processes.
    """

    def __init__(self, path: Path, *, keep: Path | None = None) -> None:
        self.path = Path(os.path.abspath(path))  # noqa: PTH100 - does not resolve links
        self.keep = keep
        self.way = f"the file {self.path.name}"

    async def cells(self, *, outputs: bool = False) -> list[Cell]:
        return await in_thread(self._cells, outputs=outputs)

    async def sketch(self) -> list[Cell]:
        """Return the cells with brief outputs, in which longer values are empty."""
        return await in_thread(self._cells, outputs=True, briefly=True)

    async def get(self, cell_id: str) -> Cell:
        def get() -> Cell:
            with self._opened() as notebook:
                return _seen(notebook, _index(notebook, cell_id), outputs=True)

        return await in_thread(get)

    async def apply(self, edit: Edit) -> Cell | None:
        """Apply an edit to the current file; if it raises ToolError, the file is unchanged."""
        return await in_thread(self._apply, edit)

    def _cells(self, *, outputs: bool, briefly: bool = False) -> list[Cell]:
        with self._opened() as notebook:
            count = range(len(notebook.cells))
            return [_seen(notebook, each, outputs=outputs, briefly=briefly) for each in count]

    def _apply(self, edit: Edit) -> Cell | None:
        space = Workspace(root=self.path.parent)
        with space.explained(self.path):
            if self.path.exists() and not os.access(self.path, os.W_OK):
                raise ToolError(f"{self.path.name!r} is write-protected; ask the user")
            with locked(self._lock_path(), LOCK_SECONDS):
                before = _version(self.path)
                with self._opened(whole=True) as notebook:
                    changed = _changed(notebook, edit)
                    new = notebook.encode()
                    if not is_valid(notebook, new) and self._was_valid():
                        raise ToolError(_INVALID)
                    if self.keep is not None:
                        with suppress(OSError):  # the edit is made even if the backup fails
                            notebook.scanner.file.seek(0)
                            old = notebook.scanner.file.read()
                            write_atomic(self.keep / self._kept_name(), old, mode=0o600)
                # Programs that do not use the lock, such as git, may have changed the file.
                if _version(self.path) != before:
                    raise ToolError(
                        f"{self.path.name!r} has just been changed by something else; try again"
                    )
                write_atomic(self.path, new)
        return changed

    def _was_valid(self) -> bool:
        """Return whether the current file follows the schema; otherwise edits are not checked."""
        with self._opened(whole=True) as notebook:
            return is_valid(notebook, notebook.encode())

    @contextmanager
    def _opened(self, *, whole: bool = False) -> Iterator[Notebook]:
        space = Workspace(root=self.path.parent)
        with space.explained(self.path), open_regular(self.path) as file:
            yield read_notebook(file, self.path.name, whole=whole)

    def _lock_path(self) -> Path:
        if self.keep is not None:
            with suppress(OSError):  # an unwritable directory must not prevent the edit
                make_private(self.keep)
                if os.access(self.keep, os.W_OK):
                    return self.keep / self._kept_name()
        return Path(os.path.realpath(self.path))

    def _kept_name(self) -> str:
        real = os.path.realpath(self.path)
        mark = hashlib.sha256(os.fsencode(real)).hexdigest()[:10]
        return f"{Path(real).stem[:40]}-{mark}.ipynb"


def _version(path: Path) -> tuple[int, int, int]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _changed(notebook: Notebook, edit: Edit) -> Cell | None:
    """Apply an edit to a notebook in memory; return the cell in its new state."""
    cells = notebook.cells
    if isinstance(edit, Insert):
        index = len(cells) if edit.index is None else max(0, min(edit.index, len(cells)))
        if edit.after is not None:
            index = _index(notebook, edit.after) + 1
        cells.insert(index, new_cell(edit, {cell["id"] for cell in cells}))
        return _seen(notebook, index)
    index = _index(notebook, edit.id)
    if isinstance(edit, Replace | Delete):
        now = _seen(notebook, index)
        if now.hash != edit.seen:
            raise conflict(now)
    match edit:
        case Replace():  # keep the outputs, as in a front end
            cells[index]["source"] = edit.source.splitlines(keepends=True)
        case Delete():
            del cells[index]
            return None
        case Move():
            cell = cells[index]
            rest = [each for each in cells if each is not cell]
            if edit.after != edit.id:
                after = None if edit.after is None else cells[_index(notebook, edit.after)]
                index = 0 if after is None else rest.index(after) + 1
            cells[:] = [*rest[:index], cell, *rest[index:]]
        case SetOutputs():
            if (kind := cells[index]["cell_type"]) != "code":
                raise ToolError(f"cell {edit.id!r} is a {kind} cell; it has no outputs")
            cells[index]["outputs"] = on_disk(edit.outputs)
            cells[index]["execution_count"] = edit.execution_count
    return _seen(notebook, index, outputs=isinstance(edit, SetOutputs))


def _index(notebook: Notebook, cell_id: str) -> int:
    for index, cell in enumerate(notebook.cells):
        if cell["id"] == cell_id:
            return index
    count = range(len(notebook.cells))
    raise no_such_cell(cell_id, [_seen(notebook, each) for each in count])


def _seen(notebook: Notebook, index: int, *, outputs: bool = False, briefly: bool = False) -> Cell:
    cell = notebook.cells[index]
    source = source_of(cell)
    kind = cell["cell_type"]
    stored = cell.get("outputs", [])
    return Cell(
        index=index,
        id=cell["id"],
        type=cast("CellType", kind if kind in _TYPES else "raw"),
        source=source,
        hash=source_hash(source),
        execution_count=cell.get("execution_count"),
        output_count=stored.count if isinstance(stored, Stored) else len(stored),
        outputs=notebook.outputs(cell, briefly=briefly) if outputs else None,
        metadata=cell["metadata"],
    )


def new_cell(edit: Insert, used: Collection[str]) -> NotebookCell:
    """Return a new cell with keys in nbformat's order and an id not in `used`."""
    name = secrets.token_hex(4)
    while name in used:
        name = secrets.token_hex(4)
    cell: NotebookCell = {"cell_type": edit.type, "id": name, "metadata": clean(edit.metadata)}
    cell["source"] = edit.source.splitlines(keepends=True)
    if edit.type == "code":
        cell |= {"execution_count": None, "outputs": []}
    return dict(sorted(cell.items()))


def on_disk(outputs: Sequence[Output]) -> list[dict[str, Json]]:
    """Return outputs as nbformat writes them, with multi-line text as lists of lines."""
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
    """Return whether a notebook follows the schema, including outputs unless it is too large."""
    import nbformat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            if len(data) <= CHECKED:
                document = json.loads(data)
            else:
                shown: NotebookCell = {"outputs": []}
                cells = [each | shown if "outputs" in each else each for each in notebook.cells]
                document = {**notebook.document, "cells": cells}
            nbformat.validate(document)
        except (ValueError, nbformat.ValidationError):  # includes integers with too many digits
            return False
    return True
