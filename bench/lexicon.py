"""Makes the table that the scan reads of its lists of words: `make lexicon`.

Words are folded as texts are, stems and the words that begin with them are put together, and every
word gets the number of its set of classes. A test holds that the table is what the lists say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from functools import cache

from hermes_nb.safety.language.lexicon import DISGUISED, LONGEST_STEM, TABLE, Table
from hermes_nb.safety.reading.normalise import fold

_UNSPACED = ("zh", "ja", "ko", "th")
_RESPELT: dict[str, dict[int, str]] = {
    "de": str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss"}),
    "pl": str.maketrans({"ł": "l"}),
    "tr": str.maketrans({"ı": "i"}),
    "vi": str.maketrans({"đ": "d"}),
}
"""How letters are written where a keyboard lacks them, which folding does not see to."""
_SHORTEST_RESPELT = 4
"""Shorter words without their marks are words of other languages."""
_Masks = dict[str, int]
"""Words, each with a bit for every class it is in."""


class _Lists:
    """The words of all languages, by the way they are found."""

    def __init__(self, languages: dict[str, dict[str, str]]) -> None:
        self.classes = sorted({name for classes in languages.values() for name in classes})
        self.words: _Masks = {}
        self.stems: _Masks = {}
        self.phrases: _Masks = {}
        self.unspaced: _Masks = {}
        bits = {name: 1 << number for number, name in enumerate(self.classes)}
        for language, classes in languages.items():
            for name, listed in classes.items():
                self._add(language, _plain(language, listed), bits[name])

    def _add(self, language: str, words: Iterable[str], bit: int) -> None:
        for word in words:
            if language in _UNSPACED:
                found = self.unspaced
            elif word.endswith("*"):
                found, word = self.stems, word[:-1]  # noqa: PLW2901 - the sign is no letter
            else:
                found = self.phrases if "_" in word else self.words
            found[word] = found.get(word, 0) | bit


def table(languages: dict[str, dict[str, str]]) -> Table:
    """Return the table of words that are listed by language and class."""
    lists = _Lists(languages)
    numbers: dict[int, int] = {}

    def number(mask: int) -> int:
        return numbers.setdefault(mask, len(numbers))

    stems = {stem: _with_prefixes(stem, lists.stems) for stem in lists.stems}
    known = {w: _with_prefixes(w, lists.stems) | mask for w, mask in lists.words.items()}
    phrases: dict[str, dict[str, int]] = {}
    for phrase, mask in lists.phrases.items():
        first, _, second = phrase.partition("_")
        phrases.setdefault(first, {})[second] = number(mask)
    unspaced: dict[str, dict[str, int]] = {}
    for word in sorted(lists.unspaced, key=lambda each: (-len(each), each)):
        # The longest word is the one that is found, so it is also what it begins with.
        mask = _with_prefixes(word, lists.unspaced)
        unspaced.setdefault(word[0], {})[word] = number(mask)
    return {
        "classes": lists.classes,
        "words": {word: number(mask) for word, mask in known.items()},
        "stems": {stem: number(mask) for stem, mask in stems.items()},
        "phrases": phrases,
        "unspaced": unspaced,
        "disguised": sorted(
            {w for name in DISGUISED for w in languages["en"][name].split() if w.isalpha()}
        ),
        "sets": [_members(mask) for mask in numbers],
    }


def _plain(language: str, listed: str) -> list[str]:
    """Return listed words as they are looked up."""
    words = listed.split()
    if table := _RESPELT.get(language):
        respelt = (word.translate(table) for word in listed.split())
        words += [word for word in respelt if len(word) >= _SHORTEST_RESPELT]
    return list(dict.fromkeys(fold(" ".join(words)).lower().split()))


def _with_prefixes(word: str, masks: _Masks) -> int:
    """Return the classes of a word and of all that it begins with."""
    found = 0
    for size in range(1, min(len(word), LONGEST_STEM) + 1):
        found |= masks.get(word[:size], 0)
    return found


def _members(mask: int) -> list[int]:
    return [number for number in range(mask.bit_length()) if mask >> number & 1]


_SECTION = re.compile(r"^\[([a-z]+)\]$|^([A-Z0-9]+) = \"([^\"\\]*)\"$", re.MULTILINE)


def languages(text: str) -> dict[str, dict[str, str]]:
    """Return the words by language and class: the little of TOML that the lexicon is written in."""
    found: dict[str, dict[str, str]] = {}
    classes: dict[str, str] = {}
    for match in _SECTION.finditer(text):
        language, name, words = match.groups()
        if language:
            classes = found[language] = {}
        else:
            classes[name] = words
    return found


@cache
def words() -> dict[str, dict[str, str]]:
    """Return the words of both files by language and class."""
    found: dict[str, dict[str, str]] = {}
    for name in ("lexicon.toml", "acts.toml"):
        text = TABLE.with_name(name).read_text(encoding="utf-8")
        for language, classes in languages(text).items():
            known = found.setdefault(language, {})
            for each, listed in classes.items():
                known[each] = f"{known[each]} {listed}" if each in known else listed
    return found


def main() -> None:
    """Write the table."""
    made = json.dumps(table(words()), ensure_ascii=False, separators=(",", ":"))
    TABLE.write_text(made + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
