"""What a message's text adds once the index has found it: who speaks, and whether it answers.

Each clue raises or lowers a score by a share of it. The shares were chosen on the first half of
`bench/recall.py`; the other half shows what they are worth.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from hermes_nb.memory.search import addresses, documents, words
from hermes_nb.memory.search.passages import Passage
from hermes_nb.memory.search.postings import Postings
from hermes_nb.memory.search.query import Query

SPEAKER = 0.7
"""The one whom the query names is speaking."""
NUMBER = 0.3
"""The query asks how many, and the text names a number."""
QUESTION = -0.25
"""It is a question itself."""
ANSWER = 0.8
"""The share of a question's lead over the turn after it that this turn is given."""

_MENTIONS = 1_000
"""Messages with a name that are looked at to learn whose it is."""
_ENOUGH_MENTIONS = 4
_ONE_SIDED = 0.75

READ = 1_000
"""Characters of a message that are read for clues."""

_ASKS_NUMBER = re.compile(r"\bhow (?:many|much|old|often|long|far|big|tall)\b", re.IGNORECASE)
_NUMBER = re.compile(
    r"\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|dozen|twenty|thirty|"
    r"forty|fifty|sixty|hundred|thousand|million|once|twice|half|couple|several)\b",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class People:
    """Those who speak and whom a query names: `terms` are their names, `marks` stand in the index.

    `roles` are those of people whose names the texts do not begin with.
    """

    terms: frozenset[str] = frozenset()
    marks: frozenset[str] = frozenset()
    roles: frozenset[str] = frozenset()

    @classmethod
    def named(cls, query: Query, postings: Postings) -> People:
        """Return the speakers among a query's capitalised words."""
        terms = {term for unit in query.units for term in unit.terms} & query.names
        marks = postings.known({documents.spoken_by(term) for term in terms})
        roles = {}
        for term in terms:
            if documents.spoken_by(term) in marks:
                continue
            mentions = postings.documents(f'"{term}"', most=_MENTIONS)
            if role := role_of_name(mentions):
                roles[term] = role
        return cls(
            terms=frozenset(t for t in terms if t in roles or documents.spoken_by(t) in marks),
            marks=frozenset(marks),
            roles=frozenset(roles.values()),
        )

    def speak(self, role: str, text: str) -> bool:
        """Say whether one of them says this."""
        if role in self.roles:
            return True
        return bool(self.marks) and any(
            documents.spoken_by(term) in self.marks for term in words.terms(documents.speaker(text))
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Clues:
    """What to look for in a text."""

    people: People
    number: bool = False

    def factor(self, passage: Passage) -> float:
        """Return what the score of a passage is multiplied with."""
        text = documents.said(passage.text[:READ])
        out = 1.0
        if self.people.speak(passage.role, passage.text[:READ]):
            out += SPEAKER
        if self.number and _NUMBER.search(text):
            out += NUMBER
        if asks(passage):
            out += QUESTION
        return out


def asks_number(query: str) -> bool:
    """Say whether a query asks for a number."""
    return _ASKS_NUMBER.search(query) is not None


def asks(passage: Passage) -> bool:
    """Say whether a passage is a question to the other one."""
    return passage.role in ("user", "assistant") and passage.text[-200:].rstrip().endswith("?")


def with_answers(found: Mapping[int, float], texts: Mapping[int, Passage]) -> dict[int, float]:
    """Return scores in which the turn after a question has most of the question's."""
    out = dict(found)
    for spot, score in found.items():
        if score > found.get(spot + 1, score) and asks(texts[spot]):
            out[spot + 1] = max(out[spot + 1], found[spot + 1] + ANSWER * (score - found[spot + 1]))
    return out


def role_of_name(documents: Collection[int]) -> str:
    """Return the role of whoever is called by a name: the one who does not say it.

    "" where both say it, or too few did to tell.
    """
    said = {"user": 0, "assistant": 0}
    for document in documents:
        if (role := addresses.role_of(document)) in said:
            said[role] += 1
    total = sum(said.values())
    if total < _ENOUGH_MENTIONS or max(said.values()) < _ONE_SIDED * total:
        return ""
    return min(said, key=lambda role: said[role])
