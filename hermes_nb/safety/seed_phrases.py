"""Find seed phrases of wallets: sequences of words from BIP-39's English list, in linear time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PHRASE = 12
"""Words of the shortest seed phrase."""
_LENGTHS = frozenset({12, 15, 18, 21, 24})
"""Numbers of words of a seed phrase in BIP-39."""
_SHORTEST = 47
"""Characters of the shortest seed phrase."""
_SEPARATED = r"[a-z ,\n\"'+]"
_RUNS = re.compile(rf"(?:{_SEPARATED}{{0,46}}+[^a-z ,\n\"'+]++)*+({_SEPARATED}*+)")
"""Skips runs that are too short for twelve words of three letters."""
_WORD = re.compile(r"[a-z]+")
_TWELVE = re.compile(r"(?:[a-z]{3,8}+[^a-z]{1,4}+){11}[a-z]{3,8}")


def seed_phrases(text: str) -> Iterator[tuple[int, int]]:
    """Yield start and end of each seed phrase."""
    if len(text) >= _SHORTEST:
        for run in _RUNS.finditer(text):
            yield from _phrases(text, *run.span(1))


def _phrases(text: str, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of each seed phrase between `at` and `end`."""
    if not _TWELVE.search(text, at, end):
        return
    words = _seed_words()
    row: list[re.Match[str]] = []
    for word in (*_WORD.finditer(text, at, end), None):
        if word is not None and word[0] in words:
            row.append(word)
            continue
        # A phrase has a standard length, or is longer with mostly different words.
        drawn = len({each[0] for each in row}) * 3 >= len(row) * 2
        if len(row) in _LENGTHS or (len(row) > _PHRASE and drawn):
            yield row[0].start(), row[-1].end()
        row.clear()


@cache
def _seed_words() -> frozenset[str]:
    return frozenset(Path(__file__).with_name("seed_words.txt").read_text("utf-8").split())
