"""Regular expressions that are looked for where they can be, and only as long as there is time.

A text that is slow to read is not read for ever: `Late` is raised once `LIMIT` seconds of CPU are
spent on each `SIZE` characters of it. Compiling, which happens once in a process, does not count.
"""

from __future__ import annotations

import gc
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
_CELL = 256
"""Characters within which one place of a needed word is enough."""
_MOST = 2_048
"""Characters that are searched between two looks at the clock."""
_REACH = 200
"""Characters that a pattern spans beside those that its gaps say."""
_GAP = re.compile(r"\{\d*,(\d+)\}")
_APART = 150
"""Places of one pattern that are told apart; more are a flood."""

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Sign:
    """One place in a text that looks like part of an attack, as a rule reports it.

    `score` is on the scale of `rules.BLOCKS`, `name` tells signs apart. `negates` is a sign with a
    "not" in it, `negated` one that begins with it, so that another before it excuses nothing;
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


class Late(Exception):
    """There is no time left to read a text."""


_UNTIL: ContextVar[float] = ContextVar("UNTIL", default=math.inf)
_COLLECTING: ContextVar[float] = ContextVar("COLLECTING", default=0.0)


@contextmanager
def deadline(size: int) -> Iterator[None]:
    """Have `in_time` raise once a text of a size in characters has had its time."""
    token = _UNTIL.set(thread_time() + LIMIT * max(1, -(-size // SIZE)))
    gc.callbacks.append(_collected)
    try:
        yield
    finally:
        gc.callbacks.remove(_collected)
        _UNTIL.reset(token)


def _collected(phase: str, _info: object) -> None:
    """Let the garbage that Python collects meanwhile take nothing of the time there is.

    It is everybody's: in a kernel that holds millions of objects it takes longer than a text.
    """
    if phase == "start":
        _COLLECTING.set(thread_time())
    elif began := _COLLECTING.get():
        _UNTIL.set(_UNTIL.get() + thread_time() - began)
        _COLLECTING.set(0.0)


def in_time() -> None:
    """Raise `Late` if the text that is read has had its time."""
    if thread_time() > _UNTIL.get():
        raise Late


@cache
def compiled(pattern: str) -> re.Pattern[str]:
    """Return a compiled pattern; compiling takes nothing of the time there is."""
    started = thread_time()
    expression = re.compile(pattern)
    _UNTIL.set(_UNTIL.get() + thread_time() - started)
    return expression


def spans(pattern: str, text: str, needs: Sequence[str] = ()) -> Iterator[Span]:
    """Yield where a pattern is found; one of `needs`, in lower case, is in all that it finds."""
    done, reach = 0, _reach(pattern)
    for start, end in _near(lowered(text), needs, reach):
        in_time()
        for match in compiled(pattern).finditer(text, max(start, done), end + reach):
            if match.start() >= end:
                break
            done = match.end()
            yield match.span()


@cache
def _reach(pattern: str) -> int:
    """Return how many characters a pattern spans, more or less."""
    return _REACH + sum(map(int, _GAP.findall(pattern)))


def _near(text: str, needs: Sequence[str], reach: int) -> Iterator[Span]:
    """Yield the parts of a text in which a pattern can begin that needs one of some words."""
    cells = set[int]() if needs else set(range(len(text) // _CELL + 1))
    for need in needs:
        at = text.find(need)
        while at >= 0:
            cells.add(at // _CELL)
            at = text.find(need, (at // _CELL + 1) * _CELL)
    first = done = 0
    for cell in sorted(cells):
        start, end = cell * _CELL - (reach if needs else 0), (cell + 1) * _CELL
        if start > done or end - first > _MOST:
            yield first, done
            first = max(start, done)
        done = end
    yield first, done


def some(places: Iterator[Span]) -> Iterator[Span]:
    """Yield places; of a flood of them the last is all the rest."""
    yield from islice(places, _APART)
    if rest := [*places]:
        yield rest[0][0], rest[-1][1]


@lru_cache(maxsize=4)
def lowered(text: str) -> str:
    """Return a text in lower case, with every character in its place."""
    lower = text.lower()
    if len(lower) != len(text):  # a few capitals become two letters
        return "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
    return lower
