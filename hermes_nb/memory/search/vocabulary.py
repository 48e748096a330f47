"""The words of an index: how their list grows, which contain a text, and which are like it.

Only words that a process meets for the first time are looked up: asking costs more than indexing
does. To search, the words are kept as one string, a line each, that grows with the store. To look
through it takes half a millisecond for 50,000 words, to read it the first time 15 ms. (An index of
the words' trigrams is not faster, and `fts5vocab` reads all of the index.)
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from hermes_nb.memory.search.documents import MARK
from hermes_nb.storage import words

_MOST_KNOWN = 50_000
GRAM = 3
"""Characters of the parts by which words are compared."""


class Vocabulary:
    """The list of words of the index of a name, as one transaction adds to it."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._known = known(name)
        witness = "SELECT 1 FROM search_words WHERE id = ? AND word = ?"
        if self._known.last and not connection.execute(witness, self._known.last).fetchone():
            self._known.forms.clear()  # the transaction that added the words was rolled back

    def add(self, forms: set[str]) -> None:
        """Put the words among the terms of some forms into the list."""
        new = forms - self._known.forms
        terms = {term for form in new for term in words.of_form(form)}
        # Marks, and what a part may be asked of.
        kept = [t for t in terms if t[0] == MARK or (len(t) > GRAM and t.isalpha())]
        added = self._connection.execute(
            "INSERT OR IGNORE INTO search_words (word) SELECT value FROM json_each(?)",
            (json.dumps(sorted(kept)),),
        ).rowcount
        if added:
            query = "SELECT id, word FROM search_words ORDER BY id DESC LIMIT 1"
            self._known.last = tuple(self._connection.execute(query).fetchone())
        if len(self._known.forms) < _MOST_KNOWN:
            self._known.forms |= new


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
    found = known(name).words if name else WordList()
    found.catch_up(connection)
    return found


@dataclass(slots=True)
class Known:
    """What a process knows of the index of a name.

    `forms` are those whose words the index has, or that have none; `last` is the number and the
    word of the last one that was added from here. `common` are expressions that the index has
    often: how often, and its last document then.
    """

    name: str
    forms: set[str] = field(default_factory=set)
    last: tuple[int, str] | None = None
    words: WordList = field(default_factory=WordList)
    common: dict[str, tuple[int, int]] = field(default_factory=dict)


known = lru_cache(maxsize=4)(Known)


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
