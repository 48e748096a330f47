"""Rank skills for a query, and compare two skills, by their words.

The ranking is BM25 over names, tags and descriptions with the usual parameters (k1 = 1.2, b = 0.75;
Robertson and Zaragoza, 2009). A word in the name counts three times, one in a tag twice. Words
match by the start of their stems, so `plots` finds `plotting`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from functools import lru_cache
from itertools import pairwise

from hermes_nb.storage.words import pieces, terms_of

_K1 = 1.2
_B = 0.75
_STOP = frozenset(
    "a an and are as at be by for from how in into is it its of on or that the their this to use"
    " used using user users when with you your skill skills via any can not all do does".split()
)
_SHORTEST_STEM = 3


@dataclass(frozen=True, slots=True)
class SkillTerms:
    """A skill's terms for ranking."""

    terms: Mapping[str, int]
    """The weight of each term."""
    length: int
    """The sum of all weights."""


@lru_cache(maxsize=5_000)
def text_of(name: str, description: str, tags: Sequence[str] = ()) -> SkillTerms:
    """Return a skill's terms with their weights."""
    terms: dict[str, int] = {}
    for said, weight in ((description, 1), (" ".join(tags), 2), (name, 3)):
        for term in stems(said):
            terms[term] = terms.get(term, 0) + weight
    return SkillTerms(terms, sum(terms.values()))


def stems(text: str) -> list[str]:
    """Return the stems of a text's words, or pairs of characters in scripts without spaces."""
    return [term for piece in pieces(text) for term in _stems_of(piece)]


@lru_cache(maxsize=20_000)
def _stems_of(piece: str) -> tuple[str, ...]:
    """Return one word's stems; cached, because the same words occur in many texts."""
    signs = () if piece.lower() in _STOP else terms_of(piece)
    return tuple(map("".join, pairwise(signs))) if len(signs) > 1 else signs


def scores(texts: Mapping[str, SkillTerms], query: str) -> dict[str, float]:
    """Return the score of each text that matches the query."""
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


def likeness(one: SkillTerms, other: SkillTerms) -> float:
    """Return the fraction of words that two texts have in common, 0 to 1 (Jaccard index)."""
    together = len(one.terms.keys() | other.terms.keys())
    return len(one.terms.keys() & other.terms.keys()) / together if together else 0.0


def same_name(one: str, other: str) -> bool:
    """Return whether two names mean the same: same words, or a difference that looks like a typo.

    Names with different numbers never do: `report-2024` is not `report-2025`.
    """
    if re.findall(r"\d+", one) != re.findall(r"\d+", other):
        return False
    words = sorted(stems(one)), sorted(stems(other))
    if words[0] and words[0] == words[1]:
        return True
    matcher = SequenceMatcher(None, one, other, autojunk=False)
    close = 0.92
    return matcher.real_quick_ratio() >= close and matcher.ratio() >= close


def _meant(wanted: set[str], known: set[str]) -> dict[str, list[str]]:
    """For each query term, return the known terms that it matches: itself and longer ones."""
    found: dict[str, list[str]] = {}
    for term in wanted:
        long = len(term) > _SHORTEST_STEM
        same = [word for word in known if word.startswith(term)] if long else []
        if same or term in known:
            found[term] = same or [term]
    return found


def _matched(text: SkillTerms, words: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Return the query terms in a text with their weights; a prefix match gets half the weight."""
    found: dict[str, float] = {}
    for term, meant in words.items():
        if exact := text.terms.get(term):
            found[term] = exact
        elif partial := [text.terms[word] for word in meant if word in text.terms]:
            found[term] = max(partial) / 2
    return found
