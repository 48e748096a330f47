"""The part of a text that a query is about: found by its words, in linear time, within a size."""

from __future__ import annotations

import re

from hermes_nb.memory.search.stems import stem
from hermes_nb.memory.search.stopwords import stop_words
from hermes_nb.memory.search.words import pieces

MOST_WORDS = 40
READ = 400_000
"""Characters of a text that are looked through; of a longer one its beginning has to do."""
_SHORTEST_STEM = 4
_CUT = 30
"""Characters that a cut may move to fall between words."""


def query_words(query: str) -> list[str]:
    """Return the words of a query that say what it is after, once each, in lower case."""
    found = list(dict.fromkeys(piece.lower() for piece in pieces(query[:8_000])))
    idle = stop_words(found)
    return [word for word in found if word not in idle][:MOST_WORDS] or found[:MOST_WORDS]


def word_start(word: str) -> str:
    """Return how the forms of a word begin: `paint` for `painted`, a short word itself."""
    root = stem(word)
    return root if len(root) >= _SHORTEST_STEM and word.startswith(root) else word


def matcher(query: str) -> re.Pattern[str] | None:
    """Return a pattern that finds a query's words in a text, None when it has none."""
    starts = sorted({word_start(word) for word in query_words(query)}, key=len, reverse=True)
    if not starts:
        return None
    return re.compile(r"(?i)(?<![^\W_])(?:" + "|".join(map(re.escape, starts)) + ")")


def excerpt(text: str, pattern: re.Pattern[str] | None, size: int) -> str:
    """Return about `size` characters of `text` where most different words of the query are.

    An ellipsis stands where something was left out; without a match it is the beginning.
    """
    if len(text) <= size:
        return text
    start = 0 if pattern is None else _best_start(text[:READ], pattern, size)
    end = min(len(text), start + size)
    start = max(0, end - size)
    if start and (blank := text.find(" ", start, start + _CUT)) >= 0:
        start = blank + 1
    if end < len(text) and (blank := text.rfind(" ", max(start, end - _CUT), end)) > start:
        end = blank
    return f"{'… ' if start else ''}{text[start:end].strip()}{' …' if end < len(text) else ''}"


def _best_start(text: str, pattern: re.Pattern[str], size: int) -> int:
    """Return where a window of `size` characters begins that has the most different words."""
    found = [(match.start(), match[0].lower()) for match in pattern.finditer(text)]
    counts: dict[str, int] = {}
    most, best = 0, 0
    last = 0
    for position, word in found:
        while last < len(found) and found[last][0] < position + size * 3 // 4:
            counts[found[last][1]] = counts.get(found[last][1], 0) + 1
            last += 1
        if len(counts) > most:
            most, best = len(counts), position
        counts[word] -= 1
        if not counts[word]:
            del counts[word]
    return max(0, best - size // 4)
