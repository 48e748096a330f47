"""Everyday words that stand for each other when people tell and when they ask."""

from __future__ import annotations

from functools import lru_cache

from hermes_nb.memory.search.stems import listed, stem


def alternatives(term: str) -> tuple[str, ...]:
    """Return the stems of words that may have been said instead of a term."""
    return _table().get(term, ())


@lru_cache(maxsize=1)
def _table() -> dict[str, tuple[str, ...]]:
    table: dict[str, dict[str, None]] = {}
    for group in listed()["groups"].split(";"):
        stems = dict.fromkeys(stem(word) for word in group.split())
        for term in stems:
            table.setdefault(term, {}).update(stems)
    return {term: tuple(other for other in found if other != term) for term, found in table.items()}
