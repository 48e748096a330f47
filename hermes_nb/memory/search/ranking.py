"""Score places of conversations from the documents that hold a query's words.

A turn counts by its own words and, less, by those said around it: the answer often does not repeat
the question. Rare words count more than common ones, many words of the query more than one of them
often, and a session that speaks of the whole query more than one that has a single word of it.
"""

from __future__ import annotations

import heapq
import math
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
    spots = set(_seeds(evidence, held, most))
    if silent:
        spots |= {spot + distance for spot in spots for distance in NEAR}
    around = {spot + distance for spot in spots for distance in NEAR} | spots
    score, covered = dict.fromkeys(spots, 0.0), dict.fromkeys(spots, 0.0)
    sessions = dict.fromkeys(map(addresses.block_of, spots), 0.0)
    for one, here in zip(evidence, held, strict=True):
        found = {spot: here[spot] for spot in around if spot in here}
        for spot, amount in _spread(found).items():
            if spot in spots:
                score[spot] += one.weight * amount * (SATURATION + 1) / (amount + SATURATION)
        for spot in spots.intersection(found):
            covered[spot] += one.weight
        for block in sessions.keys() & _blocks(here):
            sessions[block] += one.weight
    return {
        spot: score[spot]
        * (1 + SESSION * sessions[addresses.block_of(spot)] / total)
        * (1 + COVERAGE * covered[spot] / total)
        for spot in spots
    }


def best(found: Mapping[int, float], number: int) -> list[int]:
    """Return the spots with the highest scores, best first; of equals, the newest first."""
    ranked = heapq.nlargest(number, zip(found.values(), found, strict=True))
    return [spot for _, spot in ranked]


def _spread(held: Mapping[int, float]) -> dict[int, float]:
    """Return how much of a word each spot has, with what is held by those around it."""
    out = dict(held)
    for spot, amount in held.items():
        for distance, share in _SHARES:
            out[spot - distance] = out.get(spot - distance, 0.0) + share * amount
    return out


def _blocks(held: Mapping[int, float]) -> set[int]:
    bits = addresses.BLOCK_BITS
    return {spot >> bits for spot in held}


_SHARES = tuple(NEAR.items())
_SHORTER = [SHORTER**length for length in range(8)]


def _held(one: Evidence) -> dict[int, float]:
    """Return how much of a word each spot holds."""
    bits, mask, shorter = addresses.SPOT_BITS, addresses.LENGTH_MASK, _SHORTER
    return {d >> bits: weight * shorter[d & mask] for d, weight in one.documents.items()}


def _seeds(
    evidence: Sequence[Evidence], held: Sequence[Mapping[int, float]], most: int
) -> list[int]:
    """Return the spots that are best by what they hold themselves."""
    own: dict[int, float] = {}
    for one, here in zip(evidence, held, strict=True):
        weight = one.weight
        if not own:
            own = {spot: weight * amount for spot, amount in here.items()}
            continue
        for spot, amount in here.items():
            own[spot] = own.get(spot, 0.0) + weight * amount
    return best(own, most)
