r"""Escape characters that are invisible, or that a terminal or a browser would act on.

Control characters, ANSI sequences, right-to-left overrides, zero-width and tag characters become
`\x1b`, `\u202e` and so on. All other text stays unchanged, in every script and with emoji.
"""

from __future__ import annotations

import re
import unicodedata
from functools import cache

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode categories of invisible characters."""
_RESERVED = range(0xE0000, 0xE1000)
"""Unassigned characters here are invisible too (Default_Ignorable_Code_Point in Unicode)."""
_JOINED = re.compile("(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")
"""Zero-width joiners and non-joiners between two non-ASCII characters: many scripts and emoji need
them. Next to an ASCII character they only hide text, and are escaped."""
_REMEMBERED = 20_000
"""Maximum size of the cache for escaped characters."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MARKERS = "\u200e\u200f\u00ad"
"""Direction marks and soft hyphens: common in prose, and harmless because they reorder nothing."""


def visible(text: str, *, lines: bool = False) -> str:
    """Return `text` with invisible characters escaped; with `lines`, newlines and tabs are kept."""
    return _shown(text, "\n\t" if lines else "")


def readable(text: str) -> str:
    """Return prose with invisible and reordering characters escaped, unless a language needs them.

    Direction overrides and ANSI sequences become visible escapes. Joined emoji and Persian words
    are unchanged. Line endings become LF.
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
    """A lazily filled `str.translate` table of escapes; characters in `keep` map to themselves."""

    def __init__(self, keep: str) -> None:
        super().__init__()
        self._keep = keep

    def __missing__(self, code: int) -> str:
        if len(self) >= _REMEMBERED:
            self.clear()
        character = chr(code)
        category = unicodedata.category(character)
        hidden = category in _HIDDEN or (category == "Cn" and code in _RESERVED)
        hidden = hidden and character not in self._keep
        shown = self[code] = _escaped(character) if hidden else character
        return shown


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
