"""The few HTML tags that a text may use: bare ones, which can carry nothing, in pairs that close.

A tag that closes what the text did not open would close what we opened around it.
"""

from __future__ import annotations

import re

VOID = frozenset({"br", "hr"})
INLINE = frozenset("b em i strong u s del ins mark small sub sup kbd".split())
FOLDS = frozenset({"details", "summary"})
_TAG = re.compile(r"<(/?)([a-z]+)[ \t]*(/?)>", re.IGNORECASE)
_FOLD = re.compile(r"</?(?:details|summary)\b[^>]*>", re.IGNORECASE)
_FOLD_LINE = re.compile(
    r"^(?:(<details(?: open)?>)[ \t]*(?:<summary>[^<\n]*</summary>)?|<summary>[^<\n]*</summary>"
    r"|(</details>))[ \t]*$",
    re.MULTILINE,
)
_FIRST = re.compile(r"^(?:[^\S\n]|[>*+\-0-9.)])*+<", re.MULTILINE)


def folds_close(text: str) -> bool:
    """Say whether a text's `<details>` stand on lines of their own and all of them close."""
    depth = tags = 0
    for line in _FOLD_LINE.finditer(text):
        tags += len(_FOLD.findall(line[0]))
        depth += bool(line[1]) - bool(line[2])
        if depth < 0:
            return False
    return depth == 0 and tags == len(_FOLD.findall(text))


def kept_tags(block: str, *, folds: bool) -> frozenset[str]:
    """Return the names of the tags that a block may keep; `folds` allows `<details>`."""
    kept = VOID | FOLDS if folds else VOID
    unclosed: list[str] = []
    for closing, name, void in _TAG.findall(block.lower()):
        if name not in INLINE:
            continue
        if void or (closing and (not unclosed or unclosed.pop() != name)):
            return kept
        if not closing:
            unclosed.append(name)
    return kept if unclosed else kept | INLINE


def bare(tag: str, kept: frozenset[str]) -> bool:
    """Say whether what begins like a tag is one of those kept."""
    found = _TAG.fullmatch(tag) or re.fullmatch(r"<()(details) open()>", tag)
    return found is not None and found[2].lower() in kept


def begins_html(block: str) -> bool:
    """Say whether a line of a block begins with a tag: parsers may then read it all as HTML."""
    return _FIRST.search(block) is not None
