"""What a turn changed, as a unified diff; pure functions over contents."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

MOST_CHARACTERS = 400_000
"""Of a text that is compared: difflib's time grows with the square of what differs."""
_CONTEXT = 3


def file_diff(name: str, before: bytes | None, after: bytes | None) -> str:
    """Return how a file changed; None is a file that does not exist."""
    if before == after:
        return ""
    old, new = _text(before), _text(after)
    if old is None or new is None:
        sizes = f"{_size(before)} → {_size(after)}"
        return f"--- {name}\n+++ {name}\nbinary or large, not compared: {sizes}"
    was = name if before is not None else "/dev/null"
    is_ = name if after is not None else "/dev/null"
    return _unified(old, new, was, is_) or f"--- {was}\n+++ {is_}"


def cells_diff(
    name: str, before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]
) -> str:
    """Return how a notebook's cells changed, by id; of outputs only that they did."""
    old = {str(cell["id"]): cell for cell in before}
    new = {str(cell["id"]): cell for cell in after}
    lines: list[str] = []
    for cell_id in [*old, *(each for each in new if each not in old)]:
        lines += _cell_diff(f"{name} cell {cell_id}", old.get(cell_id), new.get(cell_id))
    kept = [cell_id for cell_id in old if cell_id in new]
    if kept != [cell_id for cell_id in new if cell_id in old]:
        lines.append(f"{name}: cells were moved")
    return "\n".join(lines)


def _cell_diff(
    name: str, before: Mapping[str, Any] | None, after: Mapping[str, Any] | None
) -> list[str]:
    old, new = _source(before), _source(after)
    was = name if before is not None else "/dev/null"
    is_ = name if after is not None else "/dev/null"
    if old != new or before is None or after is None:
        return [_unified(old, new, was, is_) or f"--- {was}\n+++ {is_}"]
    return [] if before.get("outputs") == after.get("outputs") else [f"{name}: new outputs"]


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
    lines: list[str] = []
    for line in difflib.unified_diff(_lines(old), _lines(new), was, is_, lineterm="", n=_CONTEXT):
        lines.append(line.removesuffix("\n"))
        if line[:1] in "+- " and not line.endswith("\n") and not line.startswith(("---", "+++")):
            lines.append("\\ No newline at end of file")
    return "\n".join(lines)


def _lines(text: str) -> list[str]:
    """Split at newlines alone, which stay: a form feed is no line end in a diff."""
    pieces = text.split("\n")
    lines = [f"{piece}\n" for piece in pieces[:-1]]
    return [*lines, pieces[-1]] if pieces[-1] else lines


def _size(data: bytes | None) -> str:
    return "not there" if data is None else f"{len(data):,} bytes"
