"""What an injection says, as rules over classes of words, whatever the language.

A rule is a row of classes: `IGNORE ~3 PRIOR ~3 RULES` is a verb of ignoring, up to three words
later a word for "previous", and up to three words later one for "instructions". `A|B` is either,
`A?` perhaps, `!A` anything but (it takes no word), `~n` at most n words of the same sentence, `~~n`
at most n words that may cross a sentence's end, `<` the start of a sentence and `>` its end.

Every gap is bounded, so a rule takes time linear in the text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypedDict

from hermes_nb.safety.language.tagging import (
    CONTINUED,
    PARAGRAPH,
    SENTENCE,
    Tagged,
    class_bits,
    masks,
    present,
)
from hermes_nb.safety.reading.patterns import Sign, compiled, in_time, windows

MARKS = 1.0
"""The score from which a text is suspicious."""
BLOCKS = 3.0
"""The score from which it is blocked: one plain order to ignore the rules, or several hints."""

_TAGS, _REACH = 600, 60
"""Tags that are read at once, and those that a rule spans at most."""
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


class Tables(TypedDict):
    """What `rules.toml` holds: rules and acts with category and score, frames with their name."""

    rules: list[tuple[str, float, str]]
    frames: list[tuple[str, str]]
    acts: list[tuple[str, float, str]]


@cache
def tables() -> Tables:
    """Return what `rules.toml` holds, read once."""
    data = tomllib.loads(Path(__file__).with_name("rules.toml").read_text(encoding="utf-8"))
    return Tables(rules=data["rules"], frames=data["frames"], acts=data["acts"])


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule made ready: what it shows, how much it counts, and masks of which it needs each.

    `all_of` are those of them that are one class each, together.
    """

    category: str
    score: float
    text: str
    needs: tuple[int, ...]
    all_of: int
    negates: bool
    negated: bool


def applicable(found: int) -> Iterator[Rule]:
    """Yield the rules that can match in a text with these classes at all."""
    for rule in rules():
        if found & rule.all_of == rule.all_of and all(map(found.__and__, rule.needs)):
            yield rule


def signs(words: Tagged) -> Iterator[Sign]:
    """Yield every place where a rule applies."""
    tags = words.tags
    done: dict[str, int] = {}
    for start, stop in windows(len(tags), _TAGS):
        for rule in applicable(present(tags[start : stop + _REACH])):
            in_time()
            begin = max(start, done.get(rule.text, 0))
            for match in row(rule.text).finditer(tags, begin, stop + _REACH):
                if match.start() >= stop:
                    break
                done[rule.text] = match.end()
                places = words.span(*match.span())
                yield Sign(
                    *(rule.category, rule.text, rule.score, *places),
                    negates=rule.negates,
                    negated=rule.negated,
                )


@cache
def rules() -> tuple[Rule, ...]:
    """Return the rules; their patterns are compiled when a text first has what they need."""
    return tuple(_ready(*each) for each in tables()["rules"])


def needed(text: str) -> tuple[tuple[int, ...], int]:
    """Return the masks of which a row needs each, and those that are one class each, together."""
    found = {mask(each) for each in text.split() if each[0].isalpha() and each[-1] != "?"}
    return tuple(sorted(found)), sum(need for need in found if need.bit_count() == 1)


def _ready(category: str, score: float, text: str) -> Rule:
    return Rule(
        *(category, score, text),
        *needed(text),
        negates=not _NEGATIVE.isdisjoint(text.split()),
        negated=category == "deception" or text.startswith("NEG"),
    )


@cache
def row(text: str) -> re.Pattern[str]:
    """Return a rule's text as a regular expression over tags."""
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
    return f"[{''.join(having(mask(names)))}]"


@cache
def having(wanted: int) -> frozenset[str]:
    """Return the tags that have one of the classes of a mask."""
    return frozenset(tag for tag, known in masks().items() if known & wanted)


@cache
def mask(names: str) -> int:
    """Return the mask of the classes in `A|B|C`; raise ValueError where no word is in one."""
    bits = class_bits()
    wanted = [each for name in names.split("|") for each in _EITHER.get(name, (name,))]
    if unknown := [name for name in wanted if name not in bits]:
        message = f"no word is in {unknown[0]!r}"
        raise ValueError(message)
    return sum({bits[name] for name in wanted})
