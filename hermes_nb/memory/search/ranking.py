"""Score places of conversations from the documents that hold a query's words.

A turn counts by its own words and, less, by those said around it: the answer often does not repeat
the question. Rare words count more than common ones, many words of the query more than one of them
often, and a session that speaks of the whole query more than one that has a single word of it.
"""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hermes_nb.memory.search import addresses

NEAR = {-2: 0.3, -1: 0.55, 1: 0.55, 2: 0.3}
"""How much a word counts at a distance of so many turns from where it was said."""
SATURATION = 1.2
"""BM25's k1."""
SHORTER = 0.8
"""What a word counts for in a message of the next class of length (four times as long)."""
SESSION = 0.5
"""How much a session counts that holds every word of the query."""
COVERAGE = 0.3
"""How much a message counts that holds every word of the query."""
SEEDS = 150
"""Spots that are scored with what surrounds them; the others stand no chance."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """The documents that hold one of the query's words, each with the weight of the word there."""

    documents: Mapping[int, float]
    weight: float


def rarity(documents: int, all_documents: int) -> float:
    """Return BM25's inverse document frequency."""
    return math.log(1 + max(0.5, all_documents - documents + 0.5) / (documents + 0.5))


def scores(
    evidence: Sequence[Evidence], *, silent: bool = False, most: int = SEEDS
) -> dict[int, float]:
    """Return a score for each of the `most` best spots where a word stands.

    With `silent`, also for those that have none themselves but are near one; such a spot may be
    empty, as a session has an end.
    """
    held = [_held(one) for one in evidence]
    total = sum(one.weight for one in evidence) or 1.0
    sessions: dict[int, float] = defaultdict(float)
    for one in evidence:
        for block in {addresses.block_of_document(document) for document in one.documents}:
            sessions[block] += one.weight
    seeds = _seeds(evidence, held, most)
    near = {spot + distance for spot in seeds for distance in NEAR} if silent else set()
    out: dict[int, float] = {}
    for spot in near.union(seeds):
        score = covered = 0.0
        for one, here in zip(evidence, held, strict=True):
            amount = own = here.get(spot, 0.0)
            for distance, share in _SHARES:
                if spot + distance in here:
                    amount += share * here[spot + distance]
            if amount:
                score += one.weight * amount * (SATURATION + 1) / (amount + SATURATION)
            if own:
                covered += one.weight
        session = sessions[addresses.block_of(spot)] / total
        out[spot] = score * (1 + SESSION * session) * (1 + COVERAGE * covered / total)
    return out


def best(found: Mapping[int, float], number: int) -> list[int]:
    """Return the spots with the highest scores, best first; of equals, the newest first."""
    ranked = heapq.nlargest(number, zip(found.values(), found, strict=True))
    return [spot for _, spot in ranked]


_SHARES = tuple(NEAR.items())
_SHORTER = [SHORTER**length for length in range(8)]


def _held(one: Evidence) -> dict[int, float]:
    """Return how much of a word each spot holds."""
    return {
        document >> addresses.SPOT_BITS: weight * _SHORTER[document & addresses.LENGTH_MASK]
        for document, weight in one.documents.items()
    }


def _seeds(
    evidence: Sequence[Evidence], held: Sequence[Mapping[int, float]], most: int
) -> list[int]:
    """Return the spots that are best by what they hold themselves."""
    own: dict[int, float] = {}
    for one, here in zip(evidence, held, strict=True):
        weight = one.weight
        for spot, amount in here.items():
            own[spot] = own.get(spot, 0.0) + weight * amount
    return best(own, most)
