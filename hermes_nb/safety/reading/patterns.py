"""Patterns are looked for near the words that they need, and only as long as there is time.

A text that is dear to read is not read on for ever: `Late` is raised once `LIMIT` seconds of CPU
are spent on each `SIZE` characters of it. Making a pattern ready, which happens once, does not
count.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from time import thread_time

LIMIT, SIZE = 0.25, 65_536
_CELL, _MOST = 256, 2_048
"""Characters between which a need is looked for once, and that are searched at once."""
_REACH = 200
"""Characters that a pattern spans beside those that its gaps say."""
_GAP = re.compile(r"\{\d*,(\d+)\}")
_APART = 150
"""Places in one text that are told apart; more are a flood."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sign:
    """One place in a text that looks like part of an attack, as rules and patterns report it.

    `score` is on the scale of `rules`, `name` tells signs apart. `negates` is a sign with a "not"
    of its own in it, `negated` one that begins with it, so that another before it excuses nothing;
    `quotable` means nothing in code and quotations, where chat templates are written.
    """

    category: str
    name: str
    score: float
    start: int
    end: int
    negates: bool = False
    negated: bool = False
    quotable: bool = False


class Late(Exception):  # noqa: N818 - not a fault: the text is withheld
    """There is no time left to read a text."""


_UNTIL: ContextVar[float] = ContextVar("UNTIL", default=math.inf)


@contextmanager
def deadline(size: int) -> Iterator[None]:
    """Have `in_time` raise once a text of a size in characters has had its time."""
    token = _UNTIL.set(thread_time() + LIMIT * max(1, -(-size // SIZE)))
    try:
        yield
    finally:
        _UNTIL.reset(token)


def in_time() -> None:
    """Raise `Late` if the text that is read has had its time."""
    if thread_time() > _UNTIL.get():
        raise Late


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern made ready, which takes nothing of the time there is."""
    started = thread_time()
    expression = re.compile(pattern)
    _UNTIL.set(_UNTIL.get() + thread_time() - started)
    return expression


def spans(pattern: str, text: str, needs: Sequence[str] = ()) -> Iterator[Span]:
    """Yield where a pattern is found; one of `needs`, in lower case, is in all that it finds."""
    done, reach = 0, _reach(pattern)
    for start, end in _near(lowered(text), needs, reach) if needs else windows(len(text), _MOST):
        in_time()
        for match in compiled(pattern).finditer(text, max(start, done), end + reach):
            if match.start() >= end:
                break
            done = match.end()
            yield match.span()


def windows(size: int, step: int) -> Iterator[Span]:
    """Yield a text's length in steps."""
    return ((start, min(start + step, size)) for start in range(0, size, step))


@cache
def _reach(pattern: str) -> int:
    """Return how many characters a pattern spans, more or less, and lie before what it needs."""
    return _REACH + sum(map(int, _GAP.findall(pattern)))


def _near(text: str, needs: Sequence[str], reach: int) -> Iterator[Span]:
    """Yield the parts of a text in which a pattern can begin that needs one of some parts."""
    cells: set[int] = set()
    for need in needs:
        at = text.find(need)
        while at >= 0:
            cells.add(at // _CELL)
            at = text.find(need, (at // _CELL + 1) * _CELL)
    parts = [(0, 0)]
    for cell in sorted(cells):
        (first, done), start, end = parts[-1], cell * _CELL - reach, (cell + 1) * _CELL
        if start <= done and end - first <= _MOST:
            parts[-1] = first, end
        else:
            parts.append((max(start, done), end))
    yield from parts


def followed(steps: Sequence[str], within: Sequence[int], barring: Sequence[str]) -> str:
    """Return the pattern of steps at most `within` characters apart, without signs in `barring`."""
    if len(steps) == 1:
        return steps[0]
    first, *others = (f"(?i:{p[4:]})" if p.startswith("(?i)") else f"(?:{p})" for p in steps)
    for step, most, signs in zip(others, within, barring, strict=True):
        first += f"{f'[^{re.escape(signs)}]' if signs else '(?s:.)'}{{0,{most}}}?{step}"
    return first


def some(places: Iterator[Span]) -> Iterator[Span]:
    """Yield places; of a flood of them the last is all the rest."""
    yield from islice(places, _APART)
    if rest := [*places]:
        yield rest[0][0], rest[-1][1]


@lru_cache(maxsize=4)
def characters(text: str) -> frozenset[str]:
    """Return the characters of a text; worked out once for all who ask about the same text."""
    return frozenset(text)


def ranges(*some: tuple[str, str]) -> frozenset[str]:
    """Return the characters from a first to a last one, of each pair."""
    return frozenset(chr(code) for one, last in some for code in range(ord(one), ord(last) + 1))


@lru_cache(maxsize=4)
def lowered(text: str) -> str:
    """Return a text in lower case, with every character in its place."""
    lower = text.lower()
    if len(lower) != len(text):  # a few capitals become two letters
        return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    return lower
