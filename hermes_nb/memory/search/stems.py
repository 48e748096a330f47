"""Word stems, so that "painting" finds "painted" and "went" finds "go".

The suffix rules are those of Porter, "An algorithm for suffix stripping" (1980); what they cannot
reach, irregular verbs and plurals, is a table. A stem is a key and nothing to show.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

LONGEST = 40
"""Characters of the longest word that is stemmed; longer ones are names, hashes or noise."""


@cache
def listed() -> dict[str, Any]:
    """Return the words of `words.toml`."""
    return tomllib.loads(Path(__file__).with_name("words.toml").read_text(encoding="utf-8"))


@cache
def _irregular() -> dict[str, str]:
    table = {}
    for line in listed()["irregular"].replace("\n", "").split(";"):
        base, *forms = line.split()
        table.update(dict.fromkeys(forms, base))
    return table


def stem(word: str) -> str:
    """Return the stem of a lower-case word; what is not plain a-z comes back as it is."""
    word = _irregular().get(word, word)
    if not 2 < len(word) <= LONGEST or not word.isascii() or not word.isalpha():  # noqa: PLR2004
        return word
    number = 0
    while (number := _NEXT[number].get(word[-1:], _NONE)) < _NONE:
        endings, step = _STEPS[number]
        if word.endswith(endings):  # a tenth of what the step would take to find that out
            word = step(word)
        number += 1
    return word


# A y behind a consonant is a vowel, and the next y behind such a one none; nobody writes five.
_Y = "(?:(?<=[^aeiouy])|(?<=^y)|(?<=[aeiou]y)|(?<=[^aeiouy]yy)|(?<=^yyy)|(?<=[aeiou]yyy))y"
_C = f"(?:[^aeiouy]|(?!{_Y})y)"
_V = f"(?:[aeiou]|{_Y})"
_MEASURED = re.compile(f"^{_C}*(?:{_V}+{_C}+)")
_MEASURED_TWICE = re.compile(f"^{_C}*(?:{_V}+{_C}+){{2}}")
_MEASURED_ONCE = re.compile(f"^{_C}*{_V}+{_C}+{_V}*$")
_HAS_VOWEL = re.compile(_V)
_SHORT_END = re.compile(f"{_C}{_V}(?![wxy]){_C}$")
_DOUBLED = re.compile(r"([^aeioulsz])\1$")

_DOUBLE_SUFFIXES = {
    "ational": "ate",
    "tional": "tion",
    "enci": "ence",
    "anci": "ance",
    "izer": "ize",
    "bli": "ble",
    "alli": "al",
    "entli": "ent",
    "eli": "e",
    "ousli": "ous",
    "ization": "ize",
    "ation": "ate",
    "ator": "ate",
    "alism": "al",
    "iveness": "ive",
    "fulness": "ful",
    "ousness": "ous",
    "aliti": "al",
    "iviti": "ive",
    "biliti": "ble",
    "logi": "log",
}
_SUFFIXES = {
    "icate": "ic",
    "ative": "",
    "alize": "al",
    "iciti": "ic",
    "ical": "ic",
    "ful": "",
    "ness": "",
}
_LAST_SUFFIXES = (
    "ement ance ence able ible ment ant ent ism ate iti ous ive ize ion al er ic ou".split()
)
_LAST = re.compile(f"(?:{'|'.join(_LAST_SUFFIXES).replace('ion', '(?<=[st])ion')})$")
_DOUBLE_END = re.compile("(?:" + "|".join(sorted(_DOUBLE_SUFFIXES, key=len, reverse=True)) + ")$")
_SUFFIX_END = re.compile("(?:" + "|".join(sorted(_SUFFIXES, key=len, reverse=True)) + ")$")


def _plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _past(word: str) -> str:
    if word.endswith("eed") and word != "eed":  # SQLite wants a letter before it
        return word[:-1] if _MEASURED.match(word[:-3]) else word
    for ending in ("ed", "ing"):
        rest = word[: -len(ending)]
        if word.endswith(ending) and _HAS_VOWEL.search(rest):
            if rest.endswith(("at", "bl", "iz")):
                return rest + "e"
            if _DOUBLED.search(rest):
                return rest[:-1]
            if _MEASURED_ONCE.match(rest) and _SHORT_END.search(rest):
                return rest + "e"
            return rest
    return word


def _final_y(word: str) -> str:
    return word[:-1] + "i" if word.endswith("y") and _HAS_VOWEL.search(word[:-1]) else word


def _double_suffix(word: str) -> str:
    found = _DOUBLE_END.search(word)
    if found and _MEASURED.match(word[: found.start()]):
        return word[: found.start()] + _DOUBLE_SUFFIXES[found[0]]
    return word


def _suffix(word: str) -> str:
    found = _SUFFIX_END.search(word)
    if found and _MEASURED.match(word[: found.start()]):
        return word[: found.start()] + _SUFFIXES[found[0]]
    return word


def _last_suffix(word: str) -> str:
    found = _LAST.search(word)
    return word[: found.start()] if found and _MEASURED_TWICE.match(word[: found.start()]) else word


def _tidy(word: str) -> str:
    if word.endswith("e"):
        rest = word[:-1]
        if _MEASURED_TWICE.match(rest) or (
            _MEASURED.match(rest) and not (_MEASURED_ONCE.match(rest) and _SHORT_END.search(rest))
        ):
            word = rest
    return word[:-1] if word.endswith("ll") and _MEASURED_TWICE.match(word) else word


_STEPS: tuple[tuple[tuple[str, ...], Callable[[str], str]], ...] = (
    (("s",), _plural),
    (("ed", "ing"), _past),
    (("y",), _final_y),
    (tuple(_DOUBLE_SUFFIXES), _double_suffix),
    (tuple(_SUFFIXES), _suffix),
    (tuple(_LAST_SUFFIXES), _last_suffix),
    (("e", "ll"), _tidy),
)
"""The steps in their order, and how words end that they may change."""
_NONE = len(_STEPS)
_NEXT: tuple[dict[str, int], ...] = tuple(
    {
        ending[-1]: number
        for number in range(_NONE - 1, first - 1, -1)
        for ending in _STEPS[number][0]
    }
    for first in range(_NONE + 1)
)
"""From each step on, the first one that may change words with a last letter."""
