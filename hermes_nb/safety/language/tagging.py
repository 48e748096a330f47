"""A text as a row of tags, one for each word: the form in which rules read every language.

A tag is one character that stands for a set of word classes (`alphabet`), so a rule is a regular
expression over tags (`rules`), and a 64 KB text is about ten thousand characters long for it. What
a chunk of text means is said in `chunks`; here it is worked out for all of them at once.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate

from hermes_nb.safety.language.alphabet import (
    PARAGRAPH,
    SENTENCE,
    masks,
    with_phrases,
)
from hermes_nb.safety.language.artefacts import kinds, suspects, with_parts
from hermes_nb.safety.language.chunks import AROUND, PATH, Part, parts, stops, things
from hermes_nb.safety.language.lexicon import GLUED
from hermes_nb.safety.language.skimming import skim
from hermes_nb.safety.reading.vocabulary import SCRIPT, vocabulary
from hermes_nb.safety.reading.work import Work

_REMEMBERED = 20_000
"""Chunks whose tags are remembered from text to text."""


class Tagged:
    """A text's tags, the first one a paragraph's; where they stand is only worked out if asked."""

    def __init__(self, text: str, work: Work | None = None) -> None:
        """Tag a lower-case, normalised text."""
        self._vocabulary = vocabulary(text)
        work = work or Work(len(text))
        tags, self._skimmed = _tags(self._vocabulary.distinct, work)
        self._pieces = [PARAGRAPH, *map(tags.__getitem__, self._vocabulary.chunks)]
        self.tags = with_phrases("".join(self._pieces))
        self._present = 0
        for tag in set(self.tags):
            self._present |= masks().get(tag, 0)
        self._places: tuple[list[int], list[int]] | None = None
        if self._skimmed:
            chunks = self._vocabulary.chunks
            number = next(n for n, chunk in enumerate(chunks) if chunk in self._skimmed)
            work.skip(self._vocabulary.places[number])

    def present(self) -> int:
        """Return the classes that the text has words of, as a mask."""
        return self._present

    def span(self, first: int, last: int) -> tuple[int, int]:
        """Return the place in the text of `tags[first:last]`."""
        return self._place(first)[0], self._place(last - 1)[1]

    def before(self, start: int) -> int:
        """Return the index of the first tag that stands at `start` or after it."""
        places, tags = self._placed()
        index = bisect_left(places, start) - 1
        if index < 0:
            return 0
        if index == 0:
            return 1
        inside = start - places[index]  # the chunk before may reach beyond `start`
        return tags[index] + sum(1 for part in self._parts(index) if part[0] < inside)

    def _place(self, index: int) -> tuple[int, int]:
        """Return the place in the text of one tag."""
        places, tags = self._placed()
        chunk = bisect_right(tags, index) - 1
        if chunk == 0:
            return -1, -1  # the paragraph that every text begins with
        start, end, _ = self._parts(chunk)[index - tags[chunk]]
        return places[chunk] + start, places[chunk] + end

    def _parts(self, index: int) -> tuple[Part, ...]:
        chunk = self._vocabulary.chunks[index - 1]
        return parts(chunk, closely=chunk not in self._skimmed)

    def _placed(self) -> tuple[list[int], list[int]]:
        """Return where each chunk begins, in the text and among the tags."""
        if self._places is None:
            tags = [0, *accumulate(map(len, self._pieces))][:-1]
            self._places = [-1, *self._vocabulary.places], tags
        return self._places


class _Memo:
    """Tags of chunks that were read before, and the units that reading them closely takes."""

    def __init__(self) -> None:
        self.tags: dict[str, str] = {}
        self.dear: dict[str, int] = {}
        self.closely: dict[str, str] = {}


_memo = _Memo()


def forget() -> None:
    """Let go of the chunks that were read before."""
    global _memo  # noqa: PLW0603 - texts that are read at the same time keep the one they have
    _memo = _Memo()


def _tags(distinct: Iterable[str], work: Work) -> tuple[dict[str, str], set[str]]:
    """Return the tags of each chunk, and the chunks for which no work was left."""
    global _memo  # noqa: PLW0603 - texts that are read at the same time keep the one they have
    if len(_memo.tags) > _REMEMBERED:
        _memo = _Memo()
    memo = _memo
    needs: dict[str, set[str]] = {}
    if fresh := [chunk for chunk in distinct if chunk not in memo.tags]:
        together = "\n".join(fresh)
        needs = suspects(together)
        memo.dear.update(_dear(needs, with_parts(together, GLUED)))
        memo.tags.update(skim(fresh))
    found = {chunk: memo.tags[chunk] for chunk in distinct}
    skimmed: set[str] = set()
    room = work.allowed // 2  # the rest is for patterns
    for chunk in [chunk for chunk in distinct if chunk in memo.dear]:
        room -= memo.dear[chunk]
        if room < 0 or not work.spend(memo.dear[chunk]):
            skimmed.add(chunk)
            continue
        if chunk not in memo.closely:
            memo.closely[chunk] = _closely(chunk, found[chunk], needs.get(chunk))
        found[chunk] = memo.closely[chunk]
    return found, skimmed


_THING, _LONG = 20, 5
"""Units for a chunk that may be a thing, and characters of it for each further one."""


def _dear(things: Iterable[str], glued: Iterable[str]) -> dict[str, int]:
    """Return what reading chunks closely takes, of those where it can tell more."""
    found = {c: _THING + len(c) // _LONG for c in things if SCRIPT.match(c) is None}
    for chunk in glued:
        found[chunk] = found.get(chunk, 0) + len(chunk)
    return found


def _closely(chunk: str, skimmed: str, needs: set[str] | None) -> str:
    """Return the tags of a chunk that is looked at for things; most are none after all."""
    if needs is not None and not any(key in chunk for key in GLUED):
        if chunk.strip(AROUND).isalpha() and not (chunk[0] in PATH and kinds(chunk, needs)):
            return skimmed
        found = things(chunk, needs)
        row = "".join([part[2] for part in found])
        return row + SENTENCE if found and stops(chunk) else row or skimmed
    return "".join([part[2] for part in parts(chunk)])
