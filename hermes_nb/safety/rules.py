"""What an injection says and wants, as rules over classes of words, whatever the language.

The rules are data: `rules.toml` says how one is written. A row of classes is a regular expression
over the tags of a text (`words`), tried on the sentences that have all of its classes. Some rows
are *intents*: something leaves for an address, a secret is taken, the user is kept from knowing.
None of them is an attack; rules say which of them are one when they stand close by each other.

Every gap is bounded, so a rule takes time linear in the text.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

from hermes_nb.safety import table
from hermes_nb.safety.patterns import Sign, Span, compiled, in_time
from hermes_nb.safety.words import CONTINUED, PARAGRAPH, SENTENCE, Tagged, lexicon

_REACH = 60
"""Tags that a row spans beyond its first sentence."""
_NEAR = 48
"""Tags around the first part of a row in which its other parts stand."""
_NEGATIVE = frozenset({"NEG", "NEG?", "NOLONGER", "WITHOUT", "SANS"})
_SENTENCES = re.compile(f"[^{SENTENCE}{PARAGRAPH}]+{SENTENCE}?")
_AT_ONCE = 5
"""Sentences with intents in them that may make up an attack together."""
_APART, _FAR = 100, 700
"""Tags between them, and characters from the first to the last, at most."""
_STEP = re.compile(r"\n[ \t]*(?:[-*+•|]|\d{1,3}[.)])|\n[ \t]*\n")
"""Where another item or paragraph begins: no intent goes on there."""
_STEPS = 2
"""How many of them an attack may reach over; none if it says whom it speaks to or hides from."""
_CLOSE = frozenset({"HIDES", "SPEAKS", "KNOWS"})
_ELSEWHERE = re.compile(r"\n[ \t]*(?:#|```)")
"""A heading or a fence, over which no attack reaches."""


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A row of classes: of a rule, with its category and score, or of an intent, with its name.

    `needs` are masks of which a sentence needs each to be tried, all of them unless it `crosses`
    into the next one.
    """

    name: str
    score: float
    text: str
    intent: bool
    parts: tuple[str, ...]
    needs: tuple[int, ...]
    crosses: bool
    negates: bool
    negated: bool


@dataclass(frozen=True, slots=True)
class Match:
    """A row that matches `tags[first:last]`; where its first part and its sentence stand."""

    row: RuleRow
    first: int
    last: int
    head: Span
    sentence: Span


@dataclass(frozen=True, slots=True)
class _Together:
    category: str
    score: float
    intents: frozenset[str]


@cache
def rows() -> tuple[RuleRow, ...]:
    """Return the rows of all rules and intents."""
    rules = [
        (name, score, text) for name, score, text in table("rules")["rules"] if " + " not in text
    ]
    intents = [(name, 0.0, text) for name, text in table("rules")["intents"]]
    names = {name for name, _, _ in intents}
    return tuple(
        _ready(*each, intent=each in intents)
        for each in dict.fromkeys([*rules, *intents])
        if each[2] not in names
    )


def _ready(name: str, score: float, text: str, *, intent: bool) -> RuleRow:
    elements = text.split()
    classes = [each for each in elements if each[0].isalpha() and each[-1] != "?"]
    crosses = "~~" in text or "SENTENCE" in elements[:-1]
    return RuleRow(
        *(name, score, text, intent),
        parts=tuple(map(str.strip, text.split("&"))),
        needs=tuple(dict.fromkeys(map(mask, classes[:1] if crosses else classes))),
        crosses=crosses,
        negates=not _NEGATIVE.isdisjoint(elements),
        negated=name == "deception" or text.startswith("NEG"),
    )


@cache
def _together() -> tuple[_Together, ...]:
    """Return what intents are together, each choice of them by itself."""
    names = {name for name, _ in table("rules")["intents"]}
    return tuple(
        _Together(category, score, frozenset(some))
        for category, score, text in table("rules")["rules"]
        if " + " in text or text in names
        for some in product(*(part.split("|") for part in text.split(" + ")))
    )


def matches(words: Tagged) -> Iterator[Match]:
    """Yield where rows match; of intents those that can be an attack with others."""
    tags = words.tags
    sentences = [match.span() for match in _SENTENCES.finditer(tags)]
    by_tag: defaultdict[str, set[int]] = defaultdict(set)
    for number, (start, end) in enumerate(sentences):
        for tag in tags[start:end]:
            by_tag[tag].add(number)
    where = _Where(by_tag)
    possible = [(row, found) for row in rows() if (found := where.all_of(row.needs))]
    here = {row.name for row, _ in possible if row.intent}
    useful = frozenset[str]().union(*(t.intents for t in _together() if t.intents <= here))
    for row, found in possible:
        if row.intent and row.name not in useful:
            continue
        in_time()
        for number in sorted(found):
            yield from _in_sentence(row, tags, sentences[number])


class _Where(dict[int, set[int]]):
    """The sentences that have one of the classes of a mask."""

    def __init__(self, by_tag: dict[str, set[int]]) -> None:
        super().__init__()
        self._by_tag = by_tag

    def __missing__(self, wanted: int) -> set[int]:
        masks = lexicon().masks
        places = (some for tag, some in self._by_tag.items() if masks.get(tag, 0) & wanted)
        found = self[wanted] = set[int]().union(*places)
        return found

    def all_of(self, needs: Iterable[int]) -> set[int]:
        """Return the sentences that have what is needed."""
        found: set[int] | None = None
        for need in needs:
            found = self[need] if found is None else found & self[need]
            if not found:
                break
        return found or set()


def _in_sentence(row: RuleRow, tags: str, sentence: Span) -> Iterator[Match]:
    start, end = sentence
    first, *others = map(expression, row.parts)
    for match in first.finditer(tags, start, end + _REACH if row.crosses else end):
        low, high = match.span()
        if low >= end:
            break
        around = max(start, low - _NEAR), min(end, high + _NEAR)
        spans = [found.span() for part in others if (found := part.search(tags, *around))]
        if len(spans) == len(others):
            low = min(low, *(span[0] for span in spans), low)
            high = max(high, *(span[1] for span in spans), high)
            yield Match(row, low, high, match.span(), sentence)


def signs(found: Iterable[Match], words: Tagged) -> Iterator[Sign]:
    """Yield matches of rules as signs."""
    for each in found:
        row = each.row
        yield Sign(
            *(row.name, row.text, row.score, *words.span(each.first, each.last)),
            negates=row.negates,
            negated=row.negated,
        )


def together(found: Iterable[Match], words: Tagged) -> Iterator[Sign]:
    """Yield the attacks that intents make up which stand close to each other."""
    sentences: defaultdict[Span, dict[str, Match]] = defaultdict(dict)
    for match in found:
        sentences[match.sentence].setdefault(match.row.name, match)
    groups = sorted(sentences.items())
    names = frozenset[str]().union(*(found for _, found in groups))
    wanted = [each for each in _together() if each.intents <= names]
    for index, (sentence, own) in enumerate(groups if wanted else ()):
        in_time()
        here: dict[str, Match] = {}
        for other, some in groups[index : index + _AT_ONCE]:
            if other[0] - sentence[1] < _APART:
                here = some | here
        strongest: dict[str, tuple[float, int, int]] = {}
        for each in wanted:
            known = strongest.get(each.category, (0.0,))[0]
            if (
                each.score <= known
                or each.intents.isdisjoint(own)
                or not each.intents <= here.keys()
            ):
                continue
            chosen = [here[name] for name in each.intents]
            low, high = min(m.first for m in chosen), max(m.last for m in chosen)
            start, end = words.span(low, high)
            if _close(words.text, start, end, 0 if each.intents & _CLOSE else _STEPS):
                strongest[each.category] = each.score, start, end
        for category, (score, start, end) in strongest.items():
            yield Sign(category, "together", score, start, end, negated=True)


def _close(text: str, start: int, end: int, steps: int) -> bool:
    """Return whether what lies between is one passage of at most so many steps."""
    if end - start > _FAR or _ELSEWHERE.search(text, start, end):
        return False
    return len(_STEP.findall(text, start, end)) <= steps


def unbroken(text: str, place: Span) -> bool:
    """Return whether no other item or paragraph begins in a place."""
    return _STEP.search(text, *place) is None


@cache
def expression(text: str) -> re.Pattern[str]:
    """Return a row as a regular expression over tags."""
    pattern = "".join(map(_element, text.removeprefix("< ").split()))
    if text.startswith("< "):
        head, bracket, rest = pattern.partition("]")
        pattern = f"{head}{bracket}(?<=[{SENTENCE}{PARAGRAPH}]{head}{bracket}){rest}"
    return compiled(pattern)


def _element(element: str) -> str:
    if element.startswith("~~"):
        return f"[^{PARAGRAPH}]{{0,{element[2:]}}}?"
    if element.startswith("~"):
        return f"[^{SENTENCE}{PARAGRAPH}]{{0,{element[1:]}}}?"
    if element == ">":
        return f"(?=[{SENTENCE}{PARAGRAPH}]|$)"
    if element == "SENTENCE":
        return SENTENCE
    if element.startswith("!"):
        return f"(?!{charset(element[1:])})"
    if element.endswith("?"):
        return f"(?:{charset(element[:-1])}{CONTINUED}?)?"
    return f"{charset(element)}{CONTINUED}?"


@cache
def charset(names: str) -> str:
    """Return the regular expression for the tags of any of the classes in `A|B|C`."""
    wanted = mask(names)
    return f"[{''.join(sorted(tag for tag, known in lexicon().masks.items() if known & wanted))}]"


@cache
def mask(names: str) -> int:
    """Return the mask of the classes in `A|B|C`; raise ValueError where no word is in one."""
    bits, either = lexicon().bits, table("rules")["either"]
    wanted = "|".join(either.get(name, name) for name in names.split("|")).split("|")
    if unknown := [name for name in wanted if name not in bits]:
        raise ValueError(f"no word is in {unknown[0]!r}")
    return sum({bits[name] for name in wanted})
