"""Detect the encoding of text files and the type of binary files.

Text is UTF-8 with or without a byte order mark, UTF-16 with one, or Latin-1 for everything else
that looks like text. Decoding and re-encoding produces the same bytes.
"""

from __future__ import annotations

import codecs
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.core.errors import ToolError

SAMPLE = 65_536
"""Number of bytes read to distinguish text from binary data."""
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_SIGNATURES = (
    (b"\x89PNG", "PNG image"),
    (b"\xff\xd8\xff", "JPEG image"),
    (b"GIF8", "GIF image"),
    (b"%PDF", "PDF document"),
    (b"PK\x03\x04", "zip archive"),
    (b"\x1f\x8b", "gzip data"),
    (b"PAR1", "Parquet table"),
    (b"\x89HDF", "HDF5 file"),
    (b"SQLite format 3", "SQLite database"),
    (b"\x93NUMPY", "NumPy array"),
    (b"\x80\x04", "Python pickle"),
    (b"\x80\x05", "Python pickle"),
    (b"\x7fELF", "ELF binary"),
)
_MUCH_CONTROL = 0.1
"""Proportion of control characters above which non-UTF-8 bytes count as binary."""
_BLANK = ord(" ")
"""The first byte after the ASCII control characters."""
_TEXT_CONTROL = frozenset(b"\t\n\r\f\b\x1b")


@dataclass(frozen=True, slots=True)
class Encoding:
    """A text file's encoding."""

    name: str = "utf-8"
    """The codec's name."""
    mark: bytes = b""
    """The byte order mark at the start of the file, or empty."""

    def encode(self, text: str) -> bytes:
        """Encode a text; raise ToolError if the encoding does not support a character."""
        try:
            return self.mark + text.encode(self.name)
        except UnicodeEncodeError as error:
            bad = text[error.start : error.start + 1]
            message = f"the character {bad!a} cannot be written in {self.name}; leave it out"
            raise ToolError(message) from error


def encoding_of(sample: bytes, *, whole: bool) -> Encoding | None:
    """Return the encoding of a file that begins with `sample`, or None if it is binary."""
    for mark, name in _MARKS:
        if sample.startswith(mark):
            return Encoding(name, mark)
    if b"\0" in sample:
        return None
    try:
        codecs.getincrementaldecoder("utf-8")().decode(sample, final=whole)
    except UnicodeDecodeError:
        control = sum(byte < _BLANK and byte not in _TEXT_CONTROL for byte in sample)
        return None if control > _MUCH_CONTROL * len(sample) else Encoding("latin-1")
    return Encoding()


def decode(data: bytes) -> tuple[str, Encoding] | None:
    """Return a whole file's text and its encoding, or None if it is binary."""
    encoding = encoding_of(data, whole=True)
    if encoding is None:
        return None
    try:
        return data[len(encoding.mark) :].decode(encoding.name), encoding
    except UnicodeDecodeError:  # truncated UTF-16, or other bytes after a UTF-8 mark
        return None


def kind_of(path: Path, sample: bytes) -> str:
    """Return a short description of a binary file, based on its first bytes or else its name."""
    for signature, kind in _SIGNATURES:
        if sample.startswith(signature):
            return kind
    return mimetypes.guess_type(path.name)[0] or "unknown type"
