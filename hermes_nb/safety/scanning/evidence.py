"""Everything in a text that speaks for an attack, with its place in the original."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain

from hermes_nb.safety.language.acts import acts
from hermes_nb.safety.language.lexicon import lexicon
from hermes_nb.safety.language.rules import BLOCKS, MARKS, charset, mask, signs
from hermes_nb.safety.language.standing import Standing
from hermes_nb.safety.language.tagging import Tagged
from hermes_nb.safety.reading.encodings import CIPHERS, Decoded, deciphered, decoded
from hermes_nb.safety.reading.normalise import normalise
from hermes_nb.safety.reading.patterns import (
    Late,
    Sign,
    Span,
    characters,
    deadline,
    in_time,
    lowered,
    ranges,
    some,
)
from hermes_nb.safety.scanning.flows import flows
from hermes_nb.safety.scanning.imitations import imitations
from hermes_nb.safety.scanning.surface import hidden_elements, traces
from hermes_nb.safety.scanning.threats import STRONG, threats


@dataclass(frozen=True, slots=True)
class Evidence:
    """A sign of an attack: its category, what shows it, how much it counts, and where it stands."""

    category: str
    sign: str
    score: float
    start: int
    end: int


DENSE = "too_dense"
"""The category of a text that could not be read in time, or is nothing but attacks."""
_ATTACKS, _SPARSE = 24, 2_700
"""Places with signs from which on a text is nothing but attacks if they add up to a blocked one,
and characters for each of them; of 285 honest texts none has more than three."""
_PLACE = 100
"""Characters within which signs count as one place: an order has several."""
_DEEPEST = 4
"""How often what was decoded is decoded again; more layers than that are a finding themselves."""
_TELLING = 2
"""How many words of an injection have to appear in a cipher for it to be undone."""
_DECIPHERED = 12_000
"""Characters of each cipher that are undone; lines beyond are a finding as they are."""
_LAST_LINE = 200
"""Characters of a last line that is read by itself where the rest is not."""
_STRONG, _WEAK = 2.0, 0.5
"""What a threat counts: a strong one is marked where it stands, two weak ones are."""
_DISGUISE = 1.0
"""What hiding adds: an order that was encoded or hidden was hidden for a reason."""

Place = Callable[[int, int], Span]


def evidence(text: str) -> list[Evidence]:
    """Return the evidence in a text, in its order: what was found of it in time."""
    found: list[Evidence] = []
    lexicon()  # made ready before the clock runs
    try:
        with deadline(len(text)):
            found.extend(invisible(text))
            found.extend(_layer(text, lambda start, end: (start, end), 0))
        places = {item.start // _PLACE for item in found}
        attacked = len(places) >= max(_ATTACKS, len(text) // _SPARSE) and total(found) >= BLOCKS
    except Late:
        attacked = True
    if attacked:
        found.append(_withheld(text))
    found.sort(key=lambda item: (item.start, item.end, -item.score))
    return found


def _withheld(text: str) -> Evidence:
    """Return that nothing of a text is loaded.

    A short last line is read by itself: it may say how a command ended.
    """
    end = text.rfind("\n")
    if end <= 0 or len(text) - end > _LAST_LINE or evidence(text[end:]):
        end = len(text)
    return Evidence(DENSE, "unread", MARKS, 0, end)


def total(found: Iterable[Evidence]) -> float:
    """Return how much pieces of evidence count together: each sign once, at its strongest.

    Signs of a category that stand on the same words say the same thing, so they count as one.
    """
    strongest: dict[tuple[str, str], Evidence] = {}
    for item in found:
        known = strongest.get((item.category, item.sign))
        if known is None or item.score > known.score:
            strongest[item.category, item.sign] = item
    counted = 0.0
    reached: dict[str, tuple[int, float]] = {}
    for item in sorted(strongest.values(), key=lambda each: each.start):
        end, score = reached.get(item.category, (-1, 0.0))
        if item.start < end:
            counted += max(0.0, item.score - score)
            reached[item.category] = max(end, item.end), max(score, item.score)
        else:
            counted += item.score
            reached[item.category] = item.end, item.score
    return counted


def _layer(text: str, place: Place, depth: int) -> Iterator[Evidence]:
    """Yield the evidence in a text that came out of `depth` encodings; `place` leads back."""
    view = normalise(text)
    lower = lowered(view.text)
    words = Tagged(lower)
    veiled, hidden = _hidden(lower)
    standing = Standing(lower, words, veiled)
    for start, end in _orders(lower, veiled):
        yield Evidence("hidden_html", "short order", MARKS, *place(*view.span(start, end)))
    for sign in _meant(view.text, lower, words, standing):
        start, end = place(*view.span(sign.start, sign.end))
        score = sign.score
        index = bisect_right(hidden, (sign.start, len(lower))) - 1
        if index >= 0 and sign.start < hidden[index][1]:
            yield Evidence("hidden_html", "order", 0.5, start, end)
            score += _DISGUISE
        yield Evidence(sign.category, sign.name, score, start, end)
    runs = _decoded(view.text, standing)
    runs += () if depth else _exchanged(view.text, words)
    spans = [place(*view.span(run.start, run.end)) for run in runs]
    for run, span in zip(runs, spans, strict=True):
        if not run.text:
            yield Evidence("encoded", "too much", 1, *span)
    if depth == _DEEPEST:
        yield from (Evidence("encoded", "deep", 1, start, end) for start, end in spans)
    elif runs:
        inner, back = _together([run.text for run in runs], spans)
        for item in _layer(inner, back, depth + 1):
            score = item.score + (0 if depth else _DISGUISE)
            yield Evidence(item.category, item.sign, score, item.start, item.end)


def _hidden(lower: str) -> tuple[list[Span], list[Span]]:
    """Return the elements that a page does not show, and with them its comments."""
    if "<" not in lower:
        return [], []
    veiled = [match.span() for match in hidden_elements()[0].finditer(lower)]
    return veiled, sorted([*veiled, *(match.span() for match in _COMMENT.finditer(lower))])


def _orders(lower: str, veiled: list[Span]) -> Iterator[Span]:
    """Yield the hidden elements that say nothing but an order."""
    order = hidden_elements()[1]
    yield from (span for span in veiled if order.match(lower, *span))


def _decoded(text: str, standing: Standing) -> list[Decoded]:
    """Return what the encoded runs of a text say."""
    runs: list[Decoded] = []
    for run in decoded(text):
        in_time()
        if not standing.example(run.start, run.end):
            runs.append(run)
    return runs


def _together(texts: list[str], spans: list[Span]) -> tuple[str, Place]:
    """Return texts as one, a paragraph each, and the way from there to their spans."""
    starts = [0, *accumulate(len(text) + 2 for text in texts)]

    def place(start: int, _end: int) -> Span:
        return spans[min(bisect_right(starts, start), len(spans)) - 1]

    return "\n\n".join(texts), place


def _exchanged(text: str, words: Tagged) -> Iterator[Decoded]:
    """Yield the lines that make sense when read backwards or with their letters exchanged."""
    for cipher in CIPHERS:
        if not words.present() & mask(cipher):
            continue
        found = [match.start() for match in re.finditer(charset(cipher), words.tags)]
        if len(found) < _TELLING:
            continue
        room = _DECIPHERED
        places = (words.span(index, index + 1)[0] for index in found)
        for run in deciphered(text, cipher, places):
            room -= len(run.text)
            if room < 0:
                yield Decoded(run.start, words.span(found[-1], found[-1] + 1)[1], "")
                break
            yield run


def _meant(plain: str, lower: str, words: Tagged, standing: Standing) -> Iterator[Sign]:
    """Yield what rules and patterns find in a text and what stands there as an attack."""
    prose = chain(signs(words), acts(lower, words, standing))
    found = chain(prose, traces(lower), imitations(lower), _harm(plain))
    for sign in found:
        in_time()
        if standing.meant(sign):
            yield sign


def _harm(text: str) -> Iterator[Sign]:
    """Yield what code in a text would do to whoever runs it."""
    for threat in threats(text):
        score = _STRONG if threat.weight >= STRONG else _WEAK
        yield Sign(threat.category, threat.rule, score, threat.start, threat.end)
    for threat in flows(text, code=True):
        yield Sign(threat.category, threat.rule, BLOCKS, threat.start, threat.end)


_COMMENT = re.compile(r"<!--(?:[^-]|-(?!->)){0,20000}+(?:-->)?")

_TAGS = re.compile(
    "(?:\U0001f3f4[\U000e0020-\U000e007f]{2,8}\U000e007f)|([\U000e0000-\U000e007f]{2,})"
)
_TAG = ranges(("\U000e0000", "\U000e007f"))
_INSIDE = re.compile(
    "[\u200b-\u200d\u2060\ufeff](?<=[A-Za-z].)[\u200b-\u200d\u2060\ufeff]*(?=[A-Za-z])"
)
_JOINER = ranges(("\u200b", "\u200d"), ("\u2060", "\u2060"), ("\ufeff", "\ufeff"))
_SPLIT = 3
"""Invisible characters inside Latin words that no longer are leftovers of a web page."""


def invisible(text: str) -> Iterator[Evidence]:
    """Yield the characters that show nothing and have no business where they are."""
    if text.isascii():
        return
    here = characters(text)
    if not _TAG.isdisjoint(here):
        yield from _unseen("tags", 2, (m.span(1) for m in _TAGS.finditer(text) if m[1]))
    for sign, score, these, pattern in _UNSEEN:
        if not these.isdisjoint(here):
            yield from _unseen(sign, score, (m.span() for m in pattern.finditer(text)))
    if not _JOINER.isdisjoint(here):
        inside = [m.span() for m in _INSIDE.finditer(text)]
        if len(inside) >= _SPLIT:
            yield Evidence("invisible", "inside", 1, inside[0][0], inside[-1][1])


_UNSEEN = (
    (
        *("selectors", 2, ranges(("\ufe00", "\ufe0f"), ("\U000e0100", "\U000e01ef"))),
        re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]{4,}"),
    ),
    ("override", 1, frozenset("\u202d\u202e"), re.compile("[\u202d\u202e]")),
    (
        *("run", 1, ranges(("\u200b", "\u200f"), ("\u2060", "\u2064"), ("\ufeff", "\ufeff"))),
        re.compile("[\u200b-\u200f\u2060-\u2064\ufeff]{8,}+"),
    ),
)
"""Other signs that show nothing: what they are called and count, which they are, and as a run."""


def _unseen(sign: str, score: float, places: Iterator[Span]) -> Iterator[Evidence]:
    for start, end in some(places):
        yield Evidence("invisible", sign, score, start, end)
