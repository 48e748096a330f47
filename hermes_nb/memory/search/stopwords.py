"""Words that say nothing about what a query is after, by language.

Used on queries alone: the index holds every word, so that a quoted phrase may contain them.
"""

from __future__ import annotations

from functools import lru_cache

from hermes_nb.memory.search.stems import listed
from hermes_nb.memory.search.words import fold


@lru_cache(maxsize=1)
def _sets() -> dict[str, frozenset[str]]:
    return {name: frozenset(fold(text).split()) for name, text in listed()["stop_words"].items()}


def stop_words(words: list[str]) -> frozenset[str]:
    """Return the stop words of the language that most of these folded words speak for.

    English where nothing speaks for another one: "die" and "was" are words in more than one.
    """
    votes = {name: sum(word in known for word in words) for name, known in _sets().items()}
    best = max(votes, key=lambda name: (votes[name], name == "en"))
    return _sets()[best]
