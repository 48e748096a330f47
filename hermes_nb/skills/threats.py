"""What code in a skill must not do, as the rules in `threats.toml`: a pattern and a weight each.

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
from importlib.resources import files

STRONG = 2
WEAK = 1
PASSAGE = 160
"""Characters of a passage that are shown."""


@dataclass(frozen=True, slots=True)
class Threat:
    """A passage that does harm, or looks like it. `rule` tells apart what is of one category."""

    category: str
    rule: str
    weight: int
    passage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    category: str
    name: str
    weight: int
    needs: tuple[str, ...]
    pattern: re.Pattern[str]


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
_SENTENCE_END = re.compile(r"[.!?][ \t]")


@cache
def _rules() -> tuple[_Rule, ...]:
    """Return the rules of `threats.toml`; compiling them is for the first skill, not the import."""
    data = tomllib.loads(files(__package__).joinpath("threats.toml").read_text(encoding="utf-8"))
    return tuple(
        _Rule(
            category=rule["category"],
            name=rule["name"],
            weight=rule["weight"],
            needs=tuple(rule["needs"]),
            pattern=re.compile(rule["pattern"].replace("{secret_file}", data["secret_file"])),
        )
        for rule in data["rule"]
    )


def threats(text: str, *, code: bool = False) -> Iterator[Threat]:
    """Yield what is harmful in a text; `code` says that all of it is code.

    In prose a line that forbids or describes what follows on it is none.
    """
    lower = text.lower()
    for rule in _rules():
        if not any(word in lower for word in rule.needs):
            continue
        for match in rule.pattern.finditer(text):
            weight = _graded(rule, match)
            if not weight or (not code and _forbidden(text, match.start())):
                continue
            passage = " ".join(match[0].split())[:PASSAGE]
            yield Threat(rule.category, rule.name, weight, passage)
            break


def _graded(rule: _Rule, match: re.Match[str]) -> int:
    """Return a match's weight: an installer by its vendor's URL is what everybody documents."""
    if rule.name != "download-and-run":
        return rule.weight
    url = match["url"]
    if _PLAIN_HTTP.search(url):
        return STRONG
    return 0 if _INSTALLER.search(url) else rule.weight


def _forbidden(text: str, position: int) -> bool:
    """Say whether the sentence up to `position`, on its line, forbids or describes what follows."""
    start = max(text.rfind("\n", 0, position) + 1, position - 120)
    before = text[start:position]
    for end in _SENTENCE_END.finditer(text, start, position):
        before = text[end.end() : position]
    return _FORBIDS.search(before) is not None
