"""The messages behind the best places, and what to show of them."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass

from hermes_nb.core.messages import Role
from hermes_nb.memory.search import addresses, words
from hermes_nb.memory.search.documents import text_of
from hermes_nb.memory.search.wordlist import GRAM

SHOWN = 300
"""Characters of a snippet."""
_BEFORE = 80
_READ_WHOLE = 20_000
_SEARCHED = 400_000
"""Characters of a message that are searched for the words to show: as they are asked for, and in
every other form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Passage:
    """A stored message as ranking sees it. `text` is all of it."""

    spot: int
    session_id: str
    position: int
    role: Role
    at: float
    text: str


def load(connection: sqlite3.Connection, spots: Collection[int]) -> dict[int, Passage]:
    """Return the messages at some spots; a spot without one is left out."""
    blocks = {
        row[0]: (row[1], row[2])
        for row in connection.execute(
            "SELECT id, session, number FROM search_blocks"
            " WHERE id IN (SELECT value FROM json_each(?))",
            (json.dumps(sorted({addresses.block_of(spot) for spot in spots})),),
        )
    }
    wanted = []
    for spot in spots:
        offset = addresses.offset_of(spot)
        if 0 <= offset < addresses.BLOCK and addresses.block_of(spot) in blocks:
            session, number = blocks[addresses.block_of(spot)]
            wanted.append((spot, session, number * addresses.BLOCK + offset))
    rows = connection.execute(
        "SELECT w.value ->> 0, m.session, m.position, m.role, m.at, m.body FROM json_each(?) w"
        " JOIN messages m ON m.session = w.value ->> 1 AND m.position = w.value ->> 2",
        (json.dumps(wanted),),
    )
    return {
        row[0]: Passage(
            spot=row[0],
            session_id=row[1],
            position=row[2],
            role=row[3],
            at=row[4],
            text=text_of(row[5]),
        )
        for row in rows
    }


def snippet(text: str, wanted: Collection[str]) -> str:
    """Return at most `SHOWN` characters on one line, around where most of the words stand."""
    line = " ".join(text[: SHOWN * 4].split()) if len(text) <= SHOWN * 4 else ""
    if line and len(line) <= SHOWN:
        return line
    start = max(0, _densest(text[:_SEARCHED], wanted) - _BEFORE)
    if start and (space := text.find(" ", start, start + 30)) >= 0:
        start = space + 1
    shown = " ".join(text[start : start + SHOWN * 3].split())
    head = "\u2026" if start else ""
    if len(head + shown) > SHOWN or start + SHOWN * 3 < len(text):
        shown = shown[: SHOWN - len(head) - 1].rsplit(" ", 1)[0] + "\u2026"
    return head + shown


def _densest(text: str, wanted: Collection[str]) -> int:
    """Return where a stretch of text begins that has the most of the wanted terms."""
    recent: list[tuple[int, str]] = []
    best, where = 0, 0
    for start, term in _occurrences(text, wanted):
        recent = [(at, other) for at, other in recent if at > start - (SHOWN - _BEFORE)]
        recent.append((start, term))
        if (number := len({other for _, other in recent})) > best:
            best, where = number, recent[0][0]
            if best == len(wanted):
                break
    return where


def _occurrences(text: str, wanted: Collection[str]) -> Iterator[tuple[int, str]]:
    """Yield where words stand that have one of the terms, and the term.

    Words that begin as a term does are tried first, which saves stemming all of them; where there
    are none the words were said in other forms ("went" for "go"), or a term is only a part of them.
    """
    found = False
    for start, piece in words.places(text, beginning=wanted):
        for term in words.terms_of(piece):
            if term in wanted:
                found = True
                yield start, term
    if found:
        return
    parts: list[tuple[int, str]] = []
    for start, piece in words.places(text[:_READ_WHOLE]):
        for term in words.terms_of(piece):
            if term in wanted:
                found = True
                yield start, term
            parts += ((start, one) for one in wanted if len(one) >= GRAM and one in term)
    if not found:
        yield from parts
