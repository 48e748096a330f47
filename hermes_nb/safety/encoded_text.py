"""Decode passages that are spelled letter by letter or encoded as base64 or hexadecimal.

Each encoding is at least as long as its text, so repeated decoding ends soon.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Iterator
from dataclasses import dataclass

from hermes_nb.safety.patterns import in_time


@dataclass(frozen=True, slots=True)
class Decoded:
    """A run (a passage without plain words) together with its decoded text."""

    start: int
    """Index of the run's first character."""
    end: int
    """Index after the run's last character."""
    text: str
    """The decoded text."""


_SPELLED = re.compile(r"(?<![^\W_])[^\W\d_](?:[ .\-_*·•,/|\n]{1,6}[^\W\d_](?![^\W_])){4,}")
_GAP = re.compile(r"[ .\-_*·•,/|\n]{1,6}")
_RUN = re.compile(
    r"(?<![\w+/-])(?:[A-Za-z0-9+/_-]{32,}+[ \t]?\r?\n[ \t>#*\"']{0,8}"
    r"(?=[A-Za-z0-9+/_-]{14}))*+[A-Za-z0-9+/_-]{14,}+={0,2}"
)
_ALL_HEX = re.compile(r"[0-9a-fA-F]{16,}+")
_BARE = {ord("-"): "+", ord("_"): "/", **dict.fromkeys(map(ord, " \t\r\n>#*\"'="))}
"""Replacements for URL-safe base64, and line-wrapping characters to drop."""


def decoded(text: str) -> Iterator[Decoded]:
    """Yield the decoded runs of a text. `text` is normalised but keeps its case."""
    for match in _SPELLED.finditer(text):
        in_time()
        yield Decoded(match.start(), match.end(), _spelled(match[0]))
    for match in _RUN.finditer(text):
        in_time()
        if said := next(filter(None, map(_as_text, _readings(match[0]))), ""):
            yield Decoded(match.start(), match.end(), said)


def _spelled(run: str) -> str:
    """Join spelled-out letters. If the gaps differ, the wider ones separate words."""
    gaps = set(_GAP.findall(run))
    usual = min(gaps, key=lambda gap: (len(gap), gap != " "))
    return _GAP.sub(lambda m: "" if m[0] == usual or len(gaps) == 1 else " ", run)


def _readings(run: str) -> Iterator[bytes]:
    """Yield possible decodings, hexadecimal and base64, of a run of letters and digits."""
    if _ALL_HEX.fullmatch(run):
        yield binascii.unhexlify(run[: len(run) // 2 * 2])
    if run.lower() != run != run.upper():
        bare = run if run.isalnum() else run.translate(_BARE)
        for skipped in range(4 if len(bare) >= 24 else 1):
            usable = bare[skipped : skipped + (len(bare) - skipped) // 4 * 4]
            rest = bare[skipped + len(usable) :]
            if len(rest) > 1:
                usable += rest + "=" * (4 - len(rest))
            yield binascii.a2b_base64(usable)


_NO_TEXT = re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f\xc0\xc1\xf5-\xff]")
"""Bytes that do not occur in UTF-8 text. Binary data usually contains one near the start."""
_LOOKED_AT = 200
"""Number of bytes to search for those in `_NO_TEXT`."""
_SMALLEST = 8
"""Minimum length in bytes for decoded text to contain an instruction."""
_CUT = 3
"""Maximum length in bytes of an incomplete final character."""
_LEAST_LETTERS = 0.6
"""Minimum proportion of letters and spaces. Random bytes that are valid UTF-8 have far fewer."""


def _as_text(data: bytes) -> str:
    """Return the bytes as text, or "" if they are binary."""
    if len(data) < _SMALLEST:
        return ""
    wide = b"\0" in data and data[1:40:2].count(0) > len(data[1:40:2]) * 0.9
    encoding = "utf-16-le" if wide else "utf-8"
    if not wide and _NO_TEXT.search(data, 0, min(len(data) - _CUT, _LOOKED_AT)):
        return ""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if error.start < len(data) - _CUT:
            return ""
        text = data[: error.start].decode(encoding, "ignore")
    letters = sum(map(str.isalpha, text)) + text.count(" ")
    printable = text.replace("\n", "").replace("\t", "").isprintable()
    return text if printable and letters >= len(text) * _LEAST_LETTERS else ""
