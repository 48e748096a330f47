"""A notebook's file as nbformat 4.5 in memory, its outputs left in the file until wanted.

Reading never changes the file; older formats and wrong ids are put right in the copy. Writing
copies the outputs that did not change byte for byte, NaN and odd escapes included.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO

from hermes_nb.core.errors import ToolError
from hermes_nb.notebook.cells.large_outputs import load_reduced
from hermes_nb.notebook.cells.scanning import Malformed, Scanner, Span
from hermes_nb.notebook.cells.upgrading import MAJOR, complete, converted

LOADED = 16_000_000
"""Bytes of one cell's outputs that are read as they are; of more, the beginnings are."""

CELLS = 20_000
"""Cells of a notebook that is read: about two seconds of a slow core."""

_BRIEFS = 64
_BRIEF = 400
_LOOKED_AT = 4_096
_SURROGATE = re.compile("[\ud800-\udfff]")
_INDENT = re.compile(r"\{\r?\n([ \t]+)\"")

NotebookCell = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Stored:
    """Outputs that are still in the file: where, how many, and of each what kind it is.

    `briefs` are outputs whose longer values are empty; there are at most 64, and all the errors.
    """

    span: Span
    count: int
    briefs: list[dict[str, Any]]


@dataclass(slots=True)
class Notebook:
    """A notebook as nbformat 4.5; each cell's `outputs` is a list, or `Stored` in the file."""

    document: dict[str, Any]
    scanner: Scanner
    indent: int | str | None = 1
    final_newline: bool = True

    @property
    def cells(self) -> list[NotebookCell]:
        """The cells in order; the list may be changed."""
        cells: list[NotebookCell] = self.document["cells"]
        return cells

    def outputs(self, cell: NotebookCell, limit: int = LOADED) -> list[dict[str, Any]]:
        """Return a cell's outputs; of those over `limit` bytes the beginnings, and a note.

        Raises ToolError for outputs that are no JSON.
        """
        stored = cell.get("outputs", [])
        if not isinstance(stored, Stored):
            return list(stored)
        try:
            if stored.span.size > limit:
                return load_reduced(self.scanner, stored.span, limit)
            loaded = self.scanner.load(stored.span)
        except Malformed as error:
            message = (
                f"outputs of cell {cell.get('id')!r} are damaged (byte {error.offset:,}): {error}"
            )
            raise ToolError(message) from error
        return [output for output in loaded if isinstance(output, dict)]

    def encode(self) -> bytes:
        """Return the file's new bytes."""
        mark = f"stored-{secrets.token_hex(8)}-"
        places: dict[str, Span] = {}

        def place(stored: object) -> str:
            if not isinstance(stored, Stored):
                message = f"{type(stored).__name__} in a notebook is not JSON"
                raise TypeError(message)
            name = f"{mark}{len(places)}"
            places[name] = stored.span
            return name

        separators = (",", ": ") if self.indent is not None else None
        text = json.dumps(
            self.document,
            ensure_ascii=False,
            indent=self.indent,
            separators=separators,
            default=place,
        )
        # A lone surrogate can stand in JSON as an escape only.
        text = _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
        pieces = re.split(f'"({mark}[0-9]+)"', text + ("\n" if self.final_newline else ""))
        return b"".join(
            self.scanner.raw(places[piece]) if number % 2 else piece.encode()
            for number, piece in enumerate(pieces)
        )


def read_notebook(file: BinaryIO, name: str, *, whole: bool = False) -> Notebook:
    """Return the notebook that a file holds; raise ToolError naming where it is damaged.

    With `whole` it can be written again; without, the outputs of one in an old format are briefs.
    """
    try:
        scanner = Scanner(file)
        document = _document(scanner, name)
        scanner.finish()
        document = _current(document, scanner, name, whole=whole)
        _check(document, name)
    except Malformed as error:
        raise ToolError(_damage(file, name, error)) from error
    complete(document)
    head, tail = _ends(file)
    indent: int | str | None = None
    if match := _INDENT.match(head):
        spaces = match[1]
        indent = spaces if "\t" in spaces else len(spaces)
    return Notebook(document, scanner, indent, tail.endswith("\n"))


def _document(scanner: Scanner, name: str) -> dict[str, Any]:
    if scanner.peek() != b"{":
        message = "a notebook begins with {"
        raise Malformed(message, scanner.offset)
    document: dict[str, Any] = {}
    for key in scanner.members():
        kind = scanner.peek()
        if key == "cells" and kind == b"[":
            document[key] = _cells(scanner, name)
        elif key == "worksheets" and kind == b"[":
            document[key] = [_worksheet(scanner, name) for _ in scanner.items()]
        else:
            document[key] = scanner.load(scanner.skip())
    return document


def _worksheet(scanner: Scanner, name: str) -> dict[str, Any]:
    """Return what formats before 4 have around their cells."""
    sheet: dict[str, Any] = {}
    for key in scanner.members():
        if key == "cells" and scanner.peek() == b"[":
            sheet[key] = _cells(scanner, name)
        else:
            sheet[key] = scanner.load(scanner.skip())
    return sheet


def _cells(scanner: Scanner, name: str) -> list[NotebookCell]:
    cells: list[NotebookCell] = []
    for _ in scanner.items():
        if len(cells) == CELLS:
            message = (
                f"{name!r} has more than {CELLS:,} cells, too many for the notebook tools; "
                "run_python can read it as JSON"
            )
            raise ToolError(message)
        cells.append(_cell(scanner))
    return cells


def _cell(scanner: Scanner) -> NotebookCell:
    cell: NotebookCell = {}
    for key in scanner.members():
        if key == "outputs" and scanner.peek() == b"[":
            cell[key] = _stored(scanner)
        else:
            cell[key] = scanner.load(scanner.skip())
    return cell


def _stored(scanner: Scanner) -> Stored:
    scanner.peek()
    start, count = scanner.offset, 0
    briefs: list[dict[str, Any]] = []
    for _ in scanner.items():
        count += 1
        if scanner.peek() != b"{":
            scanner.skip()
            continue
        brief = _brief(scanner)
        if len(briefs) < _BRIEFS or brief.get("output_type") in ("error", "pyerr"):
            briefs.append(brief)
    return Stored(Span(start, scanner.offset), count, briefs)


def _brief(scanner: Scanner) -> dict[str, Any]:
    """Return an object with its longer values empty."""
    brief: dict[str, Any] = {}
    for key in scanner.members():
        kind = scanner.peek()
        if key == "data" and kind == b"{":
            brief[key] = {mime: _empty(scanner) for mime in scanner.members()}
            continue
        span = scanner.skip()
        small = span.size <= _BRIEF and kind != b"{"
        brief[key] = scanner.load(span) if small else {} if kind == b"{" else ""
    return brief


def _empty(scanner: Scanner) -> str:
    scanner.skip()
    return ""


def _current(
    document: dict[str, Any], scanner: Scanner, name: str, *, whole: bool
) -> dict[str, Any]:
    """Return the notebook in format 4, converted if it is older."""
    major = document.get("nbformat")
    if not isinstance(major, int):
        message = f"{name!r} is JSON but not a notebook: it has no nbformat number"
        raise ToolError(message)
    if major > MAJOR:
        message = f"{name!r} has nbformat {major}, newer than the {MAJOR} understood here"
        raise ToolError(message)
    if major == MAJOR:
        return document

    def outputs(stored: Stored) -> list[Any]:
        if whole:
            return list(scanner.load(stored.span))
        # A brief's JSON is empty, which the converter would try to parse.
        return [{k: v for k, v in brief.items() if k != "json"} for brief in stored.briefs]

    return converted(document, name, outputs)


def _check(document: Mapping[str, Any], name: str) -> None:
    """Raise ToolError unless the parts have the types that everything here relies on."""
    cells = document.get("cells")
    if not isinstance(cells, list) or not isinstance(document.get("metadata", {}), dict):
        message = f"{name!r} is not a notebook: it has no list of cells"
        raise ToolError(message)
    for index, cell in enumerate(cells):
        source = cell.get("source", "")
        lines = source if isinstance(source, list) else [source]
        if not (
            isinstance(cell.get("cell_type"), str)
            and all(isinstance(line, str) for line in lines)
            and isinstance(cell.get("metadata", {}), dict)
            and isinstance(cell.get("outputs", []), list | Stored)
        ):
            message = f"cell {index} of {name!r} is damaged; open the notebook in JupyterLab"
            raise ToolError(message)


def _ends(file: BinaryIO) -> tuple[str, str]:
    """Return how the file begins and ends, to be written in the same style."""
    file.seek(0)
    head = file.read(_LOOKED_AT).removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")
    size = file.seek(0, 2)
    file.seek(max(0, size - 2))
    return head.lstrip(), file.read().decode("latin-1")


def _damage(file: BinaryIO, name: str, error: Malformed) -> str:
    """Say where a file is damaged, by line, and what can be done."""
    file.seek(0)
    lines, left = 1, error.offset
    while left > 0 and (piece := file.read(min(left, 1_000_000))):
        lines += piece.count(b"\n")
        left -= len(piece)
    return (
        f"{name!r} is damaged at line {lines:,} (byte {error.offset:,}): {error}. It was not "
        "touched; ask the user to restore it, for instance from .ipynb_checkpoints or git"
    )
