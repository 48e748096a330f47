"""The sentences of a row of tags, by the classes that they have words of.

A text has hundreds of sentences and there are nearly two hundred frames; asking each sentence for
each frame is dear. So it is the other way round: where each tag stands is noted once, and a frame
is looked for only in the sentences that have all of the classes that it needs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable

from hermes_nb.safety.language.alphabet import PARAGRAPH, SENTENCE, having

_LONGEST = 48
"""Tags of a sentence that are read as one; a longer one is read in pieces that overlap by half."""
_SENTENCES = re.compile(f"[^{SENTENCE}{PARAGRAPH}]+[{SENTENCE}]?")


class Sentences:
    """The sentences of a row of tags; those that are alike have the same number."""

    def __init__(self, tags: str, telling: frozenset[str]) -> None:
        """Take a row of tags, the first one a paragraph's, and the tags that are asked about."""
        self.places: list[tuple[int, int, int]] = []
        """Where each stands among the tags, from and to, and its number."""
        numbers: dict[str, int] = {}
        for match in _SENTENCES.finditer(tags):
            start, last = match.span()
            while last - start > _LONGEST:
                end = start + _LONGEST
                number = numbers.setdefault(tags[start - 1 : end], len(numbers))
                self.places.append((start, end, number))
                start += _LONGEST // 2
            number = numbers.setdefault(tags[start - 1 : last], len(numbers))
            self.places.append((start, last, number))
        self.pieces = list(numbers)
        """The tags of each, by its number, with the one that stands before it."""
        self._by_tag: defaultdict[str, list[int]] = defaultdict(list)
        for piece, number in numbers.items():
            for tag in telling.intersection(piece):
                self._by_tag[tag].append(number)
        self._by_need: dict[int, frozenset[int]] = {}

    def having(self, needs: Iterable[int]) -> frozenset[int]:
        """Return the numbers of the sentences that have a class of each of some masks."""
        rarest, *others = sorted(map(self._of, needs), key=len)
        for other in others:
            rarest = rarest & other
            if not rarest:
                break
        return rarest

    def _of(self, need: int) -> frozenset[int]:
        found = self._by_need.get(need)
        if found is None:
            some = map(self._by_tag.__getitem__, self._by_tag.keys() & having(need))
            found = self._by_need[need] = frozenset().union(*some)
        return found
