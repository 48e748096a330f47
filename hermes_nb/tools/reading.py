"""Pages of a text stream: numbered lines within a budget, and a note on what was left out."""

from __future__ import annotations

import threading
from typing import TextIO

from hermes_nb.core.errors import TurnInterrupted
from hermes_nb.tools.workspace import size_text

READ_LIMIT = 40_000
"""Characters of one page; below the cap on tool output, so that what is shown is contiguous."""
LINE_LIMIT = 2_000
COUNT_LIMIT = 64_000_000
"""Bytes up to which the lines behind a page are counted to say how many there are."""
_CHUNK = 65_536


class Lines:
    """The lines of a stream, each cut to `LINE_LIMIT`, in bounded memory.

    Raises `TurnInterrupted` between pieces once `stop` is set: a file may be larger than anybody's
    patience.
    """

    def __init__(self, text: TextIO, stop: threading.Event) -> None:
        self._text = text
        self._stop = stop

    def next(self) -> str | None:
        """Return the next line without its end, or None at the end of the stream."""
        line = self._read(LINE_LIMIT + 2)
        if not line:
            return None
        dropped = 0
        rest = line
        while rest and not rest.endswith("\n"):
            rest = self._read(_CHUNK)
            dropped += len(rest.rstrip("\r\n"))
        line = line.rstrip("\r\n")
        if len(line) <= LINE_LIMIT and not dropped:
            return line
        dropped += len(line) - LINE_LIMIT
        return f"{line[:LINE_LIMIT]}[... {dropped:,} more characters]"

    def skip(self, count: int) -> int:
        """Pass over `count` lines and return how many there were."""
        return next((n for n in range(count) if self.next() is None), count)

    def _read(self, size: int) -> str:
        if self._stop.is_set():
            message = "reading was stopped"
            raise TurnInterrupted(message)
        return self._text.readline(size)


def numbered(lines: Lines, offset: int, limit: int, size: int) -> str:
    """Return up to `limit` lines from line `offset` (from 1) of a file of `size` bytes."""
    skipped = lines.skip(offset - 1)
    shown: list[str] = []
    left = READ_LIMIT
    while len(shown) < limit and left > 0:
        line = lines.next()
        if line is None:
            past = "" if shown else _nothing(offset, skipped, size)
            return "\n".join(shown) or past
        shown.append(f"{offset + len(shown)}\t{line}")
        left -= len(shown[-1]) + 1
    return "\n".join([*shown, *_rest(lines, offset, offset + len(shown) - 1, size)])


def _nothing(offset: int, lines: int, size: int) -> str:
    if size == 0:
        return "[the file is empty]"
    return f"[line {offset:,} is past the end: the file has {lines:,} lines]"


def _rest(lines: Lines, first: int, last: int, size: int) -> list[str]:
    """Return a note if anything follows the last line shown."""
    if lines.next() is None:
        return []
    going_on = f"go on with offset={last + 1}"
    if size > COUNT_LIMIT:
        return [f"[cut after line {last:,}; the file has {size_text(size)}; {going_on}]"]
    total = last + 1 + lines.skip(COUNT_LIMIT)
    return [f"[lines {first:,} to {last:,} of {total:,}; {going_on}]"]
