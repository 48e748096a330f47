"""Patterns that have to follow one another closely: a download, and further on a shell it goes to.

As one regular expression such a row would look for its end anew from everything that begins it. As
steps, each pattern is looked for once in the whole text, and what is found is put together.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from hermes_nb.safety.reading.normalise import Span
from hermes_nb.safety.reading.quick import possible, spans

MOST = 400
"""Places in one text that are told apart; no honest text holds as many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Patterns that follow one another: `within` and `barring` have an entry for each gap.

    A gap is at most `within` characters wide, and none of those in `barring` stands in it.
    """

    patterns: tuple[str, ...]
    within: tuple[int, ...]
    barring: tuple[str, ...]

    def places(self, text: str) -> Iterator[Span]:
        """Yield where the steps are found together, from left to right; no two overlap.

        The last of `MOST` places is all the rest of the text.
        """
        if not all(possible(step, text) for step in self.patterns):
            return
        if not all(any(spans(step, text)) for step in reversed(self.patterns)):
            return
        first, *between, last = self.patterns
        found = list(spans(first, text))
        for step, within, barring in zip(between, self.within, self.barring, strict=False):
            found = list(_followed(text, found, step, within, barring))
        places = _followed(text, found, last, self.within[-1], self.barring[-1], apart=True)
        for number, (start, end) in enumerate(places, 1):
            if number == MOST:
                yield start, len(text)
                return
            yield start, end


def _followed(
    text: str, before: list[Span], step: str, within: int, barring: str, *, apart: bool = False
) -> Iterator[Span]:
    """Yield the places from the first of those before a step that reaches it to the step's end."""
    starts, ends = [start for start, _ in before], [end for _, end in before]
    index = 0
    for at, end in spans(step, text):
        low = max(0, at - within)
        for sign in barring:
            low = text.rfind(sign, low, at) + 1 or low
        index = bisect_left(ends, low, index)
        if index == len(ends):
            return
        if ends[index] <= at:
            yield starts[index], end
            if apart:
                index = bisect_left(starts, end, index)
