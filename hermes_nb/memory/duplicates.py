"""Decide whether two memory entries state the same fact.

An entry's *core* is the list of its words, without inflection or words that do not matter
(articles, auxiliaries, "also", "please"). Two entries are near duplicates if their cores are equal,
or if both are lists with the same words in a slightly different order. If a number, a name, a
negation, a quantifier or any other word occurs in only one of them, they are different facts. The
rule is strict because a missed duplicate costs a few characters, but a refused fact is lost.
"""

from __future__ import annotations

import functools
import re
import unicodedata
from collections.abc import Iterable

_SHORTEST_CORE = 2
_LIST = re.compile(r",|;|\band\b")
_RELATION = re.compile(r"(?i)\b(?:to|from|over|than|before|after|into|instead|not)\b|[<>→←]|->")
_ORDER = 0.75
"""Minimum fraction of the words that must be in the same order in both lists."""

_EMPTY = frozenset(
    """a an the this that these those is are am be been being do does did and of in on at for with
    by as it its their his her my your our he she they i we you me him them user users to so very
    really just simply also too still currently usually generally typically mostly strongly clearly
    explicitly please note remember would should shall there here which who includ contain via
    """.split()
)
"""Words that do not change the meaning of a note, as stems."""
_SAME = {
    "like": "prefer",
    "favor": "prefer",
    "favour": "prefer",
    "utilise": "use",
    "utilize": "use",
    "employ": "use",
    "repo": "repository",
    "db": "database",
    "config": "configuration",
    "dir": "directory",
    "folder": "directory",
    "docs": "documentation",
    "doc": "documentation",
    "cannot": "not",
    "never": "not",
    "none": "no",
    "n't": "not",
    "&": "and",
}
_EDGES = ".,;:!?\"'()[]{}`*_~“”‘’«»…"
_SYMBOL = re.compile(r"[<>=≤≥≠→←⇒+%$#@&/\\|^-]+")
_APOSTROPHES = str.maketrans("’ʼ", "''")
_PLURAL_OF_Y = re.compile(r"^(.{2,})ies$")
_PLURAL = re.compile(r"^(.{2,}[^siu])s$")
_SILENT_E = re.compile(r"^(.{2,})e$")


def same_fact(entry: str, other: str) -> bool:
    """Return whether two entries are exact or near duplicates."""
    if _plain(entry) == _plain(other):
        return True
    mine, theirs = core(entry), core(other)
    if min(len(mine), len(theirs)) < _SHORTEST_CORE:
        return False
    if mine == theirs:
        return True
    if sorted(mine) != sorted(theirs) or not (_is_list(entry) and _is_list(other)):
        return False
    return _common(mine, theirs) >= _ORDER * len(mine)


def duplicate_of(entry: str, entries: Iterable[str]) -> str | None:
    """Return the first of `entries` that is a duplicate of `entry`, or None."""
    return next((other for other in entries if same_fact(entry, other)), None)


@functools.lru_cache(maxsize=512)
def core(entry: str) -> tuple[str, ...]:
    """Return the stems of an entry's words in order, without stop words."""
    text = unicodedata.normalize("NFKC", entry).translate(_APOSTROPHES)
    text = re.sub(r"(?m)^[^\S\n]*+(?:[-*+•]|#{1,6})\s+", "", text)
    runs = text.split()
    if runs and len(runs[0]) == 1:
        runs[0] = runs[0].lower()  # "A" at the start is an article; elsewhere it is a name
    words = [word for raw in runs for word in _words(raw)]
    return tuple(word for word in words if word not in _EMPTY and word != "and")


def _is_list(entry: str) -> bool:
    return len(_LIST.findall(entry)) > 1 and not _RELATION.search(entry)


def _plain(entry: str) -> str:
    """Return an entry in lower case, without white space or punctuation around words."""
    words = [word.strip(_EDGES) or word for word in unicodedata.normalize("NFKC", entry).split()]
    return " ".join(word.casefold() if word.isalpha() else word for word in words)


def _words(raw: str) -> list[str]:
    """Return the stems in a string without spaces: two for `dark-mode`, one for `src/app.py`."""
    token = raw.strip(_EDGES)
    if not token:
        return []
    if not any(character.isalnum() for character in token):
        return [_SAME.get(token, token)] if _SYMBOL.fullmatch(token) else []
    letters = token.replace("-", "").replace("'", "")
    if not letters.isalpha() or token.startswith("-"):
        return [token]  # a number, path, option or identifier: compared exactly
    if len(token) == 1 and token.isupper():
        return [token]
    if token[:-1].isupper() and token.endswith("s"):
        token = token[:-1]  # the plural of an abbreviation
    found: list[str] = []
    for part in token.casefold().split("-"):
        if part.endswith("n't"):
            found.append("not")
        elif part:
            found.append(_stem(part.removesuffix("'s").strip("'")))
    return found


def _stem(word: str) -> str:
    """Remove the English inflection from a word, approximately but consistently.

    Search's stemmer (`storage.words`) merges too much for this purpose: it treats `was` and `is`,
    or `university` and `universe`, as equal, so different facts would count as duplicates.
    """
    word = _SAME.get(word, word)
    if word in _EMPTY:
        return word
    stem = _PLURAL.sub(r"\1", _PLURAL_OF_Y.sub(r"\1y", word))
    for ending in ("ing", "ed"):
        base = stem.removesuffix(ending)
        if base != stem and len(base) > 1 and re.search("[aeiouy]", base):
            stem = base[:-1] if base[-1] == base[-2] and base[-1] not in "lsz" else base
            break
    stem = _SAME.get(stem, stem)
    return stem if stem in _EMPTY else _SILENT_E.sub(r"\1", stem)


def _common(mine: tuple[str, ...], theirs: tuple[str, ...]) -> int:
    row = [0] * (len(theirs) + 1)
    for word in mine:
        previous = 0
        for column, other in enumerate(theirs, 1):
            kept = row[column]
            row[column] = previous + 1 if word == other else max(row[column], row[column - 1])
            previous = kept
    return row[-1]
