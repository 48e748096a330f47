"""The search index on PostgreSQL: documents as `tsvector`, and queries on them.

A document contains a message's terms (see `documents`) as lexemes. Each lexeme starts with a prefix
derived from its owner, which the server adds to every query. So other users' messages neither slow
down a search nor are revealed by its timing. Hits are ranked as in SQLite; this module only finds
them.
"""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from psycopg import Connection
from psycopg.rows import DictRow

from hermes_nb.memory.search import documents
from hermes_nb.memory.search.documents import GRAM, IndexedMessage, grams
from hermes_nb.memory.search.finding import RankedMessage
from hermes_nb.memory.search.postings import (
    MOST_ALIKE,
    MOST_COMMON,
    MOST_WORDS,
    RECOGNISED,
    STALE,
    Filter,
    numbers_in,
    stems_of,
)
from hermes_nb.memory.search.query import AllOf, AnyOf, Node, Phrase, Without

BLOCKS = 12
"""Number of bits in a document number for the block within its session."""
OF_SESSION = BLOCKS + documents.BLOCK_BITS + documents.SPOT_BITS
"""Number of low bits of a document's number; the bits above them are the session's number."""
_LARGEST = 900_000
"""Maximum bytes for a document's lexemes and positions; PostgreSQL's limit is 1 MB."""
_LONGEST = 1_000
"""Maximum bytes in a lexeme; PostgreSQL's limit is 2,046. Only folded ligatures come close."""
_SMALL = 100_000
"""A document of up to this many characters always fits, unless one of its lexemes is long."""
_MOST_KNOWN = 50_000
_LONGEST_WORD = 200
"""Maximum characters per word in the word list, because a B-tree entry is limited to 2,700
bytes."""
_RECOUNTED = 300.0
"""Seconds that a count of all messages stays in use."""


@dataclass(slots=True)
class Knowledge:
    """A process's cached facts about an owner's index."""

    sign: str
    """The owner's lexeme prefix."""
    forms: set[str] = field(default_factory=set)
    """Word forms whose words are already in the server's word list."""
    common: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Match counts for frequent expressions, each with the index size when counted."""
    size: int = 0
    """Number of all messages."""
    sized: float = 0.0
    """Monotonic time of that count; 0 before the first."""

    def learn(self, forms: Collection[str]) -> None:
        """Record that the words for these forms are in the list."""
        if len(self.forms) < _MOST_KNOWN:
            self.forms.update(forms)


def sign_of(owner: str) -> str:
    """Return an owner's lexeme prefix, equal to `hermes.sign` on the server."""
    return base64.urlsafe_b64encode(hashlib.sha256(owner.encode()).digest()).decode()[:6]


def number(document: IndexedMessage, session: int, position: int) -> int:
    """Return a document's number, given its session's number and its position."""
    return document.number(session << BLOCKS | position // documents.BLOCK, position)


def numbers_of(session: int) -> tuple[int, int]:
    """Return a session's lowest and highest document numbers."""
    return session << OF_SESSION, (session + 1 << OF_SESSION) - 1


def listed(forms: Collection[str]) -> list[str]:
    """Return the words for these forms that the list should contain, in order."""
    return [word for word in documents.listed(forms) if len(word) <= _LONGEST_WORD]


def prune(connection: Connection[DictRow], known: Knowledge) -> None:
    """Delete words that no longer occur in any message."""
    with connection.transaction():
        connection.execute("SET LOCAL statement_timeout = '60s'")
        connection.execute(
            "DELETE FROM hermes.words WHERE owner = session_user::text AND word NOT IN (SELECT"
            " substr(word, %s) FROM ts_stat('SELECT terms FROM hermes.search"
            " WHERE owner = session_user::text'))",
            (len(known.sign) + 1,),
        )
    known.forms.clear()


def vector(document: IndexedMessage, sign: str) -> str:
    """Return a document as the text of a `tsvector`; an oversized one is truncated.

    The server drops positions above 16,383 and more than 256 positions per word, so phrases beyond
    these limits are not found.
    """
    found: dict[str, str] = {}
    for place, term in enumerate(_escaped(document.terms).split(), 1):
        found[term] = f"{found[term]},{place}" if term in found else str(place)
    if len(document.terms) > _SMALL or max(map(len, found), default=0) > _LONGEST // 4:
        found = dict(_fitting(found))
    return " ".join([f"'{sign}{term}':{places}" for term, places in found.items()])


def _fitting(found: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    size = 0
    for term, places in found.items():
        length = len(term.encode())
        size += length + 2 * places.count(",") + 10
        if size > _LARGEST:
            return
        if length <= _LONGEST:
            yield term, places


def expression(node: Node) -> str:
    """Return the equivalent `tsquery`; the server adds the owner's prefix."""
    match node:
        case Phrase(terms, prefix):
            quoted = [_quoted(term) for term in terms]
            if prefix:
                ends = map(_quoted, stems_of(terms[-1]))
                quoted[-1] = f"({' | '.join((f'{quoted[-1]}:*', *ends))})"
            return f"({' <-> '.join(quoted)})"
        case AllOf(operands):
            return f"({' & '.join(expression(each) for each in operands)})"
        case AnyOf(operands):
            return f"({' | '.join(expression(each) for each in operands)})"
        case Without(kept, dropped):
            everything = f"{_quoted(documents.WRITTEN)}:*"
            whole = expression(kept) if kept else everything
            return f"({whole} & !{expression(dropped)})"


def _quoted(lexeme: str) -> str:
    return f"'{_escaped(lexeme)}'"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("'", "''")


class Lexemes:
    """The `ranking.SearchIndex` on PostgreSQL: the filtered messages of the connection's user."""

    def __init__(self, connection: Connection[DictRow], only: Filter, known: Knowledge) -> None:
        self._connection = connection
        self._known = known
        named = self._numbers(only.exclude)
        first, last = 0, (1 << 63) - 1
        if only.session_id:
            first, last = numbers_of(next(iter(self._numbers([only.session_id])), 0))
        roles = [documents.ROLES.index(role) for role in only.roles if role in documents.ROLES]
        self._values = {"first": first, "last": last, "without": named, "roles": roles}
        self._filtered = bool(only.session_id or named or roles)
        self.size = self._size()

    def documents(self, match: Node, *, most: int) -> list[int]:
        return self._found(match, most)[1]

    def count(self, match: Node, *, most: int) -> int:
        return self.counted(match, most=most)[0]

    def counted(self, match: Node, *, most: int) -> tuple[int, list[int] | None]:
        key, common = expression(match), self._known.common
        if not self._filtered:
            count, size = common.get(key, (0, 0))
            if count > most and self.size <= STALE * size:
                return count, None
        count, numbers = self._found(match, most)
        if not self._filtered and count > most and len(common) < MOST_COMMON:
            common[key] = (count, self.size)
        return count, numbers if count <= most else None

    def _found(self, match: Node, most: int) -> tuple[int, list[int]]:
        row = self._connection.execute(
            "SELECT * FROM hermes.found(%(match)s::tsquery, %(most)s::int, %(first)s, %(last)s,"
            " %(without)s::bigint[], %(roles)s::int[])",
            {**self._values, "match": expression(match), "most": most},
        ).fetchone()
        return (row["many"], numbers_in(row["numbers"])) if row else (0, [])

    def known(self, terms: Collection[str]) -> set[str]:
        rows = self._connection.execute(
            "SELECT word FROM hermes.words WHERE owner = session_user::text AND word = ANY(%s)",
            (list(terms),),
        )
        return {row["word"] for row in rows}

    def words_like(self, text: str) -> list[str]:
        if len(text) < GRAM:
            return []
        return [word for word, _ in self._words_with([text], len(text), MOST_WORDS)]

    def words_near(self, text: str) -> list[tuple[str, int]]:
        if len(grams(text)) < RECOGNISED:
            return []
        return self._words_with(sorted(grams(text)), len(text), MOST_ALIKE)

    def _words_with(self, parts: list[str], size: int, most: int) -> list[tuple[str, int]]:
        rows = self._connection.execute(
            "SELECT word, shared FROM hermes.words_with(%s::text[], %s::int, %s::int)",
            (parts, size, most),
        )
        return [(row["word"], row["shared"]) for row in rows]

    def load(self, spots: Collection[int]) -> dict[int, RankedMessage]:
        """Return the messages at these spots (document numbers without the role), if they exist."""
        wanted = [
            (spot, block >> BLOCKS, (block & (1 << BLOCKS) - 1) * documents.BLOCK + offset)
            for spot in spots
            if 0 <= (offset := documents.offset_of(spot)) < documents.BLOCK
            and (block := documents.block_of(spot)) >= 0
        ]
        rows = self._connection.execute(
            "SELECT w.spot, s.id, m.position, m.role, m.at, m.body"
            " FROM unnest(%s::bigint[], %s::bigint[], %s::int[]) AS w (spot, session, position)"
            " JOIN hermes.messages m ON m.session = w.session AND m.position = w.position"
            " JOIN hermes.sessions s ON s.number = w.session WHERE m.state <> 'undone'",
            tuple([row[n] for row in wanted] for n in range(3)),
        )
        return {
            row["spot"]: RankedMessage(
                row["spot"],
                row["id"],
                row["position"],
                row["role"],
                row["at"],
                documents.text_of(row["body"]),
            )
            for row in rows
        }

    def _numbers(self, sessions: Collection[str]) -> list[int]:
        if not sessions:
            return []
        query = "SELECT number FROM hermes.sessions WHERE id = ANY(%s)"
        return [row["number"] for row in self._connection.execute(query, (list(sessions),))]

    def _size(self) -> int:
        known, now = self._known, time.monotonic()
        if not known.sized or now > known.sized + _RECOUNTED:
            query = "SELECT count(*) AS n FROM hermes.search WHERE owner = session_user::text"
            row = self._connection.execute(query).fetchone()
            known.size, known.sized = (row["n"] if row else 0), now
        return known.size
