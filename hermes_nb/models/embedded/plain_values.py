"""Python's way of showing values, put so that a very small model reads it right.

It copies what it sees digit by digit, and every digit is a token: `np.float64(200.91520467836258)`
becomes `200.9152`, a pandas Series one line of `label: value` pairs.
"""

from __future__ import annotations

import re

_EMPTY = re.compile(r"(?:np\.float64\()?nan\)?|Empty DataFrame\n.*|Series\(\[\], .*", re.DOTALL)
_SCALAR = re.compile(r"\bnp\.\w+\(([^()]*)\)")
_LONG = re.compile(r"(?<!\d)-?\d++\.\d{5,}")
_FOOTER = re.compile(r"(?:Name: .*, |Length: \d+, )*dtype: \S+")
_PAIR = re.compile(r"(\S+(?: \S+)*)\s{2,}(\S+)")


def plain(text: str) -> str:
    """Return a shown value without NumPy's wrappers, needless digits and columns of spaces."""
    if _EMPTY.fullmatch(text):
        return "nothing, no row matches"
    text = _LONG.sub(_rounded, _SCALAR.sub(r"\1", text))
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    if len(lines) < 2 or not _FOOTER.fullmatch(lines[-1]):  # noqa: PLR2004 - one line is no Series
        return text
    pairs = [_PAIR.fullmatch(line) for line in lines[:-1]]
    if pairs[0] is None:
        pairs = pairs[1:]  # the index's name
    found = [f"{pair[1]}: {pair[2]}" for pair in pairs if pair]
    return ", ".join(found) if found and len(found) == len(pairs) else text


def _rounded(number: re.Match[str]) -> str:
    """Return four decimals, or of a small number four digits."""
    value = float(number[0])
    return repr(round(value, 4)) if abs(value) >= 1 else f"{value:.4g}"
