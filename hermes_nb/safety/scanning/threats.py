"""What code in a text must not do, as the rules in `threats.toml`: a pattern and a weight each.

Weights: `STRONG` needs no other sign to be dangerous; `WEAK` is what honest skills do now and then,
so that it takes two different ones. Every pattern is anchored at a rare word and bounded behind it,
which keeps the whole linear in the length of the text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from hermes_nb.safety.reading.characters import lowered
from hermes_nb.safety.reading.needs import Needs
from hermes_nb.safety.reading.normalise import Span
from hermes_nb.safety.reading.quick import spans
from hermes_nb.safety.reading.signs import crowds
from hermes_nb.safety.reading.steps import Steps
from hermes_nb.safety.reading.vocabulary import vocabulary

STRONG = 2
WEAK = 1
_ASKED = 40
"""For how many passages of a rule it is asked whether they are forbidden; more are a flood."""
PASSAGE = 160
"""Characters of a passage that are shown."""


@dataclass(frozen=True, slots=True)
class Threat:
    """A passage that does harm, or looks like it. `rule` tells apart what is of one category.

    It is `text[start:end]`; `passage` is how it is shown.
    """

    category: str
    rule: str
    weight: int
    passage: str
    start: int = 0
    end: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    category: str
    name: str
    weight: int
    needs: tuple[str, ...]
    pattern: str = ""
    steps: Steps | None = None

    def places(self, text: str) -> Iterator[Span]:
        """Yield where the rule's pattern, or its steps, are found."""
        if self.steps is not None:
            return self.steps.places(text)
        return spans(self.pattern, text)


_INSTALLER = re.compile(
    r"(?i)https://[\w.-]{1,80}(?:/[^\s\"'|]{0,160})?"
    r"(?:install|setup|get[-_.]|bootstrap|/sh\b|rustup|nvm|uv|cli)|https://(?:get|sh|install)\."
)
_PLAIN_HTTP = re.compile(r"http://(?!localhost|127\.|\[::1)|https?://\d{1,3}(?:\.\d{1,3}){3}")
_FORBIDS = re.compile(
    r"(?i)\b(?:never|don'?t|do not|must not)\b"
    r"(?![ \t]+(?:forget|skip|omit|fail|miss|hesitate|stop))"
    r"|\b(?:avoid|forbidden|blocked?|refuse[sd]?|detect\w*|prevent\w*|flag(?:s|ged)?|reject\w*"
    r"|instead of|warn\w*|dangerous)\b|\bgrep\b[^\n]{0,80}['\"]"
)
_LINE = 120
_PARAGRAPH = 300
"""Characters before a passage in which it may be forbidden; what is quoted in prose is wrapped."""
_SENTENCE_END = re.compile(r"[.!?][ \t]")


@cache
def _rules() -> tuple[_Rule, ...]:
    """Return the rules of `threats.toml`; a pattern is compiled when a text first needs it."""
    data = tomllib.loads(Path(__file__).with_name("threats.toml").read_text(encoding="utf-8"))
    return tuple(_ready(rule, data["secret_file"]) for rule in data["rule"])


def _ready(rule: dict[str, Any], secret_file: str) -> _Rule:
    """Return a rule as it stands in the file, made ready."""
    steps = [step.replace("{secret_file}", secret_file) for step in rule.get("steps", ())]
    return _Rule(
        category=rule["category"],
        name=rule["name"],
        weight=rule["weight"],
        needs=tuple(rule["needs"]),
        pattern=rule.get("pattern", "").replace("{secret_file}", secret_file),
        steps=Steps(
            patterns=tuple(steps), within=tuple(rule["within"]), barring=tuple(rule["barring"])
        )
        if steps
        else None,
    )


@cache
def _needs() -> Needs:
    return Needs([rule.needs for rule in _rules()])


def threats(text: str, *, code: bool = False) -> Iterator[Threat]:
    """Yield what is harmful in a text; `code` says that all of it is code.

    In prose a line that forbids or describes what follows on it is none.
    """
    for rule in map(_rules().__getitem__, _needs().met(vocabulary(lowered(text)).has)):
        found = rule.places(text)
        for start, end in islice(found, _ASKED):
            weight = _graded(rule, text[start:end])
            if weight and (code or not _forbidden(text, start)):
                yield _threat(rule, weight, text, start, end)
        for start, end in crowds(place for place in found if _graded(rule, text[slice(*place)])):
            yield _threat(rule, rule.weight, text, start, end)


def _threat(rule: _Rule, weight: int, text: str, start: int, end: int) -> Threat:
    passage = " ".join(text[start : min(end, start + 4 * PASSAGE)].split())[:PASSAGE]
    return Threat(rule.category, rule.name, weight, passage, start, end)


def _graded(rule: _Rule, passage: str) -> int:
    """Return a passage's weight: an installer by its vendor's URL is what everybody documents."""
    if rule.name != "download-and-run":
        return rule.weight
    if _PLAIN_HTTP.search(passage):
        return STRONG
    excused = len(passage) < 4 * PASSAGE and _INSTALLER.search(passage)  # not the rest of a flood
    return 0 if excused else rule.weight


def _forbidden(text: str, position: int) -> bool:
    """Say whether the sentence up to `position`, on its line, forbids or describes what follows."""
    quoted = text[max(0, position - 2) : position]
    inline = quoted.endswith("`") and quoted != "``"
    line = text.rfind("\n\n" if inline else "\n", 0, position) + 1
    start = max(line, position - (_PARAGRAPH if inline else _LINE))
    before = text[start:position]
    for end in _SENTENCE_END.finditer(text, start, position):
        before = text[end.end() : position]
    return _FORBIDS.search(before) is not None
