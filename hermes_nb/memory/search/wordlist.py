"""A look at all words of an index at once: which of them contain a text, and which are like it.

The words are kept as one string, a line each, that grows with the store. To search it takes half a
millisecond for 50,000 words, to read it the first time 15 ms. An index of the words' trigrams is
not faster, and took an eighth of what indexing messages costs.
"""

from __future__ import annotations

import sqlite3
from collections import Counter
from collections.abc import Iterator
from functools import lru_cache

from hermes_nb.memory.search.documents import MARK

GRAM = 3
"""Characters of the parts by which words are compared."""


class WordList:
    """The words that an index had when it was last read; see `word_list`."""

    def __init__(self) -> None:
        self._read = (0, "\n")
        """The number of the last word, and all up to it."""

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Read the words that were added since; all of them, if the file is an older one again."""
        last, text = self._read
        (greatest,) = connection.execute("SELECT max(id) FROM search_words").fetchone()
        if (greatest or 0) < last:
            last, text = self._read = 0, "\n"
        newest, found = connection.execute(
            "SELECT max(id), group_concat(word, char(10)) FROM search_words WHERE id > ?", (last,)
        ).fetchone()
        if newest is not None:
            self._read = newest, f"{text}{found}\n"

    def containing(self, part: str, *, most: int) -> list[str]:
        """Return up to `most` words that contain a text."""
        _, text = self._read
        found: list[str] = []
        for start in _lines(text, part):
            if len(found) == most:
                break
            found.append(text[start : text.index("\n", start)])
        return found

    def alike(self, word: str, *, most: int) -> list[tuple[str, int]]:
        """Return the `most` words that share most trigrams with one, and how many."""
        _, text = self._read
        shared = Counter[int]()
        for gram in grams(word):
            shared.update(_lines(text, gram))
        fewest = sorted(shared.values(), reverse=True)[:most][-1] if shared else 0
        found = [
            (text[start : text.index("\n", start)], count)
            for start, count in shared.items()
            if count >= fewest
        ]
        found.sort(key=lambda each: (-each[1], abs(len(each[0]) - len(word)), each[0]))
        return found[:most]


def word_list(connection: sqlite3.Connection, name: str) -> WordList:
    """Return the words of the index of a name, as they are now."""
    found = _list(name) if name else WordList()
    found.catch_up(connection)
    return found


@lru_cache(maxsize=4)
def _list(name: str) -> WordList:  # noqa: ARG001 - the key
    return WordList()


def grams(text: str) -> set[str]:
    """Return the trigrams of a word."""
    return {text[n : n + GRAM] for n in range(len(text) - GRAM + 1)}


def _lines(text: str, part: str) -> Iterator[int]:
    """Yield where each line begins that contains a text; those with marks are left out."""
    at = text.find(part)
    while at >= 0:
        start = text.rfind("\n", 0, at) + 1
        if text[start] != MARK:
            yield start
        at = text.find(part, text.index("\n", at))
