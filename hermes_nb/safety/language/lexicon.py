"""The words that injections are made of, in twenty languages, and how a disguised one is known.

The data is `lexicon.toml` and `acts.toml`: classes of words (verbs of ignoring, names for
instructions) by language. A word may be in several classes, and rules ask for classes, so that one
rule reads every language. Reading twenty thousand words takes as long as all else of a first scan,
so it is done beforehand: `make lexicon` writes what is read here, `lexicon.json`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Iterator
from functools import cache
from operator import ne
from pathlib import Path
from typing import TypedDict

from hermes_nb.safety.reading.lookalikes import ATBASH, CYRILLIC, LOOKALIKES, SIGNS_FOR_LETTERS

Classes = frozenset[str]
NONE: Classes = frozenset()

DISGUISED = ("IGNORE", "PRIOR", "RULES", "SYSTEM", "PROMPT", "UNRESTRICTED", "REVEAL", "YOUR")
"""The classes whose English words are recognised when misspelt or glued together."""
_TELLING = frozenset({"IGNORE", "PRIOR", "RULES", "SYSTEM", "PROMPT"})
_SHORTEST_TELLING = 5
_SHORTEST_STEM = 3
LONGEST_STEM = 20
"""Letters of a stem at most; no word of a lexicon needs more to be told apart."""
_SHORTEST_MISSPELT = 6
_JUMBLED = 6
"""How many letters of a jumbled word may be out of place."""
LONGEST_WORD = 40
"""Letters of a word that may be another one in disguise."""
_SHORTEST__GLUED = 12
_GLUED = ("ignor", "disregard", "forget", "overrid", "instruct", "prompt", "previous", "unrestrict")
"""What a run of letters has to contain to be worth taking apart."""


class Table(TypedDict):
    """The lexicon as `make lexicon` writes it: every word with the number of its set of classes."""

    classes: list[str]
    sets: list[list[int]]
    words: dict[str, int]
    stems: dict[str, int]
    phrases: dict[str, dict[str, int]]
    unspaced: dict[str, dict[str, int]]
    disguised: list[str]


class Lexicon:
    """Every word with its classes; see `lexicon`."""

    def __init__(self, table: Table) -> None:
        """Take the words from the table that is made of the lists."""
        names = table["classes"]
        self._sets = [frozenset(map(names.__getitem__, each)) for each in table["sets"]]
        self.listed = table["words"]
        """Every word, with the number of its set of classes."""
        self.stems = table["stems"]
        """What listed words begin with that may have any ending, likewise."""
        self.pairs = {
            first: {second: self._sets[number] for second, number in found.items()}
            for first, found in table["phrases"].items()
        }
        """Phrases of two words: the second ones by the first."""
        sizes: dict[str, set[int]] = {}
        for stem in self.stems:
            sizes.setdefault(stem[:_SHORTEST_STEM], set()).add(len(stem))
        self._starts = {head: sorted(found, reverse=True) for head, found in sizes.items()}
        """The lengths of stems, the longest first, by how they begin."""
        self._inside = {
            first: (sorted(set(map(len, found)), reverse=True), found)
            for first, found in table["unspaced"].items()
        }
        self._first = re.compile(f"[{''.join(self._inside)}]")
        self._plain = frozenset(table["disguised"])
        self.in_pairs = frozenset(self.pairs).union(*self.pairs.values())
        self.similar: dict[tuple[str, str, int], list[str]] = {}
        """Words that may be meant by a misspelt one, by its ends and its length."""
        for word in sorted(self._plain):
            if len(word) >= _SHORTEST_MISSPELT:
                for size in range(len(word) - 1, len(word) + 2):
                    self.similar.setdefault((word[0], word[-1], size), []).append(word)
        ciphers: dict[str, int] = {}
        for disguise, word in _ciphers(self.telling()):
            if disguise not in ciphers:
                ciphers[disguise] = len(self._sets)
                self._sets.append(frozenset({disguise}))
            self.listed.setdefault(word, ciphers[disguise])

    def telling(self) -> frozenset[str]:
        """Return the English words that most injections use, without the short and common ones."""
        return frozenset(
            word
            for word in self._plain
            if len(word) >= _SHORTEST_TELLING and self._sets[self.listed[word]] & _TELLING
        )

    def sets(self) -> set[Classes]:
        """Return every set of classes that a word can have."""
        return {*self._sets, *map(self.own_classes, self.in_pairs)}

    def classes(self, word: str) -> Classes:
        """Return the classes of a plain lower-case word."""
        found = self._listed(word)
        if not found and "\u0621" <= word[:1] <= "\u064a" and len(word) > _SHORTEST_STEM:
            bare = _PROCLITIC.sub("", word)
            found = self._listed(bare) if len(bare) >= _SHORTEST_STEM else found
        return found

    def _listed(self, word: str) -> Classes:
        number = self.listed.get(word)
        if number is not None:
            return self._sets[number]
        for size in self._starts.get(word[:_SHORTEST_STEM], ()):
            if (number := self.stems.get(word[:size])) is not None:
                return self._sets[number]
        return NONE

    def meaning(self, word: str) -> Classes:
        """Return the classes of a word, whatever it is disguised as."""
        return self.classes(word) or self.undisguised(word)

    def own_classes(self, word: str) -> Classes:
        """Return the classes of a word that may belong to a phrase, and one of its own."""
        return self.classes(word) | {f"={word}"}

    def undisguised(self, word: str) -> Classes:
        """Return the classes of a word written with lookalikes, "leet" signs or a misspelling."""
        if len(word) > LONGEST_WORD or word.isdigit():
            return NONE
        found = NONE
        if not word.isascii():
            found = self.classes(word.translate(CYRILLIC)) if _MIXED.search(word) else NONE
            word = word.translate(LOOKALIKES)
            found = found or self.classes(word)
        if not (found or word.isalpha()) and _LEET.search(word) and _LETTER.search(word):
            for signs in SIGNS_FOR_LETTERS:
                found = found or self.classes(word.translate(signs))
        if not found and len(word) >= _SHORTEST_MISSPELT - 1:
            for meant in self.similar.get((word[0], word[-1], len(word)), ()):
                if _misspelt(word, meant):
                    return self.classes(meant)
        return found

    def inside(self, run: str) -> Iterator[tuple[int, int, Classes]]:
        """Yield start, end and classes of the words in a run of a script without spaces."""
        done = 0
        for first in self._first.finditer(run):
            start = first.start()
            if start < done:
                continue
            sizes, words = self._inside[first[0]]
            for size in sizes:
                word = run[start : start + size]  # shorter than that at the end
                if (number := words.get(word)) is not None:
                    done = start + len(word)
                    yield start, done, self._sets[number]
                    break

    def unglued(self, word: str) -> list[tuple[int, int, Classes]]:
        """Return the English words that make up a long run of letters, if they make up most of it.

        This reads `ignoreallpreviousinstructions`, and what is left of spaced-out letters.
        """
        if len(word) < _SHORTEST__GLUED or not any(key in word for key in _GLUED):
            return []
        found: list[tuple[int, int, Classes]] = []
        index = covered = 0
        while index < len(word):
            size = self._longest_at(word, index)
            if size:
                found.append((index, index + size, self.classes(word[index : index + size])))
                covered += size
            index += size or 1
        return found if len(found) > 1 and covered * 10 >= len(word) * 7 else []

    def _longest_at(self, word: str, index: int) -> int:
        for size in range(min(LONGEST_STEM, len(word) - index), 1, -1):
            if word[index : index + size] in self.listed:
                return size
        return 0


_MIXED = re.compile("[a-z].*[\u0400-\u04ff]|[\u0400-\u04ff].*[a-z]")
_LETTER = re.compile(r"[^\W\d_]")
_LEET = re.compile("[01345789@$!+€|]")
"""Signs that stand for letters (`SIGNS_FOR_LETTERS`); without one a word means what it says."""


def _misspelt(word: str, meant: str) -> bool:
    """Say whether `word` is `meant` with inner letters jumbled, or one wrong, missing or added."""
    if len(word) == len(meant):
        wrong = sum(map(ne, word, meant))
        return wrong <= 1 or (wrong <= _JUMBLED and sorted(word) == sorted(meant))
    shorter, longer = sorted((word, meant), key=len)
    index = next(i for i, letter in enumerate(longer) if letter != shorter[i : i + 1])
    return shorter[index:] == longer[index + 1 :]


def _ciphers(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Yield each word's form in each simple cipher, with the class that names the cipher."""
    for word in words:
        yield "ROT13", codecs.encode(word, "rot13")
        yield "ATBASH", word.translate(ATBASH)
        yield "REVERSED", word[::-1]


_PROCLITIC = re.compile(
    "^[\u0648\u0641]?[\u0628\u0643\u0644]?(?:\u0627\u0644)?(?:[\u064a\u062a\u0646\u0633](?=.{3}))?"
)
"""What Arabic writes in one word with the next: and, with, for, the, and the person of a verb."""


@cache
def lexicon() -> Lexicon:
    """Return the lexicon, read once."""
    return Lexicon(json.loads(TABLE.read_text(encoding="utf-8")))


TABLE = Path(__file__).with_name("lexicon.json")
