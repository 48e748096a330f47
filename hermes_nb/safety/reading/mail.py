"""What mail writes in ASCII for other text: quoted-printable and encoded words (RFC 2045, 2047)."""

from __future__ import annotations

import binascii
import re

from hermes_nb.safety.reading.patterns import lowered

_MAIL = re.compile(
    r"(=(?:\?[A-Za-z0-9_-]{2,20}\?[BbQq]\?[!->@-~]{1,400}\?=(?:\s{1,4}(?==\?))?"
    r"|[0-9A-F]{2}(?:=\r?\n)?(?:=[0-9A-F]{2}(?:=\r?\n)?){5,}))"
)
_MAIL_BODY = re.compile(r"(=(?:[0-9A-F]{2}(?:=[0-9A-F]{2})*|\r?\n))")
"""What stands for itself anywhere, and what does so in a mail that says it is quoted-printable."""
_SAYS_SO = re.compile(r"(?i)transfer-encoding:\s{0,3}quoted-printable")


def encoded_in(text: str) -> re.Pattern[str]:
    """Return what finds the parts of a text that are encoded like that."""
    says_so = "quoted-printable" in lowered(text) and _SAYS_SO.search(text)
    return _MAIL_BODY if says_so else _MAIL


def meaning(written: str) -> str:
    """Return what an encoded word, or bytes in quoted-printable, stand for in mail."""
    if written[1] in "\r\n":
        return ""  # a line that goes on
    if written[1] != "?":
        return _bytes(written).decode("utf-8", "replace")
    _, charset, form, said, _ = written.split("?", 4)
    try:
        if form in "bB":
            return binascii.a2b_base64(said + "=" * (-len(said) % 4)).decode(charset, "replace")
        spaced = said.replace("_", " ")
        return _CODES.sub(lambda codes: _bytes(codes[0]).decode(charset, "replace"), spaced)
    except (ValueError, LookupError):
        return written  # no mail program would show more


_CODES = re.compile(r"(?:=[0-9A-Fa-f]{2})+")


def _bytes(codes: str) -> bytes:
    return bytes.fromhex("".join(codes.replace("=", "").split()))
