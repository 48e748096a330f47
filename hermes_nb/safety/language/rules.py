"""What an injection says, as rules over classes of words, whatever the language.

A rule is a row of classes: `IGNORE ~3 PRIOR ~3 RULES` is a verb of ignoring, up to three words
later a word for "previous", and up to three words later one for "instructions". `A|B` is either,
`A?` perhaps, `!A` anything but (it takes no word), `~n` at most n words of the same sentence, `~~n`
at most n words that may cross a sentence's end, `<` the start of a sentence and `>` its end.

Every gap is bounded, so a rule takes time linear in the text.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain, islice

from hermes_nb.safety.language.alphabet import CONTINUED, PARAGRAPH, SENTENCE, class_bits, having
from hermes_nb.safety.language.phrasings import RULES
from hermes_nb.safety.language.tagging import Tagged
from hermes_nb.safety.reading.signs import APART, Sign, crowds

MARKS = 1.0
"""The score from which a text is suspicious."""
BLOCKS = 3.0
"""The score from which it is blocked: one plain order to ignore the rules, or several hints."""

_NEAR = 8
"""Tags between matches of a crowd, and `_CROWD` those that one spans at most."""
_CROWD = 400
_SEVERAL = 10
"""Rules from which on it is worth while to know where each class stands."""

_NEGATIVE = frozenset({"NEG", "NEG?", "NOLONGER", "WITHOUT", "SANS"})
_EITHER = {
    "SECRETS": ("SECRET", "ENVIRON", "VARIABLE", "FILE", "WEAKFILE"),
    "SECRETIVE": ("SECRET", "ENVIRON", "LOCKED", "SECRETNAME", "OTP"),
    "SENDS": ("CARRY",),
    "USERS": ("USER", "CLIENT"),
    "TELLS": ("VOICE", "MENTIONS", "INFORM"),
    "BOTS": ("MODEL", "MACHINE"),
}
"""Names for several classes."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule made ready: what it shows, how much it counts, and what has to be there for it.

    `all_of` has every class (`tagging.masks`) that no match can do without, and `one_of` a mask for
    each element that is one of several: a text in which one is missing is not searched, and most
    texts lack most of them. `needs` are all of these masks, and `reach` the tags that a match can
    span at most.
    """

    category: str
    score: float
    text: str
    all_of: int
    one_of: tuple[int, ...]
    needs: tuple[int, ...]
    reach: int
    negates: bool
    negated: bool


def applicable(present: int) -> Iterator[Rule]:
    """Yield the rules that can match in a text with these classes at all."""
    for rule in rules():
        if present & rule.all_of == rule.all_of and all(map(present.__and__, rule.one_of)):
            yield rule


def signs(words: Tagged) -> Iterator[Sign]:
    """Yield every place where a rule applies."""
    chosen = list(applicable(words.present()))
    places = Places(words.tags) if len(chosen) > _SEVERAL else None
    for rule in chosen:
        for first, last in _few(_matches(rule, words.tags, places)):
            start, end = words.span(first, last)
            yield Sign(
                *(rule.category, rule.text, rule.score, start, end),
                negates=rule.negates,
                negated=rule.negated,
            )


def _few(found: Iterator[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield matches; beyond `APART` of them, those close together as one."""
    yield from islice(found, APART)
    yield from crowds(found, near=_NEAR, longest=_CROWD)


def _matches(rule: Rule, tags: str, places: Places | None) -> Iterator[tuple[int, int]]:
    """Yield where a rule matches, as `finditer` does: only where all that it needs is near."""
    pattern = compiled(rule.text)
    if places is None:
        yield from (match.span() for match in pattern.finditer(tags))
        return
    done = 0
    for first, last in places.near(rule.needs, rule.reach):
        at = max(first, done)
        while at < last and (match := pattern.search(tags, at, last + rule.reach)):
            if match.start() >= last:
                break
            yield match.span()
            at = done = match.end()


class Places:
    """Where the classes of a row of tags stand, worked out for each when it is asked for."""

    def __init__(self, tags: str) -> None:
        self._by_tag: defaultdict[str, list[int]] = defaultdict(list)
        for place, tag in enumerate(tags):  # all of them: to look for each takes longer
            self._by_tag[tag].append(place)
        self._by_need: dict[int, list[int]] = {}

    def of(self, need: int) -> list[int]:
        """Return where a tag has one of the classes of a mask, in order."""
        found = self._by_need.get(need)
        if found is None:
            lists = [self._by_tag[tag] for tag in self._by_tag.keys() & having(need)]
            found = sorted(chain.from_iterable(lists)) if len(lists) > 1 else [*chain(*lists)]
            self._by_need[need] = found
        return found

    def near(self, needs: tuple[int, ...], reach: int) -> Iterator[tuple[int, int]]:
        """Yield where a match can begin: from and to, around the rarest class with all others."""
        rarest, *others = sorted(map(self.of, needs), key=len)
        first = last = -1
        for at in rarest:
            for other in others:
                index = bisect_right(other, at - reach)
                if index == len(other) or other[index] >= at + reach:
                    break
            else:
                if first >= 0 and at - reach <= last:
                    last = at + 1
                    continue
                if first >= 0:
                    yield first, last
                first, last = max(0, at - reach), at + 1
        if first >= 0:
            yield first, last


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules; their patterns are compiled when a text first has what they need."""
    return tuple(_ready(*each) for each in RULES)


def _ready(category: str, score: float, text: str) -> Rule:
    elements = text.split()
    needs = {mask(each) for each in elements if each[0].isalpha() and each[-1] != "?"}
    single = {need for need in needs if need.bit_count() == 1}
    return Rule(
        *(category, score, text),
        all_of=sum(single),
        one_of=tuple(sorted(needs - single)),
        needs=tuple(sorted(needs)),
        reach=sum(map(_most, elements)),
        negates=not _NEGATIVE.isdisjoint(elements),
        negated=category == "deception" or text.startswith("NEG"),
    )


def _most(element: str) -> int:
    """Return how many tags an element can take; behind each word may stand the mark of a phrase."""
    return int(element.lstrip("~")) if element.startswith("~") else 2


@cache
def compiled(text: str) -> re.Pattern[str]:
    """Return a rule's text as a regular expression over tags."""
    pattern = "".join(map(_element, text.removeprefix("< ").split()))
    if text.startswith("< "):
        head, bracket, rest = pattern.partition("]")
        pattern = f"{head}{bracket}(?<=[{SENTENCE}{PARAGRAPH}]{head}{bracket}){rest}"
    return re.compile(pattern)


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
    return _charset(mask(names))


@cache
def _charset(wanted: int) -> str:
    """Return the tags of a mask as ranges, which compile sooner than letters one by one."""
    ranges: list[tuple[int, int]] = []
    for point in sorted(map(ord, having(wanted))):
        first, last = ranges[-1] if ranges else (0, -1)
        if point == last + 1:
            ranges[-1] = (first, point)
        else:
            ranges.append((point, point))
    return "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in ranges) + "]"


@cache
def mask(names: str) -> int:
    """Return the mask of the classes in `A|B|C`; raise ValueError where no word is in one."""
    bits = class_bits()
    wanted = [each for name in names.split("|") for each in _EITHER.get(name, (name,))]
    if unknown := [name for name in wanted if name not in bits]:
        message = f"no word is in {unknown[0]!r}"
        raise ValueError(message)
    return sum({bits[name] for name in wanted})
