"""The list of an index's words.

Only words that a process meets for the first time are looked up: asking costs more than indexing
does.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection
from dataclasses import dataclass, field
from functools import lru_cache

from hermes_nb.memory.search import words
from hermes_nb.memory.search.documents import MARK

_MOST_KNOWN = 50_000


class Vocabulary:
    """The list of words of the index of a name, as one transaction adds to it."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._known = _known(name)
        self._prove()

    def add(self, forms: set[str]) -> None:
        """Put the words among the terms of some forms into the list."""
        terms = {form: words.of_form(form) for form in forms - self._known.forms}
        new = {term for found in terms.values() for term in found if _is_word(term)}
        new -= self._known.unproven
        if new and (last := self._insert(new)):
            self._known.unproven |= new
            self._known.witness = last
        if len(self._known.forms) < _MOST_KNOWN:
            unproven = self._known.unproven
            self._known.forms.update(
                form for form, found in terms.items() if unproven.isdisjoint(found)
            )

    def _insert(self, new: Collection[str]) -> tuple[int, str] | None:
        """Add words that may be there already; return the number and the word of the last new one.

        None if all were there.
        """
        added = self._connection.execute(
            "INSERT OR IGNORE INTO search_words (word) SELECT value FROM json_each(?)",
            (json.dumps(sorted(new)),),
        ).rowcount
        if not added:
            return None
        query = "SELECT id, word FROM search_words ORDER BY id DESC LIMIT 1"
        return tuple(self._connection.execute(query).fetchone())

    def _prove(self) -> None:
        """Take the words that the last transaction has added for known, if they are there."""
        if self._known.witness is None:
            return
        found = self._connection.execute(
            "SELECT 1 FROM search_words WHERE id = ? AND word = ?", self._known.witness
        ).fetchone()
        if found and len(self._known.forms) < _MOST_KNOWN:
            self._known.forms |= self._known.unproven
        self._known.unproven.clear()
        self._known.witness = None


@dataclass(slots=True)
class _Known:
    """The forms of which a process knows that an index has their words, or that they have none.

    The words that the last transaction has added are unproven: it may yet be rolled back. Then
    the witness, the last one of them, is not in the list either.
    """

    forms: set[str] = field(default_factory=set)
    unproven: set[str] = field(default_factory=set)
    witness: tuple[int, str] | None = None


@lru_cache(maxsize=4)
def _known(name: str) -> _Known:  # noqa: ARG001 - the key
    return _Known()


def _is_word(term: str) -> bool:
    """Say whether a term is kept in the list of words: marks, and what a part may be asked of."""
    return term[0] == MARK or (len(term) > 3 and term.isalpha())  # noqa: PLR2004
