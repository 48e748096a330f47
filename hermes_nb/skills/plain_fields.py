"""Frontmatter that is nothing but plain fields, read without a YAML parser.

Nine documents of ten hold `key: value` lines, lists of words and a mapping or two, of which only
one reading is possible. `plain_fields` reads these, ten times faster than a parser; whatever is
the least bit more it leaves alone. What it returns is what YAML says, which a property test holds
it to.
"""

from __future__ import annotations

import re
from typing import Any

_LINE = re.compile(r"( *)([A-Za-z_][A-Za-z0-9_-]*):(?: +(.*))?")
_ITEM = re.compile(r"( *)- +(.*)")
_PLAIN = re.compile(
    # No indicator at the beginning, and no `: ` or ` #` inside, which would mean something.
    r"(?![-?:,\[\]{}#&*!|>'\"%@`=~])(?:[!-9;-~]|:(?=[!-~])| (?=[^ #])|[\u00a1-\u167f\u2010-\u2027"
    r"\u2030-\u205e\u3001-\ud7ff])++"
)
_DOUBLE = re.compile(r'"([ !#-\[\]-~\u00a1-\u167f\u2010-\u2027\u2030-\u205e\u3001-\ud7ff]*)"')
_SINGLE = re.compile(r"'([ -&(-~\u00a1-\u167f\u2010-\u2027\u2030-\u205e\u3001-\ud7ff]*)'")
_ITEMS = re.compile(r"\[ ?([A-Za-z0-9][\w.+/-]*(?:, ?[A-Za-z0-9][\w.+/-]*)*+)? ?\]", re.ASCII)
_NULLS = frozenset({"null", "Null", "NULL"})
_LEVELS = 4
_LONGEST_KEY = 100
"""YAML allows 1,024 characters on the way to a key's colon."""


def plain_fields(head: str) -> dict[str, Any] | None:
    """Return the fields of a frontmatter, or None where it takes a parser to be sure."""
    root: dict[str, Any] = {}
    levels: list[tuple[int, dict[str, Any]]] = [(0, root)]
    opened: tuple[int, dict[str, Any], str] | None = None
    listed: tuple[int, list[str]] | None = None
    for line in head.split("\n"):
        if item := _ITEM.fullmatch(line):
            indent, value = len(item[1]), _value(item[2])
            if listed is None and opened is not None and indent >= opened[0]:
                listed = indent, []
                opened[1][opened[2]] = listed[1]
                opened = None
            if listed is None or indent != listed[0] or not isinstance(value, str):
                return None
            listed[1].append(value)
            continue
        listed = None
        match = _LINE.fullmatch(line)
        if match is None or match.end(2) > _LONGEST_KEY:
            return None
        indent, key, written = len(match[1]), match[2], match[3]
        if opened is not None and indent > opened[0] and len(levels) < _LEVELS:
            inner: dict[str, Any] = {}
            opened[1][opened[2]] = inner
            levels.append((indent, inner))
        while indent < levels[-1][0]:
            levels.pop()
        if indent != levels[-1][0] or key in levels[-1][1]:
            return None
        fields = levels[-1][1]
        value = _value(written) if written else ""
        if value is None:
            return None
        fields[key] = value
        opened = None if written else (indent, fields, key)
    return root


def _value(written: str) -> str | list[str] | None:
    """Return what a value says, None where that is not plain."""
    if _PLAIN.fullmatch(written) and written[-1] not in " :":
        return "" if written in _NULLS else written
    for quoted in (_DOUBLE, _SINGLE):
        if match := quoted.fullmatch(written):
            return match[1]
    if match := _ITEMS.fullmatch(written):
        items = match[1].split(",") if match[1] else []
        return ["" if item.strip() in _NULLS else item.strip() for item in items]
    return None
