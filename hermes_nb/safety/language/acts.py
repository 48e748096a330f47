"""What a passage wants done, whatever the order of its words: acts, and what betrays them.

A sentence is read for *frames* (`rules.toml`): something leaves for an address, a secret is taken,
the user is kept from knowing. None of them is an attack. Those are the acts: frames that stand
close by each other, so that what leaves is a secret, or what is written into an agent's rules is
hushed up.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache

from hermes_nb.safety.language.rules import charset, having, needed, row, tables
from hermes_nb.safety.language.standing import Standing
from hermes_nb.safety.language.tagging import PARAGRAPH, SENTENCE, Tagged
from hermes_nb.safety.reading.patterns import Sign, Span, in_time

_REACH = 100
"""Tags that the frames of an act may lie apart."""
_UNBROKEN = frozenset({"HIDES", "HUSHES", "UNASKED", "TAKES", "OWNED"})
"""Frames within whose first part no clause ends."""
_INVITES = re.compile(
    r"\b(?:any|have|further|other|more)\s+(?:\w+\s+)?(?:questions|queries|doubts)"
    r"|\b(?:bei|weitere|haben)\s+(?:sie\s+)?(?:noch\s+|weitere\s+)?(?:ruck)?fragen|\bfragen\s+haben"
    r"|\b(?:toute|des|une|autres?|vos)\s+(?:autre\s+)?questions?|\b(?:dudas?|duvidas?|preguntas)\b"
    r"|\b(?:alguna|otra|cualquier|alguma|qualquer|qualsiasi|altr[ae]|una)\s+(?:pregunta|pergunta|domand)"
    r"|\b(?:вопрос(?:ы|ов)?|pytan\w{1,3})\b"
)
"""Questions that a letter invites at its end; whoever answers them makes no excuses."""
_LEAD = 24
"""Characters before an excuse in which they may be spoken of."""
_FREE = frozenset({"HIDES", "HUSHES", "UNASKED", "LOOSENS", "NAMES", "SPEAKS", "EXCUSES", "MASKS"})
"""Frames that a "not" before them does not excuse: they have their own, or are no order."""
_TOLD = frozenset({"HIDES", "HUSHES", "UNASKED", "SETTLES", "ALTERS"})
"""Frames that mean nothing in what is told of a program: users report that it does such things."""
_BREAK = re.compile(r"[,;:!?—–()、，；]|\s-\s")
_SENTENCES_AT_ONCE = 5
_LONGEST = 48
"""Tags of a sentence that are read as one; a longer one is read in pieces that overlap by half."""
_SENTENCES = re.compile(f"[^{SENTENCE}{PARAGRAPH}]+[{SENTENCE}]?")
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
    rows: tuple[str, ...]
    needs: tuple[int, ...]
    """Masks of which each has to be there."""

    @property
    def parts(self) -> list[re.Pattern[str]]:
        """Its patterns: compiled once a text has all that they need, as that is dear."""
        return [*map(row, self.rows)]


@dataclass(frozen=True, slots=True)
class _Found:
    """The frames of a sentence that stands at `first` to `last` among the tags."""

    first: int
    last: int
    frames: int


@cache
def _bits() -> dict[str, int]:
    """Return a bit for each frame's name."""
    return {
        name: 1 << bit
        for bit, name in enumerate(dict.fromkeys(name for name, _ in tables()["frames"]))
    }


@cache
def _frames() -> tuple[_Frame, ...]:
    return tuple(
        _Frame(name, _bits()[name], tuple(map(str.strip, text.split("&"))), needed(text)[0])
        for name, text in tables()["frames"]
    )


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
    bits = _bits()
    texts = [
        (kind, score, text.replace("HIDES", name))
        for name in ("HIDES", "HUSHES", "EXCUSES")
        for kind, score, text in tables()["acts"]
        if not (kind == "payment" and name == "EXCUSES")
    ]
    return tuple(
        (category, score, text, sum(bits[name] for name in text.split()))
        for category, score, text in dict.fromkeys(texts)
    )


def acts(text: str, words: Tagged, standing: Standing) -> Iterator[Sign]:
    """Yield the acts in a lower-case text; `words` and `standing` are its own."""
    found_here = words.present()
    frames = [each for each in _frames() if all(map(found_here.__and__, each.needs))]
    known = speaks = _bits()["SPEAKS"] if standing.veiled else 0
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
    found = [
        replace(each, frames=each.frames | speaks) if speaks and reader.unseen(each) else each
        for each in _with_frames(words, frames)
    ]
    for group, together in _groups(found):
        in_time()
        strongest: dict[str, tuple[float, int, int]] = {}
        for category, score, name, bits in wanted:
            if category == "payment" and speaks and reader.unseen(group[0]):
                continue  # a letter's preview says what was paid
            if bits & together != bits or score <= strongest.get(category, (0.0,))[0]:
                continue
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

    def unseen(self, sentence: _Found) -> bool:
        """Say whether a page does not show a sentence, which is no question of a dialog's."""
        start, end = self._words.span(sentence.first, sentence.last)
        return self._standing.unseen(start) and "?" not in self._text[start : end + 2]

    def _meant(self, sentence: _Found, bit: int) -> Span | None:
        """Return the place of a frame in a sentence."""
        if bit == _bits()["SPEAKS"] and self.unseen(sentence):
            return (self._words.span(sentence.first, sentence.first + 1)[0],) * 2
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
            return (
                frame.name != "EXCUSES"
                or _INVITES.search(self._text, max(0, start - _LEAD), end) is None
            )
        return not self._standing.forbidden(start, first)


def _with_frames(words: Tagged, frames: list[_Frame]) -> Iterator[_Found]:
    """Yield the sentences with frames in them; what is said twice is read once."""
    places = [*_sentences(words.tags)]
    rows = [words.tags[first - 1 : last] for first, last in places]
    pieces = [*dict.fromkeys(rows)]
    by_tag: defaultdict[str, set[int]] = defaultdict(set)
    for number, piece in enumerate(pieces):
        for tag in set(piece):
            by_tag[tag].add(number)
    those: dict[int, set[int]] = {}
    found = dict.fromkeys(pieces, 0)
    for frame in frames:
        in_time()
        for need in frame.needs:
            if need not in those:
                some = map(by_tag.__getitem__, by_tag.keys() & having(need))
                those[need] = set[int]().union(*some)
        for number in set.intersection(*map(those.__getitem__, frame.needs)):
            piece = pieces[number]
            if found[piece] & frame.bit or not all(p.search(piece) for p in frame.parts):
                continue
            if frame.name not in _TOLD or not _told().match(piece):
                found[piece] |= frame.bit
    for (first, last), piece in zip(places, rows, strict=True):
        if found[piece]:
            yield _Found(first, last, found[piece])


def _sentences(tags: str) -> Iterator[Span]:
    """Yield from where to where each sentence reaches, long ones in pieces."""
    for match in _SENTENCES.finditer(tags):
        start, last = match.span()
        while last - start > _LONGEST:
            yield start, start + _LONGEST
            start += _LONGEST // 2
        yield start, last
