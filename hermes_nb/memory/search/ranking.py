"""Score messages by a query's words, using only the index.

A query's cost is the number of documents that it reads, newest first. A budget limits that number.
Rare words are read first: they are the most significant and cost the least. A word that is too
common for the budget is skipped. If all words are too common, messages with several of them are
searched. An unknown word is assumed to be part of a word, or misspelt.

A message is scored by its own words and, with lower weight, by the words of the messages around it,
because an answer often does not repeat the question. Rare words count more than common ones, and
several different query words count more than one word that occurs many times. A session that
contains all of the query's words ranks higher than one with a single word.
"""

from __future__ import annotations

import heapq
import math
import tomllib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Protocol

from hermes_nb.memory.search import documents
from hermes_nb.memory.search.query import AllOf, AnyOf, Node, Phrase, Query
from hermes_nb.storage.words import stem


class SearchIndex(Protocol):
    """Access to an index for one search, restricted by the search's filter."""

    def documents(self, match: Node, *, most: int) -> list[int]:
        """Return up to `most` documents that match, newest sessions first."""
        ...

    def count(self, match: Node, *, most: int) -> int:
        """Return the number of documents that match; above `most`, it may be an estimate."""
        ...

    def counted(self, match: Node, *, most: int) -> tuple[int, list[int] | None]:
        """Return `count`, and the documents if reading them now is cheaper than later."""
        ...

    def known(self, terms: Collection[str]) -> set[str]:
        """Return the terms that are in the store's list of words."""
        ...

    def words_like(self, text: str) -> list[str]:
        """Return words in the store that contain a folded text."""
        ...

    def words_near(self, text: str) -> list[tuple[str, int]]:
        """Return the words that share the most trigrams with a text, and how many."""
        ...


NEAR = {-2: 0.3, -1: 0.55, 1: 0.55, 2: 0.3}
"""Weight of a word by its distance in turns."""
SATURATION = 1.2
"""BM25's k1."""
SHORTER = 0.8
"""Factor for a word's weight in each length class; each class is four times as long."""
SESSION = 0.5
"""Fraction added to a score if the session has all the query's words; less if some are missing."""
COVERAGE = 0.3
"""Fraction added to a score if the message has all the query's words; less if some are missing."""
SEEDS = 150
"""Number of best spots (message positions) that are scored together with their neighbours."""
SYNONYM = 0.5
"""Weight of a synonym for the query's word."""
PART = 0.6
"""Weight of a word that contains the query's word."""
MISSPELT = 0.4
"""Weight of a similar word."""
NAME = 0.5
"""Weight of a speaker's name, which is low because half of all turns match; speakers are scored
separately."""
_ALIKE = 0.6
"""Minimum fraction of trigrams that a misspelt word has in common with the right one."""
_MOST_TOGETHER = 4
"""Maximum number of common words that are searched together."""
_ENOUGH = 60
"""If this many messages have several common words, messages with fewer of them are not searched."""


class EvidenceCollector:
    """Collects the evidence for one query: which documents contain which of its words.

    Args:
        postings: the index
        query: the query
        people: terms that are speakers' names
        budget: the maximum number of documents to read
        limit: the requested number of hits
        size: the number of documents in the store
    """

    def __init__(
        self,
        postings: SearchIndex,
        query: Query,
        *,
        people: frozenset[str],
        budget: int,
        limit: int,
        size: int,
    ) -> None:
        self._postings = postings
        self._query = query
        self._people = people
        self._left = budget
        self._budget = budget
        self._limit = limit
        self._read: dict[Phrase, list[int]] = {}
        self._size = size

    def evidence(self) -> list[Evidence]:
        """Return the evidence for each word within the budget."""
        counted = {unit: self._count(unit) for unit in self._query.units}
        units = sorted(counted, key=lambda unit: counted[unit])
        out: list[Evidence] = []
        for place, unit in enumerate(units):
            if counted[unit] > self._left:
                # The remaining words are even more common.
                return out or self._common_word_evidence(units[place:], counted)
            found = self._documents_of(unit, counted[unit])
            weight = rarity(counted[unit] or len(found), self._size)
            if self._people.issuperset(unit.terms):
                weight *= NAME
            if found:
                out.append(Evidence(found, weight))
        return out

    def _count(self, unit: Phrase) -> int:
        """Return the number of documents that contain a unit; for a prefix, this is a lower bound.

        FTS5 merges all words that match a prefix before it returns the first document, so the
        documents are read only once and cached.
        """
        if unit.prefix:
            most = max(self._limit, self._budget // 2)
            self._read[unit] = self._postings.documents(unit, most=most)
            return len(self._read[unit])
        count, found = self._postings.counted(unit, most=self._budget)
        if found is not None:
            self._read[unit] = found
        return count

    def _documents_of(self, unit: Phrase, count: int) -> dict[int, float]:
        """Return the documents for a word and its alternatives, with weights."""
        if unit.prefix or len(unit.terms) > 1:
            return dict.fromkeys(self._unit_documents(unit), 1.0)
        (term,) = unit.terms
        found: dict[int, float] = {}
        if others := alternatives(term):
            found = self._affordable(others, SYNONYM)
        if not count and not found:
            found = self._guessed(term)
        return found | dict.fromkeys(self._unit_documents(unit), 1.0)

    def _guessed(self, term: str) -> dict[int, float]:
        """Return the documents for words that contain an unknown term or resemble it."""
        if self._postings.known([term]):
            return {}
        if containing := self._postings.words_like(term):
            return self._affordable(containing, PART)
        grams = max(1, len(term) - 2)
        alike = [
            word
            for word, shared in self._postings.words_near(term)
            if shared >= _ALIKE * max(grams, len(word) - 2)
        ]
        return self._affordable(alike, MISSPELT)

    def _affordable(self, terms: Sequence[str], weight: float) -> dict[int, float]:
        """Return the documents that contain any of the terms, or none if there are too many.

        At most an eighth of the remaining budget is used: the query's own words take priority.
        """
        if not terms:
            return {}
        match = AnyOf(tuple(Phrase((term,)) for term in terms))
        most = self._left // 8
        if self._postings.count(match, most=most) > most:
            return {}
        return dict.fromkeys(self._take(match), weight)

    def _unit_documents(self, unit: Phrase) -> list[int]:
        """Return the documents that contain a unit, from the cache if possible."""
        if unit not in self._read:
            return self._take(unit)
        self._left -= len(self._read[unit])
        return self._read[unit]

    def _take(self, match: Node) -> list[int]:
        found = self._postings.documents(match, most=max(1, self._left))
        self._left -= len(found)
        return found

    def _common_word_evidence(
        self, units: Sequence[Phrase], counted: dict[Phrase, int]
    ) -> list[Evidence]:
        """Return evidence for common words: for messages with all of them, then with fewer."""
        out: list[Evidence] = []
        most = max(self._limit, self._budget // 8)
        for number in range(min(len(units), _MOST_TOGETHER), 0, -1):
            match = AllOf(tuple(units[:number]))
            found = self._postings.documents(match, most=most)
            weight = sum(rarity(counted[unit], self._size) for unit in units[:number])
            if found:
                out.append(Evidence(dict.fromkeys(found, 1.0), weight))
            if len(found) >= _ENOUGH:
                break
        return out


def alternatives(term: str) -> tuple[str, ...]:
    """Return the stems of a term's synonyms."""
    return _table().get(term, ())


@cache
def _table() -> dict[str, tuple[str, ...]]:
    table: dict[str, dict[str, None]] = {}
    listed = Path(__file__).with_name("thesaurus.toml").read_text(encoding="utf-8")
    for group in tomllib.loads(listed)["groups"].split(";"):
        stems = dict.fromkeys(stem(word) for word in group.split())
        for term in stems:
            table.setdefault(term, {}).update(stems)
    return {term: tuple(other for other in found if other != term) for term, found in table.items()}


@dataclass(frozen=True, slots=True)
class Evidence:
    """The documents that contain one of the query's words."""

    documents: Mapping[int, float]
    """Document numbers with a weight: 1.0 for the word itself, less for an alternative."""
    weight: float
    """The weight of the query's word by its rarity."""


def rarity(documents: int, all_documents: int) -> float:
    """Return BM25's inverse document frequency."""
    return math.log(1 + max(0.5, all_documents - documents + 0.5) / (documents + 0.5))


def scores(
    evidence: Sequence[Evidence], *, silent: bool = False, most: int = SEEDS
) -> dict[int, float]:
    """Return scores for the `most` best spots that have one of the query's words.

    With `silent`, also score the neighbours of those spots, even without such a word. Some of these
    may not exist, because the session ends there.
    """
    held = [_message_weights(one) for one in evidence]
    total = sum(one.weight for one in evidence) or 1.0
    spots = set(_seeds(evidence, held, most))
    if silent:
        spots |= {spot + distance for spot in spots for distance in NEAR}
    around = {spot + distance for spot in spots for distance in NEAR} | spots
    score, covered = dict.fromkeys(spots, 0.0), dict.fromkeys(spots, 0.0)
    sessions = dict.fromkeys(map(documents.block_of, spots), 0.0)
    for one, here in zip(evidence, held, strict=True):
        found = {spot: here[spot] for spot in around if spot in here}
        for spot, amount in _spread(found).items():
            if spot in spots:
                score[spot] += one.weight * amount * (SATURATION + 1) / (amount + SATURATION)
        for spot in spots.intersection(found):
            covered[spot] += one.weight
        for block in sessions.keys() & {spot >> documents.BLOCK_BITS for spot in here}:
            sessions[block] += one.weight
    return {
        spot: score[spot]
        * (1 + SESSION * sessions[documents.block_of(spot)] / total)
        * (1 + COVERAGE * covered[spot] / total)
        for spot in spots
    }


def best(found: Mapping[int, float], number: int) -> list[int]:
    """Return the spots with the highest scores, best first; if scores are equal, newest first."""
    ranked = heapq.nlargest(number, zip(found.values(), found, strict=True))
    return [spot for _, spot in ranked]


def _spread(held: Mapping[int, float]) -> dict[int, float]:
    out = dict(held)
    for spot, amount in held.items():
        for distance, share in _SHARES:
            out[spot - distance] = out.get(spot - distance, 0.0) + share * amount
    return out


_SHARES = tuple(NEAR.items())
_SHORTER = [SHORTER**length for length in range(8)]


def _message_weights(one: Evidence) -> dict[int, float]:
    bits, mask, shorter = documents.SPOT_BITS, documents.LENGTH_MASK, _SHORTER
    return {d >> bits: weight * shorter[d & mask] for d, weight in one.documents.items()}


def _seeds(
    evidence: Sequence[Evidence], held: Sequence[Mapping[int, float]], most: int
) -> list[int]:
    own: dict[int, float] = {}
    for one, here in zip(evidence, held, strict=True):
        weight = one.weight
        if not own:
            own = {spot: weight * amount for spot, amount in here.items()}
            continue
        for spot, amount in here.items():
            own[spot] = own.get(spot, 0.0) + weight * amount
    return best(own, most)
