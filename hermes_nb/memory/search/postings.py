"""Access to SQLite's full-text index for one search, restricted by the search's filter.

All filters except times are part of the SQL statement, so that excluded messages don't count
against the query's budget.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from hermes_nb.core.messages import Json, Role
from hermes_nb.memory.search import documents
from hermes_nb.memory.search.documents import GRAM, grams, known, word_list
from hermes_nb.memory.search.query import AllOf, AnyOf, Node, Phrase, Without
from hermes_nb.storage.words import stem

MOST_WORDS = 60
"""Maximum number of words to find for part of a word."""
RECOGNISED = 3
"""Minimum number of trigrams in a word for finding similar words."""
MOST_ALIKE = 20
"""Maximum number of similar words."""
STALE = 1.1
"""A cached word count is used until the index has grown by this factor."""
MOST_COMMON = 1_000
"""Maximum number of cached counts of common expressions."""
_ENDINGS = ("", "g", "ng", "ing", "d", "ed", "s", "es", "n", "on", "ion", "y", "r", "er", "e")
"""Endings, and parts of endings, that complete a prefix before it is stemmed."""
_EVERYTHING = f'"{documents.WRITTEN}" *'
"""FTS5 expression that matches all messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """The messages that are searched."""

    session_id: str = ""
    """The only session to search, or "" for all."""
    exclude: Collection[str] = ()
    """Ids of excluded sessions."""
    since: float | None = None
    """Earliest time in seconds since the epoch, or None for no limit."""
    until: float | None = None
    """End time in seconds since the epoch (exclusive); None for no limit."""
    roles: Collection[Role] = ()
    """The roles, or empty for all."""

    def admits(self, session_id: str, role: str, at: float) -> bool:
        """Return whether a message is to be searched."""
        return (
            (not self.session_id or session_id == self.session_id)
            and session_id not in self.exclude
            and (not self.roles or role in self.roles)
            and (self.since is None or at >= self.since)
            and (self.until is None or at < self.until)
        )


def expression(node: Node) -> str:
    """Return a node as an FTS5 expression."""
    match node:
        case Phrase(terms, prefix):
            if not prefix:
                return f'"{" ".join(terms)}"'
            *before, start = terms
            ends = (f"{start} *", *stems_of(start))
            found = (f'"{" ".join((*before, end))}"' for end in ends)
            return "(" + " OR ".join(found).replace(' *"', '" *') + ")"
        case AllOf(operands):
            return "(" + " AND ".join(expression(operand) for operand in operands) + ")"
        case AnyOf(operands):
            return "(" + " OR ".join(expression(operand) for operand in operands) + ")"
        case Without(kept, dropped):
            whole = expression(kept) if kept else _EVERYTHING
            return f"({whole} NOT {expression(dropped)})"


def stems_of(start: str) -> list[str]:
    """Return the stems that match the start of a word, which may end in the middle of an ending."""
    stems = {stem(start + ending) for ending in _ENDINGS}
    return [each for each in sorted(stems) if start.startswith(each)]


class Postings:
    """The SQLite index as a `SearchIndex`; `name` identifies the index in caches."""

    def __init__(self, connection: sqlite3.Connection, only: Filter, *, name: str = "") -> None:
        self._connection = connection
        self._name = name
        self._where = ""
        self._values: dict[str, object] = {}
        self._restrict(only)

    def documents(self, match: Node, *, most: int) -> list[int]:
        # One string takes a third as long as one row per document.
        (found,) = self._read("group_concat(rowid)", expression(match), most)
        return numbers_in(found)

    def count(self, match: Node, *, most: int) -> int:
        return self._count(expression(match), most)

    def _count(self, match: str, most: int) -> int:
        """Return the number of documents that match; above `most`, extrapolate from the newest."""
        number, oldest = self._read("count(*), min(rowid)", match, most + 1)
        return self._estimate(number, oldest, most)

    def counted(self, match: Node, *, most: int) -> tuple[int, list[int] | None]:
        # With a filter, the query takes most of the time, so return its documents too. Without one,
        # reading the documents would take the longest, and an expression that was recently too
        # common still is.
        asked = expression(match)
        if not self._where:
            common = known(self._name).common
            count, last = common.get(asked, (0, 0))
            if count > most and self._bounds[1] <= STALE * last:
                return count, None
            count = self._count(asked, most)
            if count > most and len(common) < MOST_COMMON:
                common[asked] = (count, self._bounds[1])
            return count, None
        columns = "count(*), min(rowid), group_concat(rowid)"
        number, oldest, found = self._read(columns, asked, most + 1)
        return self._estimate(number, oldest, most), numbers_in(found) if number <= most else None

    def _estimate(self, number: int, oldest: int, most: int) -> int:
        if number <= most:
            return number
        first, last = self._bounds
        return int(number * max(1.0, (last - first) / max(1, last - oldest)))

    def _read(self, columns: str, match: str, most: int) -> tuple[Json, ...]:
        row: tuple[Json, ...] = self._connection.execute(
            f"SELECT {columns} FROM (SELECT rowid FROM search_text"  # noqa: S608 - constant
            f" WHERE search_text MATCH :match{self._where} ORDER BY rowid DESC LIMIT :most)",
            {**self._values, "match": match, "most": most},
        ).fetchone()
        return row

    def known(self, terms: Collection[str]) -> set[str]:
        rows = self._connection.execute(
            "SELECT word FROM search_words WHERE word IN (SELECT value FROM json_each(?))",
            (json.dumps(list(terms)),),
        )
        return {row[0] for row in rows}

    def words_like(self, text: str) -> list[str]:
        if len(text) < GRAM:
            return []
        return word_list(self._connection, self._name).containing(text, most=MOST_WORDS)

    def words_near(self, text: str) -> list[tuple[str, int]]:
        if len(grams(text)) < RECOGNISED:
            return []
        return word_list(self._connection, self._name).alike(text, most=MOST_ALIKE)

    def _restrict(self, only: Filter) -> None:
        if only.session_id:
            blocks = self._blocks([only.session_id])
            first, last = documents.documents_of(min(blocks, default=0), max(blocks, default=-1))
            self._where += " AND rowid BETWEEN :first AND :last"
            self._values |= {"first": first, "last": last}
            if len(blocks) != max(blocks, default=0) - min(blocks, default=1) + 1:
                self._where += _in_list(documents.BLOCK_OF, "IN", "blocks")
                self._values["blocks"] = json.dumps(blocks)
            self._bounds = (first, last)
        else:
            (last,) = self._connection.execute("SELECT max(id) FROM search_blocks").fetchone()
            self._bounds = (0, documents.documents_of(0, last or 0)[1])
        if excluded := self._blocks(only.exclude):
            self._where += _in_list(documents.BLOCK_OF, "NOT IN", "excluded")
            self._values["excluded"] = json.dumps(excluded)
        if only.roles:
            roles = [documents.ROLES.index(role) for role in only.roles if role in documents.ROLES]
            self._where += _in_list(documents.ROLE_OF, "IN", "roles")
            self._values["roles"] = json.dumps(roles)

    def _blocks(self, sessions: Iterable[str]) -> list[int]:
        rows = self._connection.execute(
            "SELECT id FROM search_blocks WHERE session IN (SELECT value FROM json_each(?))",
            (json.dumps(list(sessions)),),
        )
        return [row[0] for row in rows]


def numbers_in(found: str | None) -> list[int]:
    """Return the numbers in a comma-separated list."""
    return list(map(int, found.split(","))) if found else []


def _in_list(what: str, operator: str, name: str) -> str:
    return f" AND {what} {operator} (SELECT value FROM json_each(:{name}))"  # noqa: S608 - constant
