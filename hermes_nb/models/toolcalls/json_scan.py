"""Follow a JSON value as it streams in, and notice at once when it cannot be one.

Lenient where models are sloppy (single quotes, bare words, trailing commas), so that a broken call
is still seen as a call; strict enough that prose is rejected at its first word. Every character is
looked at once, however the text is cut.
"""

from __future__ import annotations

import re
from enum import Enum

_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[^\s{}\[\]:,\"'<>`]+")
_STRING_END = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_LONGEST_KEPT = 200
"""Characters of a key or name that are remembered."""


class Expect(Enum):
    """What may come next, outside a string."""

    KEY = "a key, or the end of the object"
    COLON = "a colon"
    VALUE = "a value, or the end of the array"
    COMMA = "a comma, or the end"


class JsonScan:
    """One object or array. `keys` and `name` are those of the outermost object, as they are read.

    `rejected` says that it cannot be JSON, `complete` that its last bracket has closed.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.name: str | None = None
        self.complete = False
        self.rejected = False
        self._stack: list[str] = []
        self._expect = Expect.VALUE
        self._quote = ""
        self._escaped = False
        self._token = ""
        self._key = ""
        self._in_word = False

    def feed(self, text: str, position: int) -> int:
        """Read on from `position`; return where it stopped: at the end, or behind the value."""
        while position < len(text) and not (self.complete or self.rejected):
            position = (
                self._string(text, position) if self._quote else self._outside(text, position)
            )
        return position

    def _string(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            self._remember(text[position])
            return position + 1
        found = _STRING_END[self._quote].search(text, position)
        end = found.start() if found else len(text)
        self._remember(text[position : min(end, position + _LONGEST_KEPT)])
        if found is None:
            return end
        if found[0] == "\\":
            self._escaped = True
        else:
            self._quote = ""
            self._token_ends(quoted=True)
        return end + 1

    def _outside(self, text: str, position: int) -> int:
        if space := _SPACE.match(text, position):
            self._word_ends()
            return space.end()
        if word := _WORD.match(text, position):
            return self._word(word[0], word.end())
        self._word_ends()
        mark = text[position]
        if mark in "\"'":
            self._quoted(mark)
        elif mark in "{[":
            self._open(mark)
        elif mark in "}]":
            self._close(mark)
        elif mark == ":":
            self._move(Expect.COLON, Expect.VALUE)
        elif mark == ",":
            inside = Expect.KEY if self._stack[-1:] == ["{"] else Expect.VALUE
            self._move(Expect.COMMA, inside)
        else:
            self.rejected = True
        return position + 1

    def _move(self, expected: Expect, following: Expect) -> None:
        if self._expect is not expected:
            self.rejected = True
        self._expect = following

    def _quoted(self, mark: str) -> None:
        if self._expect not in (Expect.KEY, Expect.VALUE):
            self.rejected = True
        self._quote, self._token = mark, ""

    def _word(self, word: str, end: int) -> int:
        """Take a bare word; several in a row are a value without quotes, never a key."""
        if self._in_word:
            self._remember(word)
        elif self._expect is Expect.COLON or not self._stack:
            self.rejected = True
        else:
            self._in_word, self._token = True, word[:_LONGEST_KEPT]
        return end

    def _word_ends(self) -> None:
        if self._in_word:
            self._in_word = False
            if self._expect is not Expect.COMMA:
                self._token_ends(quoted=False)

    def _token_ends(self, *, quoted: bool) -> None:
        """Take the string or word that is whole now as a key or a value."""
        if self._expect is Expect.KEY:
            self._expect = Expect.COLON
            if len(self._stack) == 1:
                self._key = self._token
                self.keys.append(self._token)
            return
        self._expect = Expect.COMMA
        if quoted and self._stack == ["{"] and self._key == "name" and self.name is None:
            self.name = self._token

    def _open(self, mark: str) -> None:
        if self._expect is not Expect.VALUE:
            self.rejected = True
        self._stack.append(mark)
        self._expect = Expect.KEY if mark == "{" else Expect.VALUE

    def _close(self, mark: str) -> None:
        opener = "{" if mark == "}" else "["
        ends = (Expect.COMMA, Expect.KEY if mark == "}" else Expect.VALUE)
        if not self._stack or self._stack.pop() != opener or self._expect not in ends:
            self.rejected = True
            return
        self._expect = Expect.COMMA
        self.complete = not self._stack

    def _remember(self, text: str) -> None:
        if len(self._token) < _LONGEST_KEPT:
            self._token += text
