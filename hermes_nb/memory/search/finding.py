"""Turn a query into hits: read the messages found in the index, score them, and extract snippets.

A text contains clues that the index does not have: who is speaking, and whether it is an answer.
Each clue raises or lowers the score by a percentage. The percentages were tuned on the first half
of `bench/recall.py` and are measured on the other half.

If SQLite was built without FTS5, the newest messages are read and matched by words only, ignoring
neighbours, sessions and clues. The same applies to messages that are not in the index because the
file is not writable. An error in the index is raised as `sqlite3.DatabaseError`, and
`index.rebuild` repairs it.
"""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial

from hermes_nb.core.messages import Role
from hermes_nb.core.protocols import Hit
from hermes_nb.memory.search import documents, index, ranking
from hermes_nb.memory.search.documents import GRAM, speaker, spoken_by, text_of
from hermes_nb.memory.search.postings import Filter, Postings
from hermes_nb.memory.search.query import AllOf, AnyOf, Node, Phrase, Query, Without, parse
from hermes_nb.memory.search.ranking import SearchIndex
from hermes_nb.storage import words
from hermes_nb.storage.opening import only_index

POOL = 80
"""Number of messages whose text is read."""
SHARE = 25
"""A search may read one in this many of the store's documents."""
FEWEST, MOST = 4_000, 40_000
"""Limits for the number of documents that a search may read."""
SHOWN = 300
"""Maximum length of a snippet, in characters."""
_BEFORE = 80
"""Characters in a snippet before the first matching word."""

SPEAKER = 0.7
"""Added to the factor for a message's score if the query contains the speaker's name."""
NUMBER = 0.3
"""Added if the query asks "how many" and the text contains a number."""
QUESTION = -0.25
"""Added if the text is itself a question."""
ANSWER = 0.8
"""If a question scores higher than the turn after it, this fraction of the difference is added to
that turn's score."""

_READ_FOR_CLUES = 1_000
"""Number of characters of a message to read for clues."""
_MENTIONS = 1_000
"""Maximum number of messages with a name to read to find out whose name it is."""
_ENOUGH_MENTIONS = 4
"""Minimum number of such messages needed to decide."""
_ONE_SIDED = 0.75
"""Minimum fraction of those messages that must come from one role."""
_UNINDEXED, _LONGEST = 5_000, 20_000
"""Number of messages read without an index, newest first, and of characters read from each."""
_SEARCHED, _READ_WHOLE = 400_000, 20_000
"""Number of characters of a text to search for words to display: for words that begin like the
query's terms, and for all other words. The rest of a longer text is ignored."""
_CUT = 30
"""Maximum number of characters by which a cut may move to fall between words."""
_SLIP = 2
"""Maximum difference in length of similar words."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RankedMessage:
    """A stored message during ranking."""

    spot: int
    """Its spot in the index, or 0 for a message that is not indexed."""
    session_id: str
    """The session's id."""
    position: int
    """The position in the session."""
    role: Role
    """The message's role."""
    at: float
    """When it was added, in seconds since the epoch."""
    text: str
    """The searchable text."""

    def hit(self, terms: Collection[str], score: float) -> Hit:
        """Return the message as a hit, with a snippet for the terms."""
        return Hit(
            session_id=self.session_id,
            position=self.position,
            role=self.role,
            snippet=snippet(self.text, terms),
            score=score,
            when=self.at,
        )


@only_index()
def find(
    connection: sqlite3.Connection, query: str, only: Filter | None = None, *, limit: int = 20
) -> list[Hit]:
    """Return the best matches, best first; every query is valid."""
    asked, only = parse(query), only or Filter()
    if limit < 1 or not (asked.units or asked.must):
        return []
    last = index.last_indexed(connection)
    if last is not None:
        try:
            found = _indexed(connection, asked, only, limit)
        except sqlite3.OperationalError as error:
            if not index.is_missing(error):
                raise
        else:
            if not index.is_current(connection):
                found += _unindexed(connection, asked, only, limit=limit, after=last)
                found.sort(key=lambda hit: hit.score, reverse=True)
            return found[:limit]
    _say_once()
    return _unindexed(connection, asked, only, limit=limit)


@cache
def _say_once() -> None:
    log.warning("this SQLite has no full-text index (FTS5): search is slower and ranks less well")


def _indexed(connection: sqlite3.Connection, asked: Query, only: Filter, limit: int) -> list[Hit]:
    postings = Postings(connection, only, name=index.name(connection))
    (newest,) = connection.execute("SELECT max(id) FROM messages").fetchone()
    return ranked(
        postings, asked, only, limit=limit, size=newest or 0, load=partial(load, connection)
    )


def ranked(
    postings: SearchIndex,
    asked: Query,
    only: Filter,
    *,
    limit: int,
    size: int,
    load: Callable[[Collection[int]], dict[int, RankedMessage]],
) -> list[Hit]:
    """Return the best matching messages in an index, best first.

    Args:
        postings: the index
        asked: the query
        only: the filter
        limit: the maximum number of hits
        size: the approximate number of messages in the index
        load: returns the messages at the given spots
    """
    size = max(1, size)
    budget = min(MOST, max(FEWEST, size // SHARE))
    people = People.named(asked, postings)
    collector = ranking.EvidenceCollector(
        postings, asked, people=people.terms, budget=budget, limit=limit, size=size
    )
    evidence = collector.evidence()
    most = max(ranking.SEEDS, 2 * limit)
    scored = ranking.scores(evidence, silent=asked.question, most=most)
    if asked.must:
        allowed = postings.documents(asked.must, most=budget)
        scored = {spot: scored.get(spot, 0.0) for spot in map(documents.spot_of, allowed)}
    timed = only.since is not None or only.until is not None
    pool = len(scored) if timed else max(POOL, 2 * limit)
    texts = load(ranking.best(scored, pool))
    texts = {s: p for s, p in texts.items() if only.admits(p.session_id, p.role, p.at)}
    found = with_answers({spot: scored[spot] for spot in texts}, texts)
    number = _ASKS_NUMBER.search(asked.text) is not None
    found = {
        spot: score * clues(texts[spot], people, number=number) for spot, score in found.items()
    }
    best = [texts[spot] for spot in ranking.best(found, len(found))]
    return [each.hit(asked.terms, found[each.spot]) for each in _distinct(best)[:limit]]


def _distinct(found: list[RankedMessage]) -> list[RankedMessage]:
    """Move messages to the end if they repeat the text of an earlier one."""
    seen: set[tuple[Role, str]] = set()
    first: list[RankedMessage] = []
    repeated: list[RankedMessage] = []
    for passage in found:
        key = (passage.role, passage.text)
        (repeated if key in seen else first).append(passage)
        seen.add(key)
    return first + repeated


def load(connection: sqlite3.Connection, spots: Collection[int]) -> dict[int, RankedMessage]:
    """Return the messages at these spots; spots without a message are left out."""
    blocks = {
        row[0]: (row[1], row[2])
        for row in connection.execute(
            "SELECT id, session, number FROM search_blocks"
            " WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted({documents.block_of(spot) for spot in spots})),),
        )
    }
    wanted = []
    for spot in spots:
        offset = documents.offset_of(spot)
        if 0 <= offset < documents.BLOCK and documents.block_of(spot) in blocks:
            session, number = blocks[documents.block_of(spot)]
            wanted.append((spot, session, number * documents.BLOCK + offset))
    rows = connection.execute(
        "SELECT w.value ->> 0, m.session, m.position, m.role, m.at, m.body FROM json_each(?) w"
        " JOIN messages m ON m.session = w.value ->> 1 AND m.position = w.value ->> 2"
        " WHERE m.state <> 'undone'",
        (json.dumps(wanted),),
    )
    return {
        spot: RankedMessage(spot, session, position, role, at, text_of(body))
        for spot, session, position, role, at, body in rows
    }


_ASKS_NUMBER = re.compile(r"\bhow (?:many|much|old|often|long|far|big|tall)\b", re.IGNORECASE)
_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|twenty|thirty|"
    r"forty|fifty|sixty|hundred|thousand|million|once|twice|half|couple|several)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """The people named in a query who also speak in the messages."""

    terms: frozenset[str] = frozenset()  # their names
    marks: frozenset[str] = frozenset()  # the index's marks for their names
    roles: frozenset[str] = frozenset()  # of people whose messages don't start with their names

    @classmethod
    def named(cls, query: Query, postings: SearchIndex) -> People:
        """Find out which of a query's capitalised words are speakers' names."""
        terms = query.terms & query.names
        marks = postings.known({spoken_by(term) for term in terms})
        roles = {}
        for term in terms:
            if spoken_by(term) in marks:
                continue
            mentions = postings.documents(Phrase((term,)), most=_MENTIONS)
            if role := role_of_name(mentions):
                roles[term] = role
        return cls(
            terms=frozenset(t for t in terms if t in roles or spoken_by(t) in marks),
            marks=frozenset(marks),
            roles=frozenset(roles.values()),
        )

    def speak(self, role: str, text: str) -> bool:
        """Return whether one of these people wrote a message with this role and text."""
        if role in self.roles:
            return True
        return bool(self.marks) and any(
            spoken_by(term) in self.marks for term in words.terms(speaker(text))
        )


def clues(passage: RankedMessage, people: People, *, number: bool) -> float:
    """Return the factor for a message's score; `number` means that the query asks for a number."""
    text = passage.text[:_READ_FOR_CLUES]
    out = 1.0
    if people.speak(passage.role, text):
        out += SPEAKER
    if number and _NUMBER.search(documents.without_speaker(text)):
        out += NUMBER
    if asks(passage):
        out += QUESTION
    return out


def asks(passage: RankedMessage) -> bool:
    """Return whether a message is a question."""
    return passage.role in ("user", "assistant") and passage.text[-200:].rstrip().endswith("?")


def with_answers(
    found: Mapping[int, float], texts: Mapping[int, RankedMessage]
) -> dict[int, float]:
    """Return the scores, raising those of turns after a question towards the question's score."""
    out = dict(found)
    for spot, score in found.items():
        if score > found.get(spot + 1, score) and asks(texts[spot]):
            out[spot + 1] = max(out[spot + 1], found[spot + 1] + ANSWER * (score - found[spot + 1]))
    return out


def role_of_name(mentions: Collection[int]) -> str:
    """Return the role of the person with this name: the role that does not mention it.

    Returns "" if both mention it, or if too few messages do.
    """
    said = {"user": 0, "assistant": 0}
    for mention in mentions:
        if (role := documents.role_of(mention)) in said:
            said[role] += 1
    total = sum(said.values())
    if total < _ENOUGH_MENTIONS or max(said.values()) < _ONE_SIDED * total:
        return ""
    return min(said, key=lambda role: said[role])


def _unindexed(
    connection: sqlite3.Connection, query: Query, only: Filter, *, limit: int, after: int = 0
) -> list[Hit]:
    """Return the messages that contain the query's words, rarer words first.

    Only rows with an id greater than `after` are read.
    """
    rows = connection.execute(
        "SELECT session, position, role, at, body FROM messages"
        " WHERE id > ?2 AND (?1 = '' OR session = ?1) AND state <> 'undone' ORDER BY id DESC",
        (only.session_id, after),
    )
    found: list[tuple[RankedMessage, list[Phrase]]] = []
    counted: Counter[Phrase] = Counter()
    read = 0
    for session_id, position, role, at, body in rows:
        if not only.admits(session_id, role, at):
            continue
        read += 1
        text = text_of(body)[:_LONGEST]
        held = f" {words.indexed(text)} "
        units = [unit for unit in query.units if _holds(held, unit)]
        counted.update(units)
        if _holds(held, query.must) if query.must else units:
            found.append((RankedMessage(0, session_id, position, role, at, text), units))
        if read == _UNINDEXED:
            break
    weights = {unit: ranking.rarity(number, read) for unit, number in counted.items()}
    scored = [(sum(weights[unit] for unit in units), passage) for passage, units in found]
    scored.sort(key=lambda each: each[0], reverse=True)
    return [passage.hit(query.terms, score) for score, passage in scored[:limit]]


def _holds(held: str, node: Node) -> bool:
    match node:
        case Phrase(terms, prefix):
            return f" {' '.join(terms)}{'' if prefix else ' '}" in held
        case AllOf(operands):
            return all(_holds(held, operand) for operand in operands)
        case AnyOf(operands):
            return any(_holds(held, operand) for operand in operands)
        case Without(kept, dropped):
            return (kept is None or _holds(held, kept)) and not _holds(held, dropped)


def wanted(query: str) -> frozenset[str]:
    """Return a query's terms, for `excerpt`."""
    return parse(query).terms


def snippet(text: str, terms: Collection[str]) -> str:
    """Return at most `SHOWN` characters on one line, from the part that contains the most terms."""
    line = " ".join(text[: SHOWN * 4].split()) if len(text) <= SHOWN * 4 else ""
    if line and len(line) <= SHOWN:
        return line
    start = _densest(text[:_SEARCHED], terms, SHOWN, before=_BEFORE)
    if start and (space := text.find(" ", start, start + _CUT)) >= 0:
        start = space + 1
    shown = " ".join(text[start : start + SHOWN * 3].split())
    head = "\u2026" if start else ""
    if len(head + shown) > SHOWN or start + SHOWN * 3 < len(text):
        shown = shown[: SHOWN - len(head) - 1].rsplit(" ", 1)[0] + "\u2026"
    return head + shown


def excerpt(text: str, terms: Collection[str], size: int) -> str:
    """Return about `size` characters of `text`, from the part with the most different terms.

    An ellipsis marks omitted text. If the text contains none of the terms, return its start.
    """
    if len(text) <= size:
        return text
    end = min(len(text), _densest(text[:_SEARCHED], terms, size, before=size // 4) + size)
    start = max(0, end - size)
    if start and (blank := text.find(" ", start, start + _CUT)) >= 0:
        start = blank + 1
    if end < len(text) and (blank := text.rfind(" ", max(start, end - _CUT), end)) > start:
        end = blank
    return f"{'… ' if start else ''}{text[start:end].strip()}{' …' if end < len(text) else ''}"


def nearest(text: str, terms: Collection[str]) -> Collection[str]:
    """Return the terms if the text contains one of them, otherwise similar terms from the text."""
    own = set(words.terms(text))
    if not own.isdisjoint(terms):
        return terms
    from difflib import get_close_matches  # only needed for misspelt words

    near: set[str] = set()
    for term in terms:
        near.update(get_close_matches(term, [w for w in own if abs(len(w) - len(term)) <= _SLIP]))
    return near


def matches(text: str, terms: Collection[str]) -> list[tuple[int, int]]:
    """Return the start and end of each word in a text that matches one of the terms."""
    return [
        (start, start + len(piece))
        for start, piece in words.places(text)
        if any(term in terms for term in words.terms_of(piece))
    ]


def _densest(text: str, terms: Collection[str], size: int, *, before: int) -> int:
    """Return the start of the `size` characters with the most different terms.

    They include `before` characters before the first term.
    """
    if not terms:
        return 0
    recent: list[tuple[int, str]] = []
    best, where = 0, 0
    for start, term in _occurrences(text, terms):
        recent = [(at, other) for at, other in recent if at > start - (size - before)]
        recent.append((start, term))
        if (number := len({other for _, other in recent})) > best:
            best, where = number, recent[0][0]
            if best == len(terms):
                break
    return max(0, where - before)


def _occurrences(text: str, terms: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield the start of each word that matches one of the terms, and the term.

    Words that begin with a term are tried first, which avoids stemming all words. If there are
    none, the text has other forms ("went" for "go"), or a term is only part of a word.
    """
    found = False
    for start, piece in words.places(text, beginning=terms):
        for term in words.terms_of(piece):
            if term in terms:
                found = True
                yield start, term
    if found:
        return
    parts: list[tuple[int, str]] = []
    for start, piece in words.places(text[:_READ_WHOLE]):
        for term in words.terms_of(piece):
            if term in terms:
                found = True
                yield start, term
            parts += ((start, one) for one in terms if len(one) >= GRAM and one in term)
    if not found:
        yield from parts
