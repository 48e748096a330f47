"""The beginnings of outputs that are too large to be read whole, straight from the file."""

from __future__ import annotations

import json
import re
from typing import Any

from hermes_nb.notebook.cells.scanning import Scanner, Span

SMALL = 2_000
"""Bytes of a value that is never cut."""
PART = 200_000
"""Bytes kept of the beginning of a longer value."""
CLIPPED = "hermes_clipped"
"""The key that marks a cut output, as the bridge to a front end marks it; it cannot be written."""

_PREFIX = re.compile(r'(?:[^"\\]++|\\u[0-9a-fA-F]{4}|\\[^u])*+')


def load_reduced(scanner: Scanner, span: Span, budget: int) -> list[dict[str, Any]]:
    """Return the outputs at `span`, whole while `budget` bytes last, then their beginnings.

    Of pictures there is no beginning; a text says how large it is.
    """
    walk = scanner.at(span.start)
    outputs: list[dict[str, Any]] = []
    left = budget // 2
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
            outputs.append(_reduced(walk.at(output.start), output.size))
    return outputs


def _reduced(walk: Scanner, size: int) -> dict[str, Any]:
    """Return an object with its longer values cut and a note that says so."""
    output: dict[str, Any] = {CLIPPED: size}
    room = PART
    for key in walk.members():
        if key == "data" and walk.peek() == b"{":
            data = {mime: _part(walk, mime, room // 2) for mime in walk.members()}
            output[key] = {mime: value for mime, value in data.items() if value is not None}
        else:
            output[key] = _part(walk, key, room)
    note = f"\n[... an output of {size:,} bytes, cut ...]"
    if isinstance(output.get("data"), dict):
        text = output["data"].get("text/plain") or ""
        output["data"]["text/plain"] = ("".join(text) if isinstance(text, list) else text) + note
    elif "text" in output:
        text = output["text"] or ""
        output["text"] = ("".join(text) if isinstance(text, list) else text) + note
    return {key: value for key, value in output.items() if value is not None}


def _part(walk: Scanner, name: str, room: int) -> Any:  # noqa: ANN401 - JSON
    """Return a value or, if it is long, the beginning of a text or of a list of them."""
    kind = walk.peek()
    span = walk.skip()
    if span.size <= SMALL:
        return walk.load(span)
    if kind == b'"':
        return None if name.startswith("image/") else _string_head(walk, span, room)
    if kind == b"[":
        return _list_head(walk.at(span.start), room)
    return None


def _string_head(walk: Scanner, span: Span, room: int) -> str:
    raw = walk.raw(Span(span.start + 1, min(span.end - 1, span.start + 1 + room)))
    match = _PREFIX.match(raw.decode("utf-8", "ignore"))
    return str(json.loads(f'"{match[0] if match else ""}"', strict=False))


def _list_head(walk: Scanner, room: int) -> list[Any]:
    """Return the first strings of a list; lines are what outputs are cut into on disk."""
    lines: list[Any] = []
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
