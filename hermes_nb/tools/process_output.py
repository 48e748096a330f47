"""Capture a command's output in bounded memory, and render it as a terminal would."""

from __future__ import annotations

import re
from collections.abc import Callable

from hermes_nb.core.text import latest

LATEST = 4_000
"""Bytes of the end of the output to display while a command is running."""

WHOLE = 1_000_000
"""Maximum size in bytes of output that is kept in full."""
HEAD, TAIL = 30_000, 18_000
"""Bytes to keep of larger output; less than the limit for tool output, to leave space for notes."""
_AROUND = 8_192
"""Bytes of context for redaction; longer than a private key in PEM format."""


class Capture:
    """Collects output; `text()` returns all of it, or the head and tail around a marker.

    `clean` redacts secrets in everything returned. If the middle is dropped, `clean` also gets the
    adjacent `_AROUND` bytes of it, because it would not recognise half a secret.
    """

    def __init__(self, clean: Callable[[str], str] | None = None) -> None:
        self._clean = clean
        self._head = bytearray()
        self._tail = bytearray()
        self.size = 0

    def add(self, chunk: bytes) -> None:
        """Add the next chunk."""
        self.size += len(chunk)
        room = WHOLE - len(self._head)
        self._head += chunk[:room]
        if rest := chunk[max(room, 0) :]:
            self._tail += rest[-2 * TAIL :]
            if len(self._tail) > 2 * TAIL:  # trimmed occasionally, not for every chunk
                del self._tail[: -TAIL - _AROUND]

    def text(self) -> str:
        """Return the captured text, with replacement characters for non-UTF-8 bytes."""
        if not self._tail:
            text = self._head.decode("utf-8", "replace")
            return text if self._clean is None else self._clean(text)
        end = self._head + self._tail
        dropped = self.size - HEAD - len(end[-TAIL:])
        marker = f"\n[... {dropped:,} bytes dropped; send the output to a file to keep it ...]\n"
        if self._clean is None:
            head, tail = self._head[:HEAD].decode("utf-8", "replace"), end[-TAIL:]
            return head + marker + tail.decode("utf-8", "replace")
        before = self._clean(self._head[: HEAD + _AROUND].decode("utf-8", "replace"))
        after = self._clean(end[-TAIL - _AROUND :].decode("utf-8", "replace"))
        return before[:-_AROUND][:HEAD] + marker + after[_AROUND:][-TAIL:]

    def latest(self) -> str:
        """Return the end of the output so far, as a terminal would show it."""
        kept = self._tail or self._head
        text = bytes(kept[-LATEST:]).decode("utf-8", "replace")
        shown = plain(latest(text, len(text) - (len(kept) > LATEST)))
        return shown if self._clean is None else self._clean(shown)


_SEQUENCE = re.compile(
    r"""
      (?: \x1b\[ | \x9b ) [0-?]* [ -/]* [@-~]         # CSI: colours, cursor
    | \x1b\] [^\x07\x1b]* (?: \x07 | \x1b\\ )         # OSC: titles, links
    | \x1b[PX^_] [^\x1b]* \x1b\\                      # DCS, SOS, PM, APC
    | \x1b [ -/]* [0-~]                               # everything else with two characters
    | \x1b
    """,
    re.VERBOSE,
)
_CONTROL = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_OVERSTRUCK = re.compile(r"[^\n\b]\x08")


def plain(text: str) -> str:
    """Return `text` as a terminal would show it at the end, keeping lines and tabs."""
    if "\x1b" in text or "\x9b" in text:
        text = _SEQUENCE.sub("", text)
    text = _OVERSTRUCK.sub("", text).replace("\b", "")
    text = text.replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return _CONTROL.sub("", text)


def _last_state(line: str) -> str:
    """Return the final content of a line that contains carriage returns."""
    states = [state for state in line.split("\r") if state.strip()]
    return states[-1] if states else ""
