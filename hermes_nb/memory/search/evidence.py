"""What the index knows of a query's words, within a budget of documents.

Rare words say most and cost least, so they come first; a word so common that it would break the
budget is dropped while others remain. Where all are common, messages that hold several of them are
looked for. A word that nobody wrote is taken for a part of one, or a misspelt one.
"""

from __future__ import annotations

from collections.abc import Sequence

from hermes_nb.memory.search import thesaurus
from hermes_nb.memory.search.postings import Postings, expression
from hermes_nb.memory.search.query import Every, Phrase, Query
from hermes_nb.memory.search.ranking import Evidence, rarity

SYNONYM = 0.5
PART = 0.6
MISSPELT = 0.4
"""What another word counts for in the place of the one that was asked for."""
NAME = 0.5
"""What a speaker's name counts for: who speaks is judged by itself, and half of all turns match."""
_ALIKE = 0.6
"""The share of trigrams that a misspelt word has in common with the right one."""
_MOST_TOGETHER = 4
_ENOUGH = 60
"""Messages with several common words at which fewer words are not tried any more."""


class Collector:
    """Gathers the evidence for one query.

    `people` are terms that name a speaker; `budget` is in documents, `limit` those that are wanted,
    `size` those of the store.
    """

    def __init__(
        self,
        postings: Postings,
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
        """Return what was found for each word that could be afforded."""
        counted = {unit: self._count(unit) for unit in self._query.units}
        units = sorted(counted, key=lambda unit: counted[unit])
        out: list[Evidence] = []
        for place, unit in enumerate(units):
            if counted[unit] > self._left:
                # What follows is more common still.
                return out or self._together(units[place:], counted)
            found = self._of(unit, counted[unit])
            weight = rarity(counted[unit] or len(found), self._size)
            if self._people.issuperset(unit.terms):
                weight *= NAME
            if found:
                out.append(Evidence(found, weight))
        return out

    def _count(self, unit: Phrase) -> int:
        """Return how many documents hold a unit; of the start of a word, at least so many.

        FTS5 merges all the words that a start stands for before it gives the first document, so
        these are read once and kept.
        """
        if unit.prefix:
            most = max(self._limit, self._budget // 2)
            self._read[unit] = self._postings.documents(expression(unit), most=most)
            return len(self._read[unit])
        count, found = self._postings.counted(expression(unit), most=self._budget)
        if found is not None:
            self._read[unit] = found
        return count

    def _of(self, unit: Phrase, count: int) -> dict[int, float]:
        """Return the documents of a word and of what may stand for it."""
        if unit.prefix or len(unit.terms) > 1:
            return dict.fromkeys(self._own(unit), 1.0)
        (term,) = unit.terms
        found: dict[int, float] = {}
        if others := thesaurus.alternatives(term):
            found = self._affordable(others, SYNONYM)
        if not count and not found:
            found = self._guessed(term)
        return found | dict.fromkeys(self._own(unit), 1.0)

    def _guessed(self, term: str) -> dict[int, float]:
        """Return the documents of words that contain a term that stands nowhere, or are like it."""
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
        """Return the documents of any of the terms; none when there are so many as to say little.

        An eighth of what is left: the query's own words come first.
        """
        if not terms:
            return {}
        match = " OR ".join(f'"{term}"' for term in terms)
        most = self._left // 8
        if self._postings.count(match, most=most) > most:
            return {}
        return dict.fromkeys(self._take(match), weight)

    def _own(self, unit: Phrase) -> list[int]:
        """Return the documents of a unit itself, those that were read already if they were."""
        if unit not in self._read:
            return self._take(expression(unit))
        self._left -= len(self._read[unit])
        return self._read[unit]

    def _take(self, match: str) -> list[int]:
        found = self._postings.documents(match, most=max(1, self._left))
        self._left -= len(found)
        return found

    def _together(self, units: Sequence[Phrase], counted: dict[Phrase, int]) -> list[Evidence]:
        """Return evidence for common words: messages with all, then with the rarer ones of them."""
        out: list[Evidence] = []
        most = max(self._limit, self._budget // 8)
        for number in range(min(len(units), _MOST_TOGETHER), 0, -1):
            match = expression(Every(tuple(units[:number])))
            found = self._postings.documents(match, most=most)
            weight = sum(rarity(counted[unit], self._size) for unit in units[:number])
            if found:
                out.append(Evidence(dict.fromkeys(found, 1.0), weight))
            if len(found) >= _ENOUGH:
                break
        return out
