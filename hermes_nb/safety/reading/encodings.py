"""Text that is written as something else: encoded, spelled out letter by letter, or backwards.

`decoded` finds such runs and returns what they say. Every form but the ciphers needs at least as
much room as its text, and ciphers are undone once, so looking again at what came out ends soon.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from hermes_nb.safety.reading.lookalikes import ATBASH


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a run says, and where it stands."""

    start: int
    end: int
    text: str


_SPELLED = re.compile(r"(?<![^\W_])[^\W\d_](?:[ .\-_*·•,/|\n]{1,6}[^\W\d_](?![^\W_])){4,}")
_GAP = re.compile(r"[ .\-_*·•,/|\n]{1,6}")
_BASE64 = re.compile(
    r"(?<![\w+/-])(?:[A-Za-z0-9+/_-]{32,}+[ \t]?\r?\n[ \t>#*\"']{0,8}"
    r"(?=[A-Za-z0-9+/_-]{14}))*+[A-Za-z0-9+/_-]{14,}+={0,2}"
)
_SPACED = re.compile(
    r"[0-9a-fA-F\\](?<![\w.].)(?:(?<=[0\\])x[0-9a-fA-F]{2,8}|(?<!\\)[0-9a-fA-F]{1,7})"
    r"(?:[\s,:]{1,2}(?:0x|\\x)?[0-9a-fA-F]{2,8}\b){4,}+"
)
"""Codes of characters, one after the other: hexadecimal, binary or decimal."""

_SMALLEST = 8
"""Fewer decoded bytes than this hold no order."""
_LEAST_LETTERS = 0.6
"""How much of a text is letters and spaces; of random bytes that are valid UTF-8, far less."""


_BARE = {ord("-"): "+", ord("_"): "/", **dict.fromkeys(map(ord, " \t\r\n>#*\"'="))}
"""What stands for something else in base64 for URLs, and what may stand where a run was wrapped."""


def decoded(text: str) -> Iterator[Decoded]:
    """Yield what the encoded runs of a text say; `text` is normalised but keeps its case."""
    for match in _SPELLED.finditer(text):
        yield Decoded(match.start(), match.end(), _spelled(match[0]))
    for pattern, readings in ((_BASE64, _unbroken), (_SPACED, _codes)):
        for match in pattern.finditer(text):
            if said := next(filter(None, map(_as_text, readings(match[0]))), ""):
                yield Decoded(match.start(), match.end(), said)


def _spelled(run: str) -> str:
    """Join spelled-out letters; where some gaps are wider than others they part the words."""
    gaps = set(_GAP.findall(run))
    if len(gaps) == 1:
        return _GAP.sub("", run)
    usual = min(gaps, key=lambda gap: (len(gap), gap != " "))
    return _GAP.sub(lambda m: "" if m[0] == usual else " ", run)


def _base64(run: str) -> Iterator[bytes]:
    """Yield the readings of a run, of which up to three characters at the start may be foreign."""
    bare = run if run.isalnum() else run.translate(_BARE)
    for skipped in range(4 if len(bare) >= 24 else 1):  # noqa: PLR2004 - short ones are often names
        usable = bare[skipped : skipped + (len(bare) - skipped) // 4 * 4]
        rest = bare[skipped + len(usable) :]
        if len(rest) > 1:
            usable += rest + "=" * (4 - len(rest))
        yield binascii.a2b_base64(usable)


def _unbroken(run: str) -> Iterator[bytes]:
    """Yield the readings of a run of letters and digits: base64, hexadecimal, base32."""
    if _ALL_HEX.fullmatch(run):
        yield binascii.unhexlify(run[: len(run) // 2 * 2])
    if _ALL_BASE32.fullmatch(run):
        bare = run.rstrip("=")
        yield base64.b32decode(bare[: len(bare) // 8 * 8])
    if run.lower() != run != run.upper():
        yield from _base64(run)


_ALL_HEX = re.compile(r"[0-9a-fA-F]{16,}+")
_ALL_BASE32 = re.compile(r"[A-Z2-7]{16,}+={0,6}")


def _codes(run: str) -> Iterator[bytes]:
    """Yield the readings of a row of character codes."""
    codes = _CODE.findall(run)
    if all(len(code) == 8 and not code.strip("01") for code in codes):  # noqa: PLR2004 - bits
        yield bytes(int(code, 2) for code in codes)
    elif all(code.isdigit() and int(code) < 0x80 for code in codes):  # noqa: PLR2004 - ASCII
        yield bytes(map(int, codes))
    if all(len(code) % 2 == 0 for code in codes):
        yield bytes.fromhex("".join(codes))


_CODE = re.compile(r"(?<![0-9a-fA-Fx])(?:0x|\\x)?([0-9a-fA-F]{2,8})")


_NO_TEXT = re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f\xc0\xc1\xf5-\xff]")
"""Bytes that no text has in UTF-8; what is none at all mostly holds one early on."""
_LOOKED_AT = 200
_CUT = 3
"""Bytes of a character that may be missing at the end."""


def _as_text(data: bytes) -> str:
    """Return the text that bytes are, or "" if they are none."""
    if len(data) < _SMALLEST:
        return ""
    wide = b"\0" in data and data[1:40:2].count(0) > len(data[1:40:2]) * 0.9
    encoding = "utf-16-le" if wide else "utf-8"
    if encoding == "utf-8" and _NO_TEXT.search(data, 0, min(len(data) - _CUT, _LOOKED_AT)):
        return ""
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        if error.start < len(data) - _CUT:
            return ""
        text = data[: error.start].decode(encoding, "ignore")
    letters = sum(map(str.isalpha, text)) + text.count(" ")
    alphabet = text.isprintable() or text.replace("\n", "").replace("\t", "").isprintable()
    return text if alphabet and letters >= len(text) * _LEAST_LETTERS else ""


_LONGEST_LINE = 1_000


def deciphered(text: str, cipher: str, places: Iterable[int]) -> Iterator[Decoded]:
    """Yield the lines around `places` with their letters exchanged or in the other direction."""
    done = -1
    for place in places:
        if place < done:
            continue
        start = text.rfind("\n", max(0, place - _LONGEST_LINE), place) + 1 or max(0, place - 200)
        end = text.find("\n", place, place + _LONGEST_LINE)
        done = end if end != -1 else min(len(text), place + _LONGEST_LINE)
        for said in _readings(text[start:done], cipher):
            yield Decoded(start, done, said)


CIPHERS = ("ROT13", "ATBASH", "REVERSED")


def _readings(line: str, cipher: str) -> tuple[str, ...]:
    if cipher == "ROT13":
        return (codecs.encode(line, "rot13"),)
    if cipher == "ATBASH":
        return (line.translate(ATBASH),)
    return line[::-1], " ".join(word[::-1] for word in line.split())
