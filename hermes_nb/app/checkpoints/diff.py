"""What a turn changed, as a unified diff; functions over contents.

A cell is named as everywhere: by its index, which is where the user finds it, and its id.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

MOST_CHARACTERS = 400_000
"""Of a text that is compared: difflib's time grows with the square of what differs."""
NOWHERE = "/dev/null"
"""What a unified diff says instead of a name for what does not exist."""
_CONTEXT = 3
_UUID = 36
_SHORT = 8
"""Characters of an id that is a UUID, as people and models read it."""


def shown_path(path: str, root: Path | None) -> str:
    """Return a path as the user would write it: from `root` or the home where it is below them.

    Links on the way count as the folders that they lead to.
    """
    real = Path(os.path.realpath(path))
    if root is not None and real.is_relative_to(inside := os.path.realpath(root)):
        return real.relative_to(inside).as_posix()
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - no home is no error here
    return f"~/{real.relative_to(home).as_posix()}" if real.is_relative_to(home) else path


def file_diff(name: str, before: bytes | None, after: bytes | None) -> str:
    """Return how a file changed; None is a file that does not exist."""
    if before == after:
        return ""
    old, new = _text(before), _text(after)
    if old is None or new is None:
        sizes = f"{_size(before)} → {_size(after)}"
        return f"--- {name}\n+++ {name}\nbinary or large, not compared: {sizes}"
    was = name if before is not None else NOWHERE
    is_ = name if after is not None else NOWHERE
    return _unified(old, new, was, is_)


def cells_diff(
    name: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> str:
    """Return how a notebook's cells changed; of outputs only that they did."""
    old = {str(cell["id"]): cell for cell in before}
    new = {str(cell["id"]): cell for cell in after}
    was, is_ = _named(name, old), _named(name, new)
    lines: list[str] = []
    for cell_id in [*old, *(each for each in new if each not in old)]:
        source, changed = (_source(cells.get(cell_id)) for cells in (old, new))
        named = was.get(cell_id, NOWHERE), is_.get(cell_id, NOWHERE)
        if source != changed or NOWHERE in named:
            # A cell has no end of file; of one there is no more to say than of all others.
            was_text, is_text = (f"{text}\n" if text else "" for text in (source, changed))
            lines.append(_unified(was_text, is_text, *named))
        elif old[cell_id].get("outputs") != new[cell_id].get("outputs"):
            lines.append(f"{is_[cell_id]}: new outputs")
    kept = [cell_id for cell_id in old if cell_id in new]
    if kept != [cell_id for cell_id in new if cell_id in old]:
        lines.append(f"{name}: cells were moved")
    return "\n".join(lines)


def _named(name: str, cells: Collection[str]) -> dict[str, str]:
    """Return what each cell is called, by its id."""
    short = (cell_id[:_SHORT] if len(cell_id) >= _UUID else cell_id for cell_id in cells)
    called = [f"{name} cell {index} {cell_id}" for index, cell_id in enumerate(short)]
    return dict(zip(cells, called, strict=True))


def _source(cell: Mapping[str, Any] | None) -> str:
    return "" if cell is None else str(cell.get("source", ""))


def _text(data: bytes | None) -> str | None:
    """Return content as text; None for what is binary or too large to compare."""
    if data is None:
        return ""
    if len(data) > MOST_CHARACTERS or b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _unified(old: str, new: str, was: str, is_: str) -> str:
    """Return a diff; of two texts that are the same, the names alone."""
    lines: list[str] = []
    for line in difflib.unified_diff(_lines(old), _lines(new), was, is_, lineterm="", n=_CONTEXT):
        lines.append(line.removesuffix("\n"))
        if line[:1] in "+- " and not line.endswith("\n") and not line.startswith(("---", "+++")):
            lines.append("\\ No newline at end of file")
    return "\n".join(lines) or f"--- {was}\n+++ {is_}"


def _lines(text: str) -> list[str]:
    """Split at newlines alone, which stay: a form feed is no line end in a diff."""
    pieces = text.split("\n")
    lines = [f"{piece}\n" for piece in pieces[:-1]]
    return [*lines, pieces[-1]] if pieces[-1] else lines


def _size(data: bytes | None) -> str:
    return "not there" if data is None else f"{len(data):,} bytes"
