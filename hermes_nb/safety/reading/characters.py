"""Which characters a text has: what most passes over a text ask first, to be spared it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache


@lru_cache(maxsize=4)
def characters(text: str) -> frozenset[str]:
    """Return the characters of a text; worked out once for all who ask about the same text."""
    return frozenset(text)


def ranges(*some: tuple[str, str]) -> frozenset[str]:
    """Return the characters from a first to a last one, of each pair."""
    return frozenset(chr(code) for one, last in some for code in range(ord(one), ord(last) + 1))


@lru_cache(maxsize=4)
def lowered(text: str) -> str:
    """Return a text in lower case; beyond ASCII that is dear, and several want it."""
    return text.lower()


def counted(some: Iterable[str]) -> tuple[int, int]:
    """Return how many characters are letters and signs beyond ASCII, and how many ideographs."""
    odd = [c for c in some if c > "\x7f"]
    ideographs = sum(map(ideograph, odd))
    return len(odd) - ideographs, ideographs


def ideograph(character: str) -> bool:
    """Say whether a character is an ideograph or a syllable of Hangul."""
    return "\u3400" <= character <= "\u9fff" or "\uac00" <= character <= "\ud7a3"
