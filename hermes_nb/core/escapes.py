r"""Escapes in place of characters that a terminal or a browser would act on, or nobody sees.

Control characters, ANSI sequences, right-to-left overrides, zero-width and tag characters come out
as `\x1b`, `\u202e` and so on; everything else, every script and emoji, stays as it is.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode's categories of characters that have no shape of their own."""
_JOINED = re.compile("(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")
"""What joins or parts letters and emoji of many scripts; beside an ASCII letter it only hides."""
_REMEMBERED = 20_000
"""Characters whose shape is remembered."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MARKERS = "\u200e\u200f\u00ad"
"""Marks of direction for one place, and soft hyphens: right in prose, and they reorder nothing."""


def visible(text: str, *, lines: bool = False) -> str:
    """Return `text` with its invisible characters escaped; `lines` keeps line ends and tabs."""
    return _shown(text, "\n\t" if lines else "")


def readable(text: str) -> str:
    """Return prose with what hides or reorders it escaped; what scripts and emoji need stays.

    An override of direction or an ANSI sequence shows as its escape, a family of emoji or a
    Persian word stays whole. Line ends become those of Unix.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii():
        return _shown(text, "\n\t")
    pieces, at = [], 0
    for joined in _JOINED.finditer(text):
        pieces += [_shown(text[at : joined.start()], "\n\t" + _MARKERS), joined[0]]
        at = joined.end()
    return "".join([*pieces, _shown(text[at:], "\n\t" + _MARKERS)])


def _shown(text: str, keep: str) -> str:
    if text.isascii():
        if text.isprintable():
            return text
        return _CONTROL.sub(lambda m: m[0] if m[0] in keep else _escaped(m[0]), text)
    return text.translate(_shapes(keep))


@cache
def _shapes(keep: str) -> _Shapes:
    return _Shapes(keep)


class _Shapes(dict[int, str]):
    """How each character is shown, worked out when it first appears; `keep` stay as they are."""

    def __init__(self, keep: str) -> None:
        super().__init__()
        self._keep = keep

    def __missing__(self, code: int) -> str:
        if len(self) >= _REMEMBERED:
            self.clear()
        character = chr(code)
        hidden = unicodedata.category(character) in _HIDDEN and character not in self._keep
        shown = self[code] = _escaped(character) if hidden else character
        return shown


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
