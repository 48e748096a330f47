"""Search without a full-text index: read the messages.

Where SQLite was built without FTS5 that is all there is; else it finds the messages that the index
does not have yet because the file cannot be written now.

The newest messages only, and words alone: no neighbours, no sessions, no clues.
"""

from __future__ import annotations

import sqlite3
from collections import Counter

from hermes_nb.core.protocols import Hit
from hermes_nb.memory.search import words
from hermes_nb.memory.search.documents import text_of
from hermes_nb.memory.search.passages import snippet
from hermes_nb.memory.search.postings import Filter
from hermes_nb.memory.search.query import But, Either, Every, Node, Phrase, Query
from hermes_nb.memory.search.ranking import rarity

READ = 5_000
"""Messages that are read, the newest first."""
_LONGEST = 20_000
"""Characters of a message that are read."""


def find(
    connection: sqlite3.Connection, query: Query, only: Filter, *, limit: int, after: int = 0
) -> list[Hit]:
    """Return the messages that hold the query's words, those with the rarer ones first.

    Only rows with a greater number than `after` are read.
    """
    rows = connection.execute(
        "SELECT session, position, role, at, body FROM messages"
        " WHERE id > ?2 AND (?1 = '' OR session = ?1) ORDER BY id DESC",
        (only.session_id, after),
    )
    found: list[tuple[Hit, list[Phrase]]] = []
    counted: Counter[Phrase] = Counter()
    wanted = {term for unit in query.units for term in unit.terms}
    read = 0
    for session_id, position, role, at, body in rows:
        if not only.admits(session_id, role, at):
            continue
        read += 1
        text = text_of(body)[:_LONGEST]
        held = f" {words.indexed(text)} "
        held_units = [unit for unit in query.units if _holds(held, unit)]
        counted.update(held_units)
        if _holds(held, query.must) if query.must else held_units:
            hit = Hit(
                session_id=session_id,
                position=position,
                role=role,
                snippet=snippet(text, wanted),
                score=0.0,
                when=at,
            )
            found.append((hit, held_units))
        if read == READ:
            break
    weights = {unit: rarity(number, read) for unit, number in counted.items()}
    found.sort(key=lambda one: sum(weights[unit] for unit in one[1]), reverse=True)
    return [
        Hit(
            session_id=hit.session_id,
            position=hit.position,
            role=hit.role,
            snippet=hit.snippet,
            score=sum(weights[unit] for unit in units),
            when=hit.when,
        )
        for hit, units in found[:limit]
    ]


def _holds(held: str, node: Node) -> bool:
    """Say whether terms, each between spaces, match an expression."""
    match node:
        case Phrase(terms, prefix):
            return f" {' '.join(terms)}{'' if prefix else ' '}" in held
        case Every(operands):
            return all(_holds(held, operand) for operand in operands)
        case Either(operands):
            return any(_holds(held, operand) for operand in operands)
        case But(kept, dropped):
            return (kept is None or _holds(held, kept)) and not _holds(held, dropped)
