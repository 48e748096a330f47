"""Which skills fit a query best: BM25 over names, tags and descriptions, and how alike two are.

The usual parameters (k1 = 1.2, b = 0.75; Robertson and Zaragoza, 2009). A name counts three times,
a tag twice. Words are matched by their stems' beginnings, so that `plots` finds `plotting`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache

_K1 = 1.2
_B = 0.75
_WORD = re.compile(r"[^\W_]+")
_STOP = frozenset(
    "a an and are as at be by for from how in into is it its of on or that the their this to use"
    " used using user users when with you your skill skills via any can not all do does".split()
)
_SUFFIXES = ("ations", "ation", "ings", "ing", "ers", "ies", "er", "ed")
_PLURAL = re.compile(r"(?:(?<=[sxz])|(?<=ch)|(?<=sh))es$|(?<!s)s$")
_SHORTEST_STEM = 3
_WIDE = re.compile("[\u0e00-\u0eff\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]")


@dataclass(frozen=True, slots=True)
class Text:
    """What is known of a skill for ranking: its terms with their weights."""

    terms: Mapping[str, int]
    length: int


@lru_cache(maxsize=5_000)
def text_of(name: str, description: str, tags: Sequence[str] = ()) -> Text:
    """Return the terms of a skill."""
    terms: Counter[str] = Counter(stems(description))
    for field_, weight in ((" ".join(tags), 2), (name, 3)):
        for term in stems(field_):
            terms[term] += weight
    return Text(terms, sum(terms.values()))


def stems(text: str) -> list[str]:
    """Return the words of a text in lower case without endings; wide scripts as pairs of signs."""
    return [term for word in _WORD.findall(text.lower()) for term in _terms(word)]


def scores(texts: Mapping[str, Text], query: str) -> dict[str, float]:
    """Return how well each text fits a query, those alone that fit at all."""
    wanted = set(stems(query))
    if not wanted or not texts:
        return {}
    words = _meant(wanted, set().union(*(text.terms for text in texts.values())))
    matches = {key: _matched(text, words) for key, text in texts.items()}
    frequency = Counter(term for found in matches.values() for term in found)
    total = len(texts)
    rare = {term: math.log(1 + (total - n + 0.5) / (n + 0.5)) for term, n in frequency.items()}
    mean = sum(text.length for text in texts.values()) / total or 1.0
    result: dict[str, float] = {}
    for key, found in matches.items():
        norm = _K1 * (1 - _B + _B * texts[key].length / mean)
        score = sum(rare[t] * count * (_K1 + 1) / (count + norm) for t, count in found.items())
        if score > 0:
            result[key] = score
    return result


def likeness(one: Text, other: Text) -> float:
    """Return how much of two texts' words is common, 0 to 1 (Jaccard, each word counted once)."""
    together = len(one.terms.keys() | other.terms.keys())
    return len(one.terms.keys() & other.terms.keys()) / together if together else 0.0


def same_name(one: str, other: str) -> bool:
    """Say whether two names mean the same: the same words in any order, or a slip of the pen.

    Names that differ in a number do not: `report-2024` is not `report-2025`.
    """
    if re.findall(r"\d+", one) != re.findall(r"\d+", other):
        return False
    words = sorted(stems(one)), sorted(stems(other))
    if words[0] and words[0] == words[1]:
        return True
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    close = 0.92
    return matcher.real_quick_ratio() >= close and matcher.ratio() >= close


@lru_cache(maxsize=8_192)
def _terms(word: str) -> tuple[str, ...]:
    """Return what a word is found by; nothing for one that every text has."""
    if not word.isascii() and _WIDE.search(word):
        return tuple(word[n : n + 2] for n in range(max(1, len(word) - 1)))
    return () if word in _STOP else (_stem(word),)


def _meant(wanted: set[str], known: set[str]) -> dict[str, list[str]]:
    """Return the terms that texts have for each term of a query: itself, those it begins."""
    found: dict[str, list[str]] = {}
    for term in wanted:
        long = len(term) > _SHORTEST_STEM
        same = [word for word in known if word.startswith(term)] if long else []
        if same or term in known:
            found[term] = same or [term]
    return found


def _matched(text: Text, words: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the query's terms that a text has, with their weights; a beginning counts half."""
    found: dict[str, float] = {}
    for term, meant in words.items():
        if exact := text.terms.get(term):
            found[term] = exact
        elif partial := [text.terms[word] for word in meant if word in text.terms]:
            found[term] = max(partial) / 2
    return found


def _stem(word: str) -> str:
    """Return a word without its ending: `plots` and `plotting` are `plot`, `files` is `fil`."""
    if len(word) > _SHORTEST_STEM:
        word = _PLURAL.sub("", word)
    for suffix in _SUFFIXES:
        if word.endswith(suffix) and len(word) - len(suffix) >= _SHORTEST_STEM:
            stem = word.removesuffix(suffix)
            word = stem[:-1] if len(stem) > _SHORTEST_STEM and stem[-1] == stem[-2] else stem
            break
    return word.removesuffix("e") if len(word) > _SHORTEST_STEM else word
