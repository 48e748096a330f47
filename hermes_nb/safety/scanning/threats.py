"""What code in a text must not do, as the rules in `threats.toml`: a pattern and a weight each.

Weights: `STRONG` needs no other sign to be dangerous; `WEAK` is what honest skills do now and then,
so that it takes two different ones; `SHOWN` is what honest guides show: it is pointed out, and
asked about when it is run. A rule that is `shown` is that as long as nobody is ordered to follow it
on the quiet. What the agent itself writes must not hold a download that goes into a shell
(`piped`), which a guide by somebody else may show. Every pattern is anchored at a rare word and
bounded behind it, which keeps the whole linear in the length of the text.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hermes_nb.safety.reading.patterns import Span, followed, in_time, spans

STRONG = 2
WEAK = 1
SHOWN = 0
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
    shown: bool
    pattern: str


_INSTALLER = re.compile(
    r"(?i)https://[\w.-]{1,80}(?:/[^\s\"'|]{0,160})?"
    r"(?:install|setup|get[-_.]|bootstrap|/sh\b|rustup|nvm|uv|cli)|https://(?:get|sh|install)\."
)
_PLAIN_HTTP = re.compile(r"http://(?!localhost|127\.|\[::1)|https?://\d{1,3}(?:\.\d{1,3}){3}")
_SPUR = (
    "(?![ \\t]+(?:forget|skip|omit|fail|miss|hesitate|stop|worry|mind|panic|ask|tell|wait|bother))"
)
"""What does not follow a prohibition: with it, it is an encouragement."""
_FORBIDS = re.compile(
    r"(?i)\b(?:never|don'?t|do not|must not)\b"
    rf"{_SPUR}|\b(?:avoid|forbidden|blocked?|refuse[sd]?|detect\w*|prevent\w*|flag(?:s|ged)?|reject\w*"
    r"|instead of|warn\w*|dangerous)\b|\bgrep\b[^\n]{0,80}['\"]"
)
_PROHIBITS = re.compile(
    r"(?i)\b(?:never|don'?t|do not|must not|should not|avoid|refuse to|instead of|rather than)\b"
    rf"{_SPUR}[^,;:]{{0,60}}$"
)
"""What alone excuses a download that goes into a shell, in what the agent writes."""
_ORDERS = re.compile(
    r"(?i)\b(?:silently|quietly|secretly|covertly|discreetly|immediately|mandatory|behalf"
    r"|without[ ](?:asking|telling|confirm\w*|permission|mention\w*)"
    r"|do not (?:tell|mention|ask|inform)"
    r"|before (?:anything|answering|continuing|responding|you (?:answer|continue|respond)))\b"
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
    steps = rule.get("steps") or [rule["pattern"]]
    pattern = followed(steps, rule.get("within", ()), rule.get("barring", ()))
    return _Rule(
        category=rule["category"],
        name=rule["name"],
        weight=rule["weight"],
        shown=rule.get("shown", False),
        needs=tuple(rule["needs"]),
        pattern=pattern.replace("{secret_file}", secret_file),
    )


def threats(text: str, *, code: bool = False, guide: bool = False) -> Iterator[Threat]:
    """Yield what is harmful in a text; `code` says that all of it is code, `guide` that it teaches.

    In prose a line that forbids or describes what follows on it is none.
    """
    for rule in _rules():
        for start, end in spans(rule.pattern, text, rule.needs):
            in_time()
            weight = _graded(rule, text, (start, end), guide=guide)
            if weight is not None and (code or not _forbidden(text, start, _FORBIDS)):
                passage = " ".join(text[start : min(end, start + 4 * PASSAGE)].split())[:PASSAGE]
                yield Threat(rule.category, rule.name, weight, passage, start, end)


def piped(text: str, *, code: bool = False) -> Iterator[Threat]:
    """Yield the downloads that a text has run unread: by a shell, or by what evaluates code."""
    plain = _SPLICES.sub(lambda match: " " * len(match[0]) if "\n" in match[0] else "", text)
    for pattern in _pipes():
        for start, end in spans(pattern, plain):
            if code or not _forbidden(plain, start, _PROHIBITS):
                passage = " ".join(plain[start:end].split())[:PASSAGE]
                yield Threat("remote-code", "pipe-to-shell", STRONG, passage)


_SPLICES = re.compile(r"\\\n|''|\"\"|\\(?=[a-z])")
"""What a shell reads as nothing: a line that goes on, empty quotes, a needless backslash."""


@cache
def _pipes() -> tuple[str, ...]:
    """Return the patterns of `threats.toml` for downloads that are run unread."""
    data = tomllib.loads(Path(__file__).with_name("threats.toml").read_text(encoding="utf-8"))
    parts = {name: data["pipe"][name] for name in ("fetch", "shell")}
    return tuple(
        re.sub(r"\{(fetch|shell)\}", lambda m: parts[m[1]], p) for p in data["pipe"]["patterns"]
    )


def _graded(rule: _Rule, text: str, place: Span, *, guide: bool) -> int | None:
    """Return a passage's weight, None for what everybody documents: a vendor's installer."""
    passage = text[slice(*place)]
    downloads = rule.name in ("download-and-run", "powershell-download")
    if downloads and _PLAIN_HTTP.search(passage):
        return STRONG
    if guide and rule.shown:
        ordered = _ORDERS.search(text, max(0, place[0] - _PARAGRAPH), place[0])
        return rule.weight if ordered else SHOWN
    excused = rule.name == "download-and-run" and _INSTALLER.search(passage)
    return None if excused else rule.weight


def _forbidden(text: str, position: int, words: re.Pattern[str]) -> bool:
    """Say whether the sentence up to `position`, on its line, forbids or describes what follows."""
    quoted = text[max(0, position - 2) : position]
    inline = quoted.endswith("`") and quoted != "``"
    line = text.rfind("\n\n" if inline else "\n", 0, position) + 1
    start = max(line, position - (_PARAGRAPH if inline else _LINE))
    before = text[start:position]
    for end in _SENTENCE_END.finditer(text, start, position):
        before = text[end.end() : position]
    return words.search(before) is not None
