"""Read a notebook file as nbformat 4.5, leaving its outputs in the file until needed.

Reading never changes the file: older formats and invalid ids are fixed in memory. Writing copies
unchanged outputs byte for byte, including NaN and unusual escapes.
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import BinaryIO

from hermes_nb.core.errors import ToolError
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.notebook.document.json_scanner import PIECE, Malformed, Scanner, Span

LOADED = 16_000_000
"""Maximum bytes of a cell's outputs to read completely; larger ones are truncated."""
SMALL = 2_000
"""Values up to this many bytes are never truncated."""
PART = 200_000
"""Bytes to keep from the start of a longer value."""
CLIPPED = "hermes_clipped"
"""Key that marks a truncated output, also used by the front end; it cannot be written back."""
CELLS = 20_000
"""Maximum number of cells; reading them takes about two seconds on a slow core."""

_MAJOR, _MINOR = 4, 5
_BRIEFS = 64
_BRIEF = 400
_LOOKED_AT = 4_096
_MARK = b"\xef\xbb\xbf"
_LISTS = {"": ("cells", "worksheets"), "worksheets": ("cells",), "cells": ("outputs",)}
"""Keys of the lists that are read item by item, grouped by the key of the enclosing list."""
_NO_BEGINNING = ("json", "png", "jpeg")  # names in nbformat 3; newer images are `image/…`

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_SURROGATE = re.compile("[\ud800-\udfff]")
_INDENT = re.compile(r"\{\r?\n([ \t]+)\"")
_PREFIX = re.compile(r'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+')

NotebookCell = dict[str, Json]


@dataclass(frozen=True, slots=True)
class Stored:
    """Outputs that have not been read from the file."""

    span: Span
    """Their position in the file."""
    count: int
    """Number of outputs."""


@dataclass(slots=True)
class Notebook:
    """A notebook in nbformat 4.5, with large parts still in its file."""

    document: dict[str, Json]
    """The notebook; the `outputs` of a cell are a list, or `Stored` in the file."""
    scanner: Scanner
    """The scanner for the file, which has to remain open."""
    indent: int | str | None = 1
    """The file's indentation, as for `json.dumps`; None for a single-line file."""
    final_newline: bool = True
    """Whether the file ends with a newline."""

    @property
    def cells(self) -> list[NotebookCell]:
        cells: list[NotebookCell] = self.document["cells"]
        return cells

    def outputs(self, cell: NotebookCell, *, briefly: bool = False) -> list[dict[str, Json]]:
        """Return a cell's outputs, truncated if they exceed `LOADED` bytes in total.

        With `briefly`, long values are left empty, and at most 64 outputs are returned in addition
        to errors.
        Raises ToolError if the outputs are not valid JSON.
        """
        stored = cell.get("outputs", [])
        if not isinstance(stored, Stored):
            return list(stored)
        try:
            if briefly:
                return _briefs(self.scanner, stored.span)
            return _loaded(self.scanner, stored.span, LOADED)
        except Malformed as error:
            raise ToolError(
                f"outputs of cell {cell.get('id')!r} are damaged (byte {error.offset:,}): {error}"
            ) from error

    def encode(self) -> bytes:
        mark = f"stored-{secrets.token_hex(8)}-"
        places: dict[str, Span] = {}

        def place(stored: object) -> str:
            if not isinstance(stored, Stored):
                raise TypeError(f"{type(stored).__name__} in a notebook is not JSON")
            name = f"{mark}{len(places)}"
            places[name] = stored.span
            return name

        text = json.dumps(self.document, ensure_ascii=False, indent=self.indent, default=place)
        # JSON in UTF-8 can contain a lone surrogate only as an escape.
        text = _SURROGATE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
        pieces = re.split(f'"({mark}[0-9]+)"', text + ("\n" if self.final_newline else ""))
        return b"".join(
            self.scanner.raw(places[piece]) if number % 2 else piece.encode()
            for number, piece in enumerate(pieces)
        )


def read_notebook(file: BinaryIO, name: str, *, whole: bool = False) -> Notebook:
    """Parse a notebook file; raise a ToolError with the position of any damage.

    With `whole`, nothing is truncated, so the notebook can be written back. Otherwise, large
    outputs of a notebook in an older format are truncated.
    """
    file.seek(0)
    head = file.read(_LOOKED_AT)
    begun = len(_MARK) if head.startswith(_MARK) else 0
    scanner = Scanner(file, begun)
    try:
        scanner.begins(b"{", "a notebook begins with {")
        document = _object(scanner, name)
        scanner.finish()
        document = _current(document, scanner, name, None if whole else LOADED)
    except Malformed as error:
        raise ToolError(_damage(file, name, error)) from error
    _check(document, name)
    _complete(document)
    file.seek(max(0, file.seek(0, 2) - 1))
    indent: int | str | None = None
    if match := _INDENT.match(head[begun:].decode("utf-8", "replace").lstrip()):
        indent = match[1] if "\t" in match[1] else len(match[1])
    return Notebook(document, scanner, indent, file.read() == b"\n")


def _object(scanner: Scanner, name: str, inside: str = "") -> dict[str, Json]:
    """Read a notebook object, with `Stored` positions in place of outputs.

    `inside` is the key of the list that contains the object, or "" for the notebook itself.
    """
    found: dict[str, Json] = {}
    for key in scanner.members():
        if key not in _LISTS.get(inside, ()) or scanner.peek() != b"[":
            found[key] = scanner.load(scanner.skip())
        elif key == "outputs":
            start = scanner.offset
            count = len([scanner.skip() for _ in scanner.items()])
            found[key] = Stored(Span(start, scanner.offset), count)
        else:
            found[key] = []
            for _ in scanner.items():
                if len(found[key]) == CELLS:
                    raise ToolError(
                        f"{name!r} has more than {CELLS:,} cells, too many for the notebook tools; "
                        "run_python can read it as JSON"
                    )
                found[key].append(_object(scanner, name, key))
    return found


def _parts(walk: Scanner, part: Callable[[str], Json]) -> dict[str, Json]:
    """Read an output, using `part(key)` to read each value, including those in its MIME bundle."""
    return {
        key: {mime: part(mime) for mime in walk.members()}
        if key == "data" and walk.peek() == b"{"
        else part(key)
        for key in walk.members()
    }


def _briefs(scanner: Scanner, span: Span) -> list[dict[str, Json]]:
    walk = Scanner(scanner.file, span.start)

    def part(name: str) -> Json:
        kind, value = walk.peek(), walk.skip()
        if "/" in name or value.size > _BRIEF or kind == b"{":  # keep only the MIME type
            return {} if kind == b"{" else ""
        return walk.load(value)

    briefs: list[dict[str, Json]] = []
    for _ in walk.items():
        if walk.peek() != b"{":
            walk.skip()
            continue
        brief = _parts(walk, part)
        if len(briefs) < _BRIEFS or brief.get("output_type") in ("error", "pyerr"):
            briefs.append(brief)
    return briefs


def _loaded(scanner: Scanner, span: Span, limit: int | None) -> list[dict[str, Json]]:
    """Read outputs; if they exceed `limit` bytes in total, truncate all that do not fit."""
    if limit is None or span.size <= limit:
        return [output for output in scanner.load(span) if isinstance(output, dict)]
    walk = Scanner(scanner.file, span.start)
    outputs: list[dict[str, Json]] = []
    left = limit // 2
    for _ in walk.items():
        kind = walk.peek()
        output = walk.skip()
        if kind != b"{":
            continue
        if output.size <= left:
            left -= output.size
            outputs.append(walk.load(output))
        elif left >= SMALL:
            left -= SMALL
            outputs.append(_cut(Scanner(walk.file, output.start), output.size))
    return outputs


def _cut(walk: Scanner, size: int) -> dict[str, Json]:
    """Return an output with long values truncated, large images removed, and a note about it."""

    def part(name: str) -> Json:
        kind, span = walk.peek(), walk.skip()
        if span.size <= SMALL:
            return walk.load(span)
        if kind == b'"' and not name.startswith("image/") and name not in _NO_BEGINNING:
            return _string_head(walk, span, PART)
        return _list_head(Scanner(walk.file, span.start)) if kind == b"[" else None

    def kept(values: Mapping[str, Json]) -> dict[str, Json]:
        return {key: value for key, value in values.items() if value is not None}

    output: dict[str, Json] = {CLIPPED: size} | kept(_parts(walk, part))
    note = f"\n[... an output of {size:,} bytes, cut ...]"
    if isinstance(output.get("data"), dict):
        output["data"] = data = kept(output["data"])
        data["text/plain"] = "".join(data.get("text/plain") or "") + note
    elif "text" in output:
        output["text"] = "".join(output["text"]) + note
    return output


def _string_head(walk: Scanner, span: Span, room: int) -> str:
    raw = walk.raw(Span(span.start + 1, min(span.end - 1, span.start + 1 + room)))
    match = _PREFIX.match(raw.decode("utf-8", "ignore"))
    return str(json.loads(f'"{match[0] if match else ""}"', strict=False))


def _list_head(walk: Scanner) -> list[str]:
    lines: list[str] = []
    room = PART
    for _ in walk.items():
        kind = walk.peek()
        span = walk.skip()
        room -= span.size
        if room < 0 or kind != b'"':
            if not lines and kind == b'"':
                lines.append(_string_head(walk, span, PART))
            break
        lines.append(walk.load(span))
    return lines


def _current(
    document: dict[str, Json], scanner: Scanner, name: str, limit: int | None
) -> dict[str, Json]:
    """Return the notebook, converted to nbformat 4 if needed; converted cells have no ids yet."""
    major = document.get("nbformat")
    if not isinstance(major, int):
        raise ToolError(f"{name!r} is JSON but not a notebook: it has no nbformat number")
    if major > _MAJOR:
        raise ToolError(f"{name!r} uses nbformat {major}; the newest supported version is {_MAJOR}")
    if major == _MAJOR:
        return document
    import nbformat

    text = json.dumps(document, default=lambda stored: _loaded(scanner, stored.span, limit))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            new = nbformat.reads(text, as_version=_MAJOR)
    except Exception as error:  # the old converters can raise anything
        what = one_line(f"{type(error).__name__}: {error}", 200)
        raise ToolError(
            f"{name!r} is in the old nbformat {major} and cannot be "
            f"converted ({what}); open it in JupyterLab and save it"
        ) from error
    for cell in new["cells"]:
        cell.pop("id", None)  # it is random; `_complete` generates one that never changes
    return dict(new)


def _check(document: Mapping[str, Json], name: str) -> None:
    cells = document.get("cells")
    if not isinstance(cells, list) or not isinstance(document.get("metadata", {}), dict):
        raise ToolError(f"{name!r} is not a notebook: it has no list of cells")
    for index, cell in enumerate(cells):
        source = cell.get("source", "")
        lines = source if isinstance(source, list) else [source]
        if not (
            isinstance(cell.get("cell_type"), str)
            and all(isinstance(line, str) for line in lines)
            and isinstance(cell.get("metadata", {}), dict)
            and isinstance(cell.get("outputs", []), list | Stored)
        ):
            raise ToolError(f"cell {index} of {name!r} is damaged; open the notebook in JupyterLab")


def _complete(document: dict[str, Json]) -> None:
    """Add nbformat 4.5 fields that are missing from notebooks in earlier formats.

    A generated id depends only on the cell's position and source, so that it is the same on every
    read.
    """
    minor = document.get("nbformat_minor")
    document["nbformat_minor"] = max(minor, _MINOR) if isinstance(minor, int) else _MINOR
    metadata = document.setdefault("metadata", {})
    for key in ("orig_nbformat", "orig_nbformat_minor"):
        metadata.pop(key, None)
    used = {cell["id"] for cell in document["cells"] if _is_id(cell.get("id"))}
    taken: set[str] = set()
    for index, cell in enumerate(document["cells"]):
        cell.setdefault("source", "")
        cell.setdefault("metadata", {})
        if cell["cell_type"] == "code":
            cell.setdefault("outputs", [])
            cell.setdefault("execution_count", None)
        if not _is_id(cell.get("id")) or cell["id"] in taken:
            names = _generated(index, source_of(cell))
            cell["id"] = next(name for name in names if name not in used)
        taken.add(cell["id"])
        used.add(cell["id"])


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _generated(index: int, source: str) -> Iterator[str]:
    for attempt in count():
        text = f"{attempt}:{index}:{source}".encode("utf-8", "surrogatepass")
        yield hashlib.sha256(text).hexdigest()[:8]


def source_of(cell: Mapping[str, Json]) -> str:
    """Return a cell's source as one string."""
    return "".join(cell.get("source", ""))


def _damage(file: BinaryIO, name: str, error: Malformed) -> str:
    file.seek(0)
    lines, left = 1, error.offset
    while left > 0 and (piece := file.read(min(left, PIECE))):
        lines += piece.count(b"\n")
        left -= len(piece)
    return (
        f"{name!r} is damaged at line {lines:,} (byte {error.offset:,}): {error}. It was "
        "not changed; ask the user to restore it, for instance from .ipynb_checkpoints or git"
    )
