r"""Finds many patterns in one text by the words that they begin with.

A regular expression with a choice of words at its head is tried at nearly every place of a text,
and there are a hundred of them. Where the words stand is found ten times faster, and once for all
patterns; only there a pattern is tried. What is found is what `finditer` finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache, lru_cache

from hermes_nb.safety.reading.characters import lowered
from hermes_nb.safety.reading.work import WORK

_SHORTEST = 2
"""Letters that a word needs to be worth looking for by itself."""
_DENSE = 60
"""Characters for each place of a word; where they are fewer, the whole text is searched at once."""
_FLAGS = re.compile(r"\(\?[a-z]+\)")
_LITERAL = re.compile(r"\\([.$*+?()\[\]{}|^/\\-])|([^\\.^$*+?()\[\]{}|])")
_LIKE_ASCII = (("\u017f", "s"), ("\u212a", "k"), ("\u0130", "i"), ("\u0131", "i"))
"""Letters beyond ASCII that are ASCII ones where case does not count."""


class _Text:
    """A text, and where the words stand that were looked for so far, in lower case."""

    def __init__(self, text: str) -> None:
        plain = text
        if not text.isascii():
            for sign, letter in _LIKE_ASCII:
                plain = plain.replace(sign, letter)
        lower = lowered(plain)
        if len(lower) != len(text):
            lower = "".join(c.lower() if len(c.lower()) == 1 else c for c in text)
        self.lower = lower
        self._places: dict[str, list[int]] = {}

    def places(self, word: str) -> list[int]:
        places = self._places.get(word)
        if places is None:
            places = self._places[word] = []
            at = self.lower.find(word)
            while at >= 0:
                places.append(at)
                at = self.lower.find(word, at + 1)
        return places


_text = lru_cache(maxsize=4)(_Text)
"""A text is searched for a hundred patterns in a row."""


def forget() -> None:
    """Let go of the texts that were searched last."""
    _text.cache_clear()


def spans(pattern: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield where a pattern is found in a text, as `finditer` does.

    A scan has a bounded amount of work for it (`work`): behind where that ends nothing is found,
    and the scan is told.
    """
    expression, words = compiled(pattern)
    if not words:
        return (match.span() for match in expression.finditer(text))
    known = _text(text)
    found = [known.places(word) for word in words]
    count = sum(map(len, found))
    most = _affordable(pattern, count)
    if most == count and count * _DENSE > len(text):
        return (match.span() for match in expression.finditer(text))
    places = sorted(set().union(*found)) if len(found) > 1 else found[0]
    if most < len(places):
        _told(places[most])
    return _matched(expression, text, places[:most])


def possible(pattern: str, text: str) -> bool:
    """Say whether a text has a word that a pattern begins with, if it begins with one."""
    words = compiled(pattern)[1]
    return not words or any(map(_text(text).lower.__contains__, words))


def matches(pattern: str, text: str) -> Iterator[re.Match[str]]:
    """Yield the matches of a pattern, as `finditer` does, however many there are.

    It is for patterns that begin with a word and are cheap to try: that is not counted as work.
    """
    expression, words = compiled(pattern)
    known = _text(text)
    done = 0
    for at in sorted(set().union(*map(known.places, words))):
        if at >= done and (match := expression.match(text, at)):
            done = match.end()
            yield match


def _affordable(pattern: str, count: int) -> int:
    """Return at how many of its places there is work enough to try a pattern."""
    work = WORK.get()
    if work is None:
        return count
    each = 1 + _reach(pattern) // _STEP
    most = min(count, work.allowed // _SHARE // each, (work.allowed - work.spent) // each)
    work.spend(most * each)
    return most


def _told(place: int) -> None:
    """Tell the scan in progress that a pattern is not tried from a place on."""
    if (work := WORK.get()) is not None:
        work.skip(place)


_SHARE = 5
"""Part of all the work that one pattern can have, so that something is left for the others."""
_STEP = 100
"""Characters that a pattern may look ahead for each unit."""
_BOUND = re.compile(r"\{\d*,(\d+)\}")


@cache
def _reach(pattern: str) -> int:
    """Return how far a pattern looks ahead, in characters, more or less."""
    return sum(map(int, _BOUND.findall(pattern)))


def _matched(
    expression: re.Pattern[str], text: str, places: list[int]
) -> Iterator[tuple[int, int]]:
    done = 0
    for at in places:
        if at >= done and (match := expression.match(text, at)):
            done = match.end()
            yield at, done


@cache
def compiled(pattern: str) -> tuple[re.Pattern[str], tuple[str, ...]]:
    """Return a pattern compiled, and the words one of which every match begins with, if known."""
    words = starts(pattern)
    useful = words and all(len(word) >= _SHORTEST for word in words)
    return re.compile(pattern), tuple(sorted(words)) if useful else ()


def starts(pattern: str) -> frozenset[str]:
    """Return the words in lower case with which a match can begin; none if that is not certain.

    Looks through `(?i)`, a group around all of it, word boundaries and one choice at the head.
    """
    pattern = pattern.removeprefix("(?i)")
    if _FLAGS.match(pattern):
        return frozenset()  # `(?x)` changes what is literal
    words: set[str] = set()
    for branch in _branches(pattern):
        found = _heads(branch)
        if not found:
            return frozenset()
        words |= found
    # A word that begins with another one is found where that one is.
    return frozenset(
        word for word in words if not any(word != o and word.startswith(o) for o in words)
    )


def _heads(branch: str) -> frozenset[str]:
    branch = branch.removeprefix(r"\b")
    for opening in ("(?:", "(?i:"):
        if branch.startswith(opening):
            end = _size(branch, 0)
            if branch[end : end + 1] in {"?", "*", "+", "{"}:
                return frozenset()
            return starts(branch[len(opening) : end - 1])
    word = ""
    at = 0
    while literal := _LITERAL.match(branch, at):
        letter = literal[1] or literal[2]
        if branch[literal.end() : literal.end() + 1] in {"?", "*", "+", "{"}:
            break
        word += letter
        at = literal.end()
    return frozenset({word.lower()} if word else ())


def _branches(pattern: str) -> list[str]:
    """Return the alternatives of a pattern."""
    branches = [""]
    at = 0
    while at < len(pattern):
        size = _size(pattern, at)
        if pattern[at] == "|":
            branches.append("")
        else:
            branches[-1] += pattern[at : at + size]
        at += size
    return branches


def _size(pattern: str, at: int) -> int:
    """Return the length of what stands at a place: a sign, an escape, a set or a whole group."""
    end = at + 1
    if pattern[at] == "\\":
        end += 1
    elif pattern[at] == "[":
        end += pattern.startswith("^", end)
        end += 1  # a bracket right at the beginning is a sign
        while pattern[end] != "]":
            end += 1 + (pattern[end] == "\\")
        end += 1
    elif pattern[at] == "(":
        while pattern[end] != ")":
            end += _size(pattern, end)
        end += 1
    return end - at
