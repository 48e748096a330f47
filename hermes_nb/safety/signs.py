"""One place in a text that looks like part of an attack, as the rules and patterns report it."""

from __future__ import annotations

from dataclasses import dataclass


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
