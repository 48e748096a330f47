"""Turns a stream of search events into the lines that a model reads, in bounded memory.

The events are those of `rg --json`: `match` and `context` lines of one file after the other, and
an `end` for each file.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hermes_nb.safety.visible import visible

LINE_LIMIT = 300
COUNT_LIMIT = 10_000
"""Matches after which a search stops: nobody reads them, and the pattern says too little."""
_LEAD = 60


@dataclass(frozen=True, slots=True)
class _Line:
    number: int
    text: str
    is_match: bool


@dataclass(slots=True)
class Results:
    """Keeps the first `limit` matches as text and counts the others."""

    limit: int
    name: Callable[[str], str]
    context: int = 0
    lines: list[str] = field(default_factory=list)
    matches: int = 0
    _pending: list[bytes] = field(default_factory=list)
    _file: list[_Line] = field(default_factory=list)
    _shown: int = 0

    def feed(self, chunk: bytes) -> bool:
        """Take the next piece of output; return False once there is more than anybody reads."""
        self._pending.append(chunk)
        if b"\n" in chunk:  # joined once a line, however many pieces a long one comes in
            *whole, rest = b"".join(self._pending).split(b"\n")
            self._pending = [rest]
            for line in whole:
                self._event(line)
        return self.matches < COUNT_LIMIT

    def _event(self, line: bytes) -> None:
        if not line.startswith(b"{"):  # a complaint about a file
            return
        event = json.loads(line)
        data = event["data"]
        if event["type"] in ("match", "context"):
            self._file.append(_line(data, is_match=event["type"] == "match"))
        elif event["type"] == "end":
            if data["binary_offset"] is None:
                self._add(self.name(_path(data["path"])))
            self._file = []

    def _add(self, name: str) -> None:
        """Take over a file's lines: matches up to the limit, and the context of those."""
        matches = [line.number for line in self._file if line.is_match]
        self.matches += len(matches)
        kept = set(matches[: max(0, self.limit - self._shown)])
        self._shown += len(kept)
        around = range(-self.context, self.context + 1)
        near = {number + step for number in kept for step in around}
        last = -1
        for line in self._file:
            if line.number not in (kept if line.is_match else near):
                continue
            if self.context and self.lines and line.number != last + 1:
                self.lines.append("--")
            last = line.number
            mark = ":" if line.is_match else "-"
            self.lines.append(f"{name}{mark}{line.number}{mark} {line.text}".rstrip())

    @property
    def omitted(self) -> int:
        """How many matches are not shown, counted up to `COUNT_LIMIT` in all."""
        return min(self.matches, COUNT_LIMIT) - self._shown


def _line(data: dict[str, Any], *, is_match: bool) -> _Line:
    text = _text(data["lines"]).rstrip("\r\n")
    start = data["submatches"][0]["start"] if is_match and data["submatches"] else 0
    before = len(text.encode("utf-8", "replace")[:start].decode("utf-8", "ignore"))
    return _Line(data["line_number"], _clipped(text, before), is_match)


def _text(data: dict[str, str]) -> str:
    """Return a text that is base64 where it is no UTF-8."""
    if "text" in data:
        return data["text"]
    return base64.b64decode(data["bytes"]).decode("utf-8", "replace")


def _path(data: dict[str, str]) -> str:
    """Return a path as Python knows it, whatever its bytes."""
    return data["text"] if "text" in data else os.fsdecode(base64.b64decode(data["bytes"]))


def _clipped(text: str, start: int) -> str:
    """Return at most `LINE_LIMIT` characters of a line, those where the match is."""
    if len(text) <= LINE_LIMIT:
        return visible(text, lines=True)
    first = max(0, min(start - _LEAD, len(text) - LINE_LIMIT)) if start > LINE_LIMIT - _LEAD else 0
    piece = text[first : first + LINE_LIMIT]
    tail = "" if first + LINE_LIMIT >= len(text) else "…"
    return ("…" if first else "") + visible(piece, lines=True) + tail
