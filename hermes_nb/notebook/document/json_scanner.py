"""Scan a JSON file value by value, with only a small part of the file in memory.

A value that is not needed is skipped with a regular expression, which is fast. Its position is
returned as a span, which can be parsed later or copied to another file byte for byte. So hundreds
of megabytes of outputs cost almost nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple, NoReturn

from hermes_nb.core.messages import Json

PIECE = 1_000_000
"""Bytes to read from the file at a time."""
LONGEST_KEY = 100_000

# Possessive quantifiers: without backtracking, matching is linear and needs no stack.
_SPACE = re.compile(rb"[ \t\r\n]*+")
_SCALAR = re.compile(rb"[-+.\w]*+")
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_FLAT = re.compile(rb'(?:[^"\[\]{}]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)


class Malformed(ValueError):
    """The bytes at `offset` are not valid JSON; the message says what was expected."""

    def __init__(self, message: str, offset: int) -> None:
        super().__init__(message)
        self.offset = offset


class Span(NamedTuple):
    """A value's position in its file, as byte offsets."""

    start: int
    """Offset of the first byte."""
    end: int
    """Offset after the last byte."""

    @property
    def size(self) -> int:
        return self.end - self.start


class Scanner:
    """A cursor over the values of a JSON file, from offset `start`; methods raise `Malformed`."""

    def __init__(self, file: BinaryIO, start: int = 0) -> None:
        self.file = file
        self._buffer = b""
        self._base = start
        self._at = 0

    @property
    def offset(self) -> int:
        return self._base + self._at

    def peek(self) -> bytes:
        """Return the first byte of the next value or delimiter; b"" at the end of the file."""
        return self._pass(_SPACE)

    def members(self) -> Iterator[str]:
        """Yield an object's keys; the caller must skip each value before the next key."""
        self._take(b"{", "an object")
        if self._takes(b"}"):
            return
        while True:
            if self.peek() != b'"':
                self._expected("a name in quotes")
            key = self.skip()
            if key.size > LONGEST_KEY:
                raise Malformed("a name without an end", key.start)
            self._take(b":", "a colon")
            yield str(self.load(key))
            if self._takes(b"}"):
                return
            self._take(b",", "a comma or a closing brace")

    def items(self) -> Iterator[None]:
        """Stop before each item of a list; the caller must skip the item."""
        self._take(b"[", "a list")
        if self._takes(b"]"):
            return
        while True:
            yield
            if self._takes(b"]"):
                return
            self._take(b",", "a comma or a closing bracket")

    def skip(self) -> Span:
        """Skip a value and return its position; inside, only brackets and strings are checked."""
        first = self.peek()
        start = self.offset
        if first == b'"':
            self._string()
        elif first in (b"{", b"["):
            self._nested()
        else:
            self._pass(_SCALAR)
            if self.offset == start:
                self._expected("a value")
        return Span(start, self.offset)

    def load(self, span: Span) -> Json:
        """Parse the value at a span; the cursor does not move."""
        data = self.raw(span)
        try:
            return json.loads(data.decode("utf-8", "surrogatepass"))
        except json.JSONDecodeError as error:
            before = error.doc[: error.pos].encode("utf-8", "surrogatepass")
            raise Malformed(error.msg, span.start + len(before)) from error
        except UnicodeDecodeError as error:
            raise Malformed("text that is not UTF-8", span.start + error.start) from error
        except RecursionError as error:
            raise Malformed("values nested too deeply", span.start) from error
        except ValueError as error:  # Python refuses integers of more than 4,300 digits
            raise Malformed("a number with too many digits", span.start) from error

    def raw(self, span: Span) -> bytes:
        """Return the bytes of a span; the cursor does not move."""
        start = span.start - self._base
        if start >= 0 and span.end - self._base <= len(self._buffer):
            return self._buffer[start : span.end - self._base]
        self.file.seek(span.start)
        return self.file.read(span.size)

    def begins(self, byte: bytes, message: str) -> None:
        if self.peek() != byte:
            raise Malformed(message, self.offset)

    def finish(self) -> None:
        if self.peek():
            self._expected("the end of the file")

    def _pass(self, pattern: re.Pattern[bytes]) -> bytes:
        """Skip everything that a pattern matches, reading more if needed; return the next byte."""
        while True:
            match = pattern.match(self._buffer, self._at)
            assert match is not None  # noqa: S101 - the patterns also match the empty string
            self._at = match.end()
            if self._at < len(self._buffer):
                return self._buffer[self._at : self._at + 1]
            if not self._more():
                return b""

    def _string(self) -> None:
        self._at += 1
        while (byte := self._pass(_STRING)) != b'"':
            if not (byte and self._more()):  # an escape may be split between two chunks
                self._ended("the end of a string")
        self._at += 1

    def _nested(self) -> None:
        depth = 0
        while True:
            byte = self._pass(_FLAT)
            if not byte:
                self._ended("a closing bracket or brace")
            if byte == b'"':  # the string continues in the next chunk
                self._string()
                continue
            self._at += 1
            depth += 1 if byte in b"[{" else -1
            if depth == 0:
                return

    def _take(self, byte: bytes, expected: str) -> None:
        if not self._takes(byte):
            self._expected(expected)

    def _takes(self, byte: bytes) -> bool:
        if self.peek() != byte:
            return False
        self._at += 1
        return True

    def _more(self) -> bool:
        """Append the next chunk to the unused rest of the buffer; return whether there was one."""
        self.file.seek(self._base + len(self._buffer))  # another cursor may have moved the file
        piece = self.file.read(PIECE)
        self._base += self._at
        self._buffer = self._buffer[self._at :] + piece
        self._at = 0
        return bool(piece)

    def _expected(self, what: str) -> NoReturn:
        if not (found := self.peek()):
            self._ended(what)
        raise Malformed(f"{what} expected, found {found!r}", self.offset)

    def _ended(self, what: str) -> NoReturn:
        raise Malformed(f"the file ends, and {what} is missing", self.offset)
