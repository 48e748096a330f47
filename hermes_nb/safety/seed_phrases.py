"""Finds seed phrases of wallets: words of BIP-39's English list in a row. Linear in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

_PHRASE = 12
_LENGTHS = frozenset({12, 15, 18, 21, 24})
"""Words of the shortest seed phrase, and of each; the list is BIP-39's English one."""
_SHORTEST = 47
_SEPARATED = r"[a-z ,\n\"'+]"
_RUNS = re.compile(rf"(?:{_SEPARATED}{{0,46}}+[^a-z ,\n\"'+]++)*+({_SEPARATED}*+)")
"""Passes over all runs that are too short for twelve words of three letters."""
_WORD = re.compile(r"[a-z]+")
_TWELVE = re.compile(r"(?:[a-z]{3,8}+[^a-z]{1,4}+){11}[a-z]{3,8}")


def seed_phrases(text: str) -> Iterator[tuple[int, int]]:
    """Yield where phrases begin and end."""
    if len(text) >= _SHORTEST:
        for run in _RUNS.finditer(text):
            yield from _phrases(text, *run.span(1))


def _phrases(text: str, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where phrases begin and end between `at` and `end`."""
    if not _TWELVE.search(text, at, end):
        return
    words = _seed_words()
    row: list[re.Match[str]] = []
    for word in (*_WORD.finditer(text, at, end), None):
        if word is not None and word[0] in words:
            row.append(word)
            continue
        # A phrase has a length of the standard's, or is one among others drawn at random.
        drawn = len({each[0] for each in row}) * 3 >= len(row) * 2
        if len(row) in _LENGTHS or (len(row) > _PHRASE and drawn):
            yield row[0].start(), row[-1].end()
        row.clear()


@cache
def _seed_words() -> frozenset[str]:
    return frozenset(Path(__file__).with_name("seed_words.txt").read_text("utf-8").split())
