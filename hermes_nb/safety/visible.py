r"""Makes text show what it is: what a terminal or a browser would act on becomes its escape.

Control characters, ANSI sequences, right-to-left overrides, zero-width and tag characters come out
as `\x1b`, `\u202e` and so on; everything else, every script and emoji, stays as it is.
"""

from __future__ import annotations

import unicodedata

_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode's categories of characters that have no shape of their own."""


def visible(text: str, *, lines: bool = False) -> str:
    """Return `text` with its invisible characters escaped; `lines` keeps line ends and tabs."""
    if text.isascii() and text.isprintable():
        return text
    keep = "\n\t" if lines else ""
    return "".join(
        _escape(character)
        if unicodedata.category(character) in _HIDDEN and character not in keep
        else character
        for character in text
    )


def _escape(character: str) -> str:
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}
    if character in short:
        return short[character]
    code = ord(character)
    if code <= 0xFF:  # noqa: PLR2004 - two hexadecimal digits
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"  # noqa: PLR2004 - four of them
