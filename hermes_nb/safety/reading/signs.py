"""One place in a text that looks like part of an attack, as the rules and patterns report it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

APART = 150
"""Matches of a rule in one text that are told apart: more of them are a flood, told in crowds."""


@dataclass(frozen=True, slots=True)
class Sign:
    """What was found and where; `score` is on the scale of `rules`, `name` tells signs apart.

    `negates` is a sign with a "not" of its own in it, `negated` one that begins with it, so that
    another before it excuses nothing; `quotable` means nothing in code and quotations, where chat
    templates are written.
    """

    category: str
    name: str
    score: float
    start: int
    end: int
    negates: bool = False
    negated: bool = False
    quotable: bool = False


def crowds(
    found: Iterable[tuple[int, int]], *, near: int = 60, longest: int = 4_000
) -> Iterator[tuple[int, int]]:
    """Yield places, those at most `near` from each other as one of at most `longest`.

    For what comes after as many matches as anybody writes: a flood says one thing many times.
    """
    first = last = -1
    for start, end in found:
        if first >= 0 and start <= last + near and end - first < longest:
            last = end
            continue
        if first >= 0:
            yield first, last
        first, last = start, end
    if first >= 0:
        yield first, last
