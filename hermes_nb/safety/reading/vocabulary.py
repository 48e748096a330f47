"""A text as what stands between its spaces, and each of those once.

Most texts repeat themselves: what is looked for in all of their words is looked for in their
vocabulary, which is a third as long.
"""

from __future__ import annotations

import re
from functools import cached_property, lru_cache

_LONGEST_CHUNK = 300
"""Longer runs without a space (data, minified code) are read in pieces of this size."""

_UNSPACED = (
    "\u0e00-\u0e7f\u1100-\u11ff\u2e80-\u2fff\u3001-\u9fff\uac00-\ud7af\uf900-\ufaff"
    "\U00020000-\U0003ffff"
)
_CHUNK = re.compile(rf"[{_UNSPACED}]{{1,{_LONGEST_CHUNK}}}|[^\s{_UNSPACED}]{{1,{_LONGEST_CHUNK}}}")
_EMPTY_LINE = re.compile(r"\n[ \t]*\n\s*")
_PIECE = re.compile(f"{_EMPTY_LINE.pattern}|{_CHUNK.pattern}")
SCRIPT = re.compile(f"[{_UNSPACED}]")
"""A letter of the scripts that are written without spaces."""
UNSPACED = "\u0e00"
"""The first of these letters."""
EMPTY = "\n"
"""The chunk that empty lines are."""


class Vocabulary:
    """The chunks of a text."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._cut = not text.isascii() and SCRIPT.search(text) is not None
        if not self._cut:
            first, *rest = _EMPTY_LINE.split(text)
            chunks = first.split()
            for paragraph in rest:
                chunks.append(EMPTY)
                chunks += paragraph.split()
            self._cut = max(map(len, chunks), default=0) > _LONGEST_CHUNK
        if self._cut:
            chunks = [EMPTY if piece[0] == "\n" else piece for piece in _PIECE.findall(text)]
        self.chunks = chunks
        """What stands between spaces, cut where the script changes or where it is very long."""
        self.distinct = dict.fromkeys(chunks)
        """The chunks, each once, in order."""
        self._asked: dict[str, bool] = {}

    @cached_property
    def places(self) -> list[int]:
        """Where each chunk begins: it is the first of what is left of the text that is like it."""
        found: list[int] = []
        find = self._text.find
        at = 0
        for chunk in self.chunks:
            if chunk == EMPTY and (empty := _EMPTY_LINE.search(self._text, at)):
                at = empty.start()
            else:
                at = find(chunk, at)
            found.append(at)
            at += len(chunk)
        return found

    @cached_property
    def _together(self) -> str:
        """All chunks once, or the text itself where they are cut."""
        return self._text if self._cut else "\n".join(self.distinct)

    def has(self, part: str) -> bool:
        """Say whether something is in the text, as `in` does; it has no line's end."""
        known = self._asked.get(part)
        if known is None:
            known = part in self._together or (" " in part and part in self._text)
            self._asked[part] = known
        return known


vocabulary = lru_cache(maxsize=4)(Vocabulary)
"""The vocabulary of a text, which several ask for one after the other."""
