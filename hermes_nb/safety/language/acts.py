"""What a passage wants done, whatever the order of its words: acts, and what betrays them.

A sentence is read for *frames* (`frames`): something leaves for an address, a secret is taken, the
user is kept from knowing. None of them is an attack. Those are the acts: frames that stand close by
each other, so that what leaves is a secret, or what is written into an agent's rules is hushed up.

Sentences are looked at once each, those that repeat only once in all, and long ones in pieces: the
time is linear in the text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain

from hermes_nb.safety.language.alphabet import PARAGRAPH, SENTENCE, class_bits, having
from hermes_nb.safety.language.frames import ACTS, FRAMES
from hermes_nb.safety.language.lexicon import lexicon
from hermes_nb.safety.language.rules import charset, compiled, mask
from hermes_nb.safety.language.sentences import Sentences
from hermes_nb.safety.language.standing import Standing
from hermes_nb.safety.language.tagging import Tagged
from hermes_nb.safety.reading.normalise import Span
from hermes_nb.safety.reading.signs import Sign
from hermes_nb.safety.reading.work import WORK, Work

_REACH = 100
"""Tags that the frames of an act may lie apart."""
_UNBROKEN = frozenset({"HIDES", "HUSHES", "UNASKED", "TAKES", "OWNED"})
"""Frames within whose first part no clause ends."""
_FREE = frozenset({"HIDES", "HUSHES", "UNASKED", "LOOSENS", "NAMES", "SPEAKS", "EXCUSES", "MASKS"})
"""Frames that a "not" before them does not excuse: they have their own, or are no order."""
_TOLD = frozenset({"HIDES", "HUSHES", "UNASKED", "SETTLES", "ALTERS"})
"""Frames that mean nothing in what is told of a program: users report that it does such things."""
_BREAK = re.compile(r"[,;:!?—–()、，；]|\s-\s")
_SENTENCES_AT_ONCE = 5
_LOOKED = 60
"""For how many frames it is looked where they stand; a text with more is a flood."""


_STEP = re.compile(r"\n[ \t]*(?:[-*+•|]|\d{1,3}[.)])|\n[ \t]*\n")
"""Where another item or paragraph begins: no frame goes on there."""
_STEPS = 2
"""How many of them an act may reach over."""
_ELSEWHERE = re.compile(r"\n[ \t]*(?:#|```)")
"""A heading or a fence, over which no act reaches."""
_FAR = 700


@dataclass(frozen=True, slots=True)
class _Frame:
    name: str
    bit: int
    texts: tuple[str, ...]
    needs: tuple[int, ...]
    """Masks of which each has to be there."""
    all_of: int
    """Those of them that are one class each, together."""

    @property
    def parts(self) -> tuple[re.Pattern[str], ...]:
        """Its patterns: compiled once a text has all that they need, as that is dear."""
        return _patterns(self.texts)


@dataclass(frozen=True, slots=True)
class _Found:
    """The frames of a sentence that stands at `first` to `last` among the tags."""

    first: int
    last: int
    frames: int


@cache
def _frames() -> tuple[_Frame, ...]:
    bits: dict[str, int] = {}
    for name, _ in FRAMES:
        bits.setdefault(name, 1 << len(bits))
    groups: dict[int, list[_Frame]] = {}  # one after the other: the first that fits says where
    for name, text in FRAMES:
        needs = _needs(text)
        frame = _Frame(
            *(name, bits[name]),
            texts=tuple(part.strip() for part in text.split("&")),
            needs=needs,
            all_of=sum(need for need in needs if need.bit_count() == 1),
        )
        groups.setdefault(needs[0], []).append(frame)
    return tuple(chain.from_iterable(groups.values()))


@cache
def _telling() -> frozenset[str]:
    """Return the tags of all words that a frame needs one of."""
    return frozenset().union(*(having(need) for frame in _frames() for need in frame.needs))


@cache
def _patterns(texts: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    return tuple(map(compiled, texts))


def _needs(text: str) -> tuple[int, ...]:
    """Return the masks of which a frame needs each, those that the fewest words have first."""
    needs = {mask(each) for each in text.split() if each[0].isalpha() and each[-1] != "?"}
    return tuple(sorted(needs, key=_words_of))


@cache
def _words_of(need: int) -> int:
    """Return how many words are listed in the classes of a mask."""
    sizes = lexicon().sizes
    names = tuple(class_bits())
    total = 0
    while need:
        bit = need & -need
        total += sizes.get(names[bit.bit_length() - 1], 0)
        need ^= bit
    return total


@cache
def _told() -> re.Pattern[str]:
    """Return how a sentence begins that says what some program does."""
    gap = f"[^{SENTENCE}{PARAGRAPH}]{{0,3}}?"
    return re.compile(f"[\\s\\S]?{gap}{charset('PROGRAM')}")


@cache
def _behind() -> re.Pattern[str]:
    """Return what forbids from behind, where languages put the "not" last."""
    return re.compile(f"[^{SENTENCE}{PARAGRAPH}]{{0,1}}{charset('POSTNEG')}")


@cache
def _acts() -> tuple[tuple[str, float, str, int], ...]:
    bits = {frame.name: frame.bit for frame in _frames()}
    texts = [
        (kind, score, text.replace("HIDES", name))
        for name in ("HIDES", "HUSHES", "EXCUSES")
        for kind, score, text in ACTS
    ]
    return tuple(
        (category, score, text, sum(bits[name] for name in text.split()))
        for category, score, text in dict.fromkeys(texts)
    )


def acts(text: str, words: Tagged, standing: Standing) -> Iterator[Sign]:
    """Yield the acts in a lower-case text; `words` and `standing` are its own."""
    present = words.present()
    frames = [
        frame
        for frame in _frames()
        if present & frame.all_of == frame.all_of and all(map(present.__and__, frame.needs))
    ]
    known = 0
    for frame in frames:
        known |= frame.bit
    wanted = [act for act in _acts() if act[3] & known == act[3]]
    if not wanted:
        return
    useful = 0
    for act in wanted:
        useful |= act[3]
    frames = [frame for frame in frames if frame.bit & useful]
    reader = _Reader(text, words, standing, tuple(frames))
    found = list(_with_frames(words, frames))
    for group, together in _groups(found):
        strongest: dict[str, tuple[float, int, int]] = {}
        for category, score, name, bits in wanted:
            if bits & together != bits or score <= strongest.get(category, (0.0,))[0]:
                continue
            if reader.looked > _LOOKED:
                yield _sign(category, score, words.span(group[0].first, len(words.tags)))
                return
            close = any(frame in name for frame in ("HIDES", "SPEAKS", "KNOWS"))
            steps = 0 if close else _STEPS
            place = reader.place(group, bits, steps)
            if place is not None:
                strongest[category] = score, *place
        for category, (score, start, end) in strongest.items():
            yield _sign(category, score, (start, end))


def _sign(category: str, score: float, place: tuple[int, int]) -> Sign:
    return Sign(category, "act", score, *place, negated=True)


def _groups(found: list[_Found]) -> Iterator[tuple[list[_Found], int]]:
    """Yield each sentence with those that follow it closely, and all their frames."""
    for index, first in enumerate(found):
        group = [
            each
            for each in found[index : index + _SENTENCES_AT_ONCE]
            if each.first - first.last < _REACH
        ]
        together = 0
        for each in group:
            together |= each.frames
        yield group, together


class _Reader:
    """Finds where the frames of an act stand, and whether they are meant."""

    def __init__(
        self, text: str, words: Tagged, standing: Standing, frames: tuple[_Frame, ...]
    ) -> None:
        self._text = text
        self._words = words
        self._standing = standing
        self._frames: dict[int, list[_Frame]] = {}
        for frame in frames:
            self._frames.setdefault(frame.bit, []).append(frame)
        self._places: dict[tuple[int, int], Span | None] = {}

    def place(self, group: list[_Found], bits: int, steps: int) -> Span | None:
        """Return from where to where the frames of an act reach, None where one is not meant."""
        places: list[tuple[int, int]] = []
        rest = bits
        while rest:
            bit = rest & -rest
            rest ^= bit
            found = (self._known(each, bit) for each in group if each.frames & bit)
            place = next(filter(None, found), None)
            if place is None:
                return None
            places.append(place)
        start, end = min(start for start, _ in places), max(end for _, end in places)
        apart = end - start > _FAR or len(_STEP.findall(self._text, start, end)) > steps
        return None if apart or _ELSEWHERE.search(self._text, start, end) else (start, end)

    def _known(self, sentence: _Found, bit: int) -> Span | None:
        """Return the place of a frame in a sentence, looked for once."""
        key = sentence.first, bit
        if key not in self._places:
            self._places[key] = self._meant(sentence, bit)
        return self._places[key]

    @property
    def looked(self) -> int:
        """How often it was looked."""
        return len(self._places)

    def _meant(self, sentence: _Found, bit: int) -> Span | None:
        """Return the place of a frame in a sentence."""
        tags = self._words.tags
        piece = tags[sentence.first - 1 : sentence.last]
        for frame in self._frames[bit]:
            spans = [m.span() for part in frame.parts if (m := part.search(piece))]
            if len(spans) < len(frame.parts):
                continue
            for match in frame.parts[0].finditer(piece):
                first, last = (sentence.first - 1 + each for each in match.span())
                if self._said(frame, first, last):
                    low = min(sentence.first - 1 + min(s for s, _ in spans), first)
                    high = max(sentence.first - 1 + max(e for _, e in spans), last)
                    if frame.name not in _FREE and self._denied(last, high):
                        continue
                    place = self._words.span(low, high)
                    if not _STEP.search(self._text, *place):
                        return place
        return None

    def _denied(self, *ends: int) -> bool:
        """Say whether what ends there is forbidden by what follows, as some languages do it."""
        return any(_behind().match(self._words.tags, end) for end in ends)

    def _said(self, frame: _Frame, first: int, last: int) -> bool:
        """Say whether the first part of a frame is no accident, and not forbidden."""
        start, end = self._words.span(first, last)
        if frame.name in _UNBROKEN and _BREAK.search(self._text, start, end):
            return False
        if frame.name in _FREE:
            return True
        return not self._standing.forbidden(start, first)


_LOOK = 2
"""Units of work for looking whether a sentence that has what a frame needs has the frame."""
_SHARE = 5
"""Part of all the work that this can be, so that something is left for patterns."""


def _with_frames(words: Tagged, frames: Iterable[_Frame]) -> Iterator[_Found]:
    """Yield the sentences with frames in them."""
    sentences, work = Sentences(words.tags, _telling()), WORK.get() or Work(len(words.tags))
    room = min(work.allowed // _SHARE, work.allowed - work.spent) // _LOOK
    pieces = sentences.pieces
    found = [0] * len(pieces)
    told: dict[int, bool] = {}
    for frame in frames:
        wanted = [each for each in sentences.having(frame.needs) if not found[each] & frame.bit]
        if not wanted:
            continue
        if len(wanted) > room:  # nor is there any for the frames that follow, wherever they stand
            work.skip(words.span(*sentences.places[0][:2])[0])
            break
        room -= len(wanted)
        work.spend(len(wanted) * _LOOK)
        foremost, *others = frame.parts
        for number in wanted:
            piece = pieces[number]
            if foremost.search(piece) is None or any(not part.search(piece) for part in others):
                continue
            if frame.name in _TOLD:
                if number not in told:
                    told[number] = _told().match(piece) is not None
                if told[number]:
                    continue
            found[number] |= frame.bit
    for first, last, number in sentences.places:
        if found[number]:
            yield _Found(first, last, found[number])
