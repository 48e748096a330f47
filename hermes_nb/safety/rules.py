"""Match prompt injections with rules over word classes, independent of the language.

`rules.toml` contains the rules and describes their syntax. The module `words` replaces each word of
a text with a tag, a character for the word's classes (such as "verbs for ignoring"). A *row* is a
sequence of classes, such as `IGNORE PRIOR RULES`, compiled to a regular expression over the tags.
It is tried on sentences that have all of its classes. Some rows are *intents*: data is sent to an
address, a secret is read, something is hidden from the user. An intent alone is not an attack.
Rules define which combinations of intents form an attack when they are close together.

All gaps are bounded, so matching takes linear time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, reduce
from itertools import product
from operator import or_

from hermes_nb.safety import table
from hermes_nb.safety.patterns import Sign, Span, compiled, in_time
from hermes_nb.safety.words import CONTINUED, PARAGRAPH, SENTENCE, Tagged, lexicon

_REACH = 60
"""Number of tags that a row can extend beyond its first sentence."""
_NEAR = 48
"""Maximum distance in tags between a row's first part and its other parts."""
_NEGATIVE = frozenset({"NEG", "NEG?", "NOLONGER", "WITHOUT", "SANS"})
_SENTENCES = re.compile(f"[^{SENTENCE}{PARAGRAPH}]+{SENTENCE}?")
_AT_ONCE = 5
"""Maximum number of sentences with intents that can form one attack."""
_APART, _FAR = 100, 700
"""Maximum number of tags between these sentences, and maximum characters of the attack."""
_STEP = re.compile(r"\n[ \t]*(?:[-*+•|]|\d{1,3}[.)])|\n[ \t]*\n")
"""Matches the start of a list item or paragraph, a *step*. An intent does not extend across it."""
_STEPS = 2
"""Maximum number of steps that begin within an attack. With an intent in `_CLOSE`, none may."""
_CLOSE = frozenset({"HIDES", "SPEAKS", "KNOWS"})
"""Intents that mention the reader or hide something."""
_ELSEWHERE = re.compile(r"\n[ \t]*(?:#|```)")
"""Matches a heading or a code fence. An attack does not extend across it."""


@dataclass(frozen=True, slots=True)
class RuleRow:
    """A sequence of word classes that belongs to a rule or to an intent."""

    name: str
    """The rule's category or the intent's name."""
    score: float
    """The rule's score, or 0 for an intent."""
    text: str
    """The row as written in `rules.toml`."""
    intent: bool
    """Whether it belongs to an intent."""
    parts: tuple[str, ...]
    """The row's parts, separated by `&`. All must occur near the first, in any order."""
    needs: tuple[int, ...]
    """Bit masks of classes. The row is tried on a sentence that has a class from each mask."""
    crosses: bool
    """Whether it can extend into the next sentence. If so, `needs` has only its first class."""
    negates: bool
    """Whether it contains a negation."""
    negated: bool
    """Whether a preceding negation does not excuse it: it begins with one or is a deception."""


@dataclass(frozen=True, slots=True)
class Match:
    """A match of a row."""

    row: RuleRow
    """The row."""
    first: int
    """Index of the first tag."""
    last: int
    """Index after the last tag."""
    head: Span
    """Tags of the row's first part."""
    sentence: Span
    """Tags of its sentence."""


@dataclass(frozen=True, slots=True)
class _Together:
    """A combination of intents that is an attack."""

    category: str
    """Id of the kind of attack."""
    score: float
    """Weight, on the scale of `patterns.BLOCKS`."""
    intents: frozenset[str]
    """Names of the intents."""


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
def _attack_combinations() -> tuple[_Together, ...]:
    """Return the combinations of intents that are attacks, one per alternative."""
    names = {name for name, _ in table("rules")["intents"]}
    return tuple(
        _Together(category, score, frozenset(some))
        for category, score, text in table("rules")["rules"]
        if " + " in text or text in names
        for some in product(*(part.split("|") for part in text.split(" + ")))
    )


def matches(words: Tagged) -> Iterator[Match]:
    """Yield the matches of rows. Intents are included only if they can be part of an attack."""
    tags = words.tags
    sentences = [match.span() for match in _SENTENCES.finditer(tags)]
    by_tag: defaultdict[str, set[int]] = defaultdict(set)
    for number, (start, end) in enumerate(sentences):
        for tag in tags[start:end]:
            by_tag[tag].add(number)
    where = _Where(by_tag)
    classes = reduce(or_, (lexicon().masks.get(tag, 0) for tag in by_tag), 0)
    possible = [(row, found) for row in candidates(classes) if (found := where.all_of(row.needs))]
    here = {row.name for row, _ in possible if row.intent}
    useful = frozenset[str]().union(
        *(t.intents for t in _attack_combinations() if t.intents <= here)
    )
    for row, found in possible:
        if row.intent and row.name not in useful:
            continue
        in_time()
        for number in sorted(found):
            yield from _in_sentence(row, tags, sentences[number])


def candidates(classes: int) -> Iterable[RuleRow]:
    """Return the rows that need only these classes.

    This filter is quick, and most texts contain few classes.
    """
    impossible = reduce(or_, (some for need, some in _needed().items() if not need & classes), 0)
    return (row for number, row in enumerate(rows()) if not impossible >> number & 1)


@cache
def _needed() -> dict[int, int]:
    """Return, for each mask that a row has in `needs`, a bit mask of the rows that have it."""
    needed: defaultdict[int, int] = defaultdict(int)
    for number, row in enumerate(rows()):
        for need in row.needs:
            needed[need] |= 1 << number
    return dict(needed)


class _Where(dict[int, set[int]]):
    """For each bit mask, the numbers of the sentences with one of its classes.

    Computed on first use.
    """

    def __init__(self, by_tag: dict[str, set[int]]) -> None:
        super().__init__()
        self._by_tag = by_tag

    def __missing__(self, wanted: int) -> set[int]:
        masks = lexicon().masks
        places = (some for tag, some in self._by_tag.items() if masks.get(tag, 0) & wanted)
        found = self[wanted] = set[int]().union(*places)
        return found

    def all_of(self, needs: Iterable[int]) -> set[int]:
        """Return the numbers of the sentences that have a class from every mask in `needs`."""
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
    """Convert rule matches to signs."""
    for each in found:
        row = each.row
        yield Sign(
            *(row.name, row.text, row.score, *words.span(each.first, each.last)),
            negates=row.negates,
            negated=row.negated,
        )


def combined_signs(found: Iterable[Match], words: Tagged) -> Iterator[Sign]:
    """Yield attacks: combinations of intents that are close together."""
    sentences: defaultdict[Span, dict[str, Match]] = defaultdict(dict)
    for match in found:
        sentences[match.sentence].setdefault(match.row.name, match)
    groups = sorted(sentences.items())
    names = frozenset[str]().union(*(found for _, found in groups))
    wanted = [each for each in _attack_combinations() if each.intents <= names]
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
    """Return whether a passage is short enough and has at most `steps` items or paragraphs."""
    if end - start > _FAR or _ELSEWHERE.search(text, start, end):
        return False
    return len(_STEP.findall(text, start, end)) <= steps


def unbroken(text: str, place: Span) -> bool:
    """Return whether a span of text contains no start of a list item or paragraph."""
    return _STEP.search(text, *place) is None


@cache
def expression(text: str) -> re.Pattern[str]:
    """Compile a row of `rules.toml`, such as `IGNORE ~3 RULES`, to a pattern that matches tags."""
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
    """Return a character class (`[…]`) with all tags that belong to a class in `A|B|C`."""
    wanted = mask(names)
    return f"[{''.join(sorted(tag for tag, known in lexicon().masks.items() if known & wanted))}]"


@cache
def mask(names: str) -> int:
    """Return the bit mask for the classes in `A|B|C`. Raise ValueError if a class is unknown."""
    bits, either = lexicon().bits, table("rules")["either"]
    wanted = "|".join(either.get(name, name) for name in names.split("|")).split("|")
    if unknown := [name for name in wanted if name not in bits]:
        raise ValueError(f"unknown word class {unknown[0]!r}")
    return sum({bits[name] for name in wanted})
