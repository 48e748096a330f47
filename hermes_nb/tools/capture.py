"""Keeps the beginning and the end of an output of any length, in bounded memory."""

from __future__ import annotations

WHOLE = 1_000_000
"""Bytes up to which an output is kept whole."""
HEAD, TAIL = 30_000, 18_000
"""Bytes kept of a longer one; below the cap on tool output, with room for what is said about it."""


class Capture:
    """Takes bytes as they come; `text` is all of them, or their head and tail around a marker."""

    def __init__(self) -> None:
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """Take the next piece."""
        self.size += len(chunk)
        room = WHOLE - len(self._head)
        self._head += chunk[:room]
        if rest := chunk[max(room, 0) :]:
            self._tail += rest[-2 * TAIL :]
            if len(self._tail) > 2 * TAIL:  # trimmed now and then, not for every piece
                del self._tail[:-TAIL]

    def text(self) -> str:
        """Return what was kept; bytes that are no UTF-8 come out as replacement characters."""
        if not self._tail:
            return self._head.decode("utf-8", "replace")
        tail = (self._head + self._tail)[-TAIL:]
        dropped = self.size - HEAD - len(tail)
        marker = f"\n[... {dropped:,} bytes dropped; send the output to a file to keep it ...]\n"
        head = self._head[:HEAD].decode("utf-8", "replace")
        return head + marker + tail.decode("utf-8", "replace")

    def last_line(self) -> str:
        """Return the last line that has something in it, as far as the newest bytes show it."""
        newest = bytes((self._tail or self._head)[-500:]).decode("utf-8", "replace")
        lines = newest.replace("\r", "\n").split("\n")
        return next((line for line in reversed(lines) if line.strip()), "")
