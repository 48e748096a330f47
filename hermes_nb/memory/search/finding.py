"""Find messages by what they say, in any session.

Three steps. The index says which messages hold the query's words (`evidence`); each place is scored
by these words and by those around it (`ranking`); the texts of the best are read for what the index
cannot tell (`clues`). Every step is bounded, whatever the store's size. A query never raises; a
damaged index does, as `sqlite3.DatabaseError`, and `index.rebuild` mends it.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Collection
from functools import lru_cache

from hermes_nb.core.messages import Role
from hermes_nb.core.protocols import Hit
from hermes_nb.memory.search import (
    addresses,
    clues,
    index,
    passages,
    ranking,
    unindexed,
)
from hermes_nb.memory.search.clues import Clues, People
from hermes_nb.memory.search.evidence import Collector
from hermes_nb.memory.search.passages import Passage
from hermes_nb.memory.search.postings import Filter, Postings, expression
from hermes_nb.memory.search.query import Query, parse

POOL = 80
"""Messages whose texts are read."""
SHARE = 25
FEWEST, MOST = 4_000, 40_000
"""Documents that a search may look at: one in `SHARE` of the store's, within these bounds."""

log = logging.getLogger(__name__)


def find(
    connection: sqlite3.Connection,
    query: str,
    *,
    limit: int = 20,
    session_id: str = "",
    exclude: Collection[str] = (),
    since: float | None = None,
    until: float | None = None,
    roles: Collection[Role] = (),
) -> list[Hit]:
    """Return the messages that fit best, best first; no query ever raises.

    `since` and `until` (not included) are in seconds since the epoch.
    """
    asked = parse(query)
    only = Filter(
        session_id=session_id,
        exclude=frozenset(exclude),
        since=since,
        until=until,
        roles=frozenset(roles),
    )
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
                found += unindexed.find(connection, asked, only, limit=limit, after=last)
                found.sort(key=lambda hit: hit.score, reverse=True)
            return found[:limit]
    _say_once()
    return unindexed.find(connection, asked, only, limit=limit)


@lru_cache(maxsize=1)
def _say_once() -> None:
    log.warning("searching without a full-text index, which is slower and simpler")


def _indexed(connection: sqlite3.Connection, asked: Query, only: Filter, limit: int) -> list[Hit]:
    postings = Postings(connection, only, name=index.name(connection))
    (newest,) = connection.execute("SELECT max(id) FROM messages").fetchone()
    size = max(1, newest or 0)
    budget = min(MOST, max(FEWEST, size // SHARE))
    people = People.named(asked, postings)
    collector = Collector(
        postings, asked, people=people.terms, budget=budget, limit=limit, size=size
    )
    evidence = collector.evidence()
    scored = ranking.scores(evidence, silent=asked.question, most=max(ranking.SEEDS, 2 * limit))
    if asked.must:
        allowed = postings.documents(expression(asked.must), most=budget)
        scored = {spot: scored.get(spot, 0.0) for spot in map(addresses.spot_of, allowed)}
    texts = passages.load(connection, ranking.best(scored, max(POOL, 2 * limit)))
    texts = {s: p for s, p in texts.items() if only.admits(p.session_id, p.role, p.at)}
    clue = Clues(people=people, number=clues.asks_number(asked.text))
    found = clues.with_answers({spot: scored[spot] for spot in texts}, texts)
    found = {spot: score * clue.factor(texts[spot]) for spot, score in found.items()}
    terms = {term for unit in asked.units for term in unit.terms}
    return [
        Hit(
            session_id=passage.session_id,
            position=passage.position,
            role=passage.role,
            snippet=passages.snippet(passage.text, terms),
            score=found[passage.spot],
            when=passage.at,
        )
        for passage in _distinct([texts[spot] for spot in ranking.best(found, len(found))])[:limit]
    ]


def _distinct(found: list[Passage]) -> list[Passage]:
    """Return passages with those that repeat another one's text behind all others."""
    seen: set[tuple[Role, str]] = set()
    first: list[Passage] = []
    repeated: list[Passage] = []
    for passage in found:
        key = (passage.role, passage.text)
        (repeated if key in seen else first).append(passage)
        seen.add(key)
    return first + repeated
