r"""What a terminal would show, as plain text: no escape sequences, no control characters.

Progress bars that redraw themselves with `\r` come out as their last state. Every pattern is linear
in the text: what a program prints is nobody's friend.
"""

from __future__ import annotations

import re

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
    """Return `text` as a terminal would leave it, lines and tabs kept."""
    if "\x1b" in text or "\x9b" in text:
        text = _SEQUENCE.sub("", text)
    text = _OVERSTRUCK.sub("", text).replace("\b", "")
    text = text.replace("\r\n", "\n")
    if "\r" in text:
        text = "\n".join(_last_state(line) for line in text.split("\n"))
    return _CONTROL.sub("", text)


def _last_state(line: str) -> str:
    """Return what a line that returned to its beginning shows in the end."""
    states = [state for state in line.split("\r") if state.strip()]
    return states[-1] if states else ""
