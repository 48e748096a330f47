"""What a line of text counts for: the words, numbers and names in it that must not get lost."""

from __future__ import annotations

import re
from collections.abc import Mapping

_CATEGORIES: Mapping[str, tuple[float, str]] = {
    "error": (
        2.6,
        "error errors exception traceback failed fails failing failure failures fatal panic denied "
        "refused cannot can't couldn't missing invalid timeout timed aborted killed segfault "
        "mismatch unexpected warning corrupt broken fehler erreur",
    ),
    "decision": (
        1.3,
        "decided decide decision chose chosen choose agreed settled instead rather plan because "
        "prefer preferred conclusion concluded cause confirmed switched replaced keep kept",
    ),
    "rule": (
        1.1,
        "must never always don't not only without least most requires required require forbidden "
        "forbid avoid should shouldn't important remember ensure sure limit note nicht niemals",
    ),
    "open": (
        1.3,
        "todo fixme xxx pending open remaining remains next later waiting blocked need needs "
        "follow unresolved until still question outstanding ask",
    ),
}
_WEIGHTS = {name: weight for name, (weight, _) in _CATEGORIES.items()}
_KEYWORDS = {word: name for name, (_, words) in _CATEGORIES.items() for word in words.split()}
_BASE = 0.2
_NUMBERED = 1.3
_PATHLIKE = 1.2
_NAMED = 0.8

_WORD = re.compile(r"[^\W\d_]+(?:'t)?")
_DIGIT = re.compile(r"\d")
_NUMBER = re.compile(
    r"[^\W\d_][\"'`)\]]{0,2}(?:\s{0,3}(?:[=:→]|->)\s{0,3}|\s{1,3})[\"'`($€£<>~≈+-]{0,3}\d|"
    r"\d\s?(?:%|[^\W\d_]{1,12}\b)"
)
_PATH = re.compile(
    r"(?<![a-z0-9])[a-z0-9]++://\w|[A-Za-z]:\\|[~.]{0,2}/[\w.~@-]+|\w/\w|"
    r"\w\.(?:py|ipynb|[ct]sv|jsonl?|ya?ml|toml|md|txt|parquet|db|sqlite|sql|log|cfg|ini|js|ts|"
    r"html|sh|png|pdf|pkl|h5|xlsx?|gz|zip|rs|go|cpp|java)\b"
)
_NAME = re.compile(r"\b(?:[A-Z]{2,}[-_]\d+|[0-9a-f]{7,40}|v?\d+\.\d+\.\d+)\b|\w@\w")


def weigh(line: str) -> float:
    """Return what a line counts for, 0.2 at least; the cost is linear in its length."""
    lower = line.lower()
    found = {_KEYWORDS[word] for word in _WORD.findall(lower) if word in _KEYWORDS}
    if "error" in lower or "exception" in lower:
        found.add("error")
    if lower.rstrip().endswith("?"):
        found.add("open")
    weight = _BASE + sum(_WEIGHTS[name] for name in found)
    if _DIGIT.search(line) and _NUMBER.search(line):
        weight += _NUMBERED
    if ("/" in line or "." in line or "\\" in line) and _PATH.search(line):
        weight += _PATHLIKE
    if _NAME.search(line):
        weight += _NAMED
    return weight


def reason(line: str) -> int:
    """Return where in a line the first thing stands that makes it count."""
    places = [match.start() for match in (_NUMBER.search(line), _PATH.search(line)) if match]
    for match in _WORD.finditer(line.lower()):
        if match[0] in _KEYWORDS:
            places.append(match.start())
            break
    return min(places, default=0)


def promise(line: str) -> float:
    """Return quickly, and roughly, what a line may count for."""
    score = 0.3
    if "=" in line or ": " in line:
        score += 1.0
    if "/" in line:
        score += 0.6
    if "rror" in line or "ail" in line or "RROR" in line or "xception" in line:
        score += 2.0
    return score
