"""What the index knows a message by: its terms, marks of when it was said and by whom, a number.

A document is made of a row of the store and always the same for it: what is taken out of a
contentless index has to be named exactly as it was put in, by whichever version of this package.

Its number says where the message stands. It holds, from its highest bits to its lowest: the block
of a session, the place in the block, the role, the class of length. So neighbours in a conversation
are neighbours by number, a session is a few ranges of numbers, and ranking needs no look-up by
document. A spot is a number without role and length: what is left of it when only the place counts.

Of the words of all documents, only those that a process meets for the first time are looked up:
asking costs more than indexing does. To search, they are kept as one string, a line each, that
grows with the store: looking through it takes half a millisecond for 50,000 words, reading it the
first time 15 ms. (An index of the words' trigrams is not faster; `fts5vocab` reads all of the
index.)
"""

from __future__ import annotations

import datetime
import json
import re
import sqlite3
import time
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from functools import lru_cache

from hermes_nb.core.messages import Role, ToolCall
from hermes_nb.storage import words

ROLES: tuple[Role, ...] = ("system", "user", "assistant", "tool")
_MARGIN = 2
"""Places left free at both ends of a block, so that the neighbours of one never are another's."""
BLOCK = 256 - 2 * _MARGIN
"""Messages of a session that have consecutive places."""
_CLASSES = (24, 96, 384, 1536, 6144, 24576, 98304)
"""Terms up to which a message belongs to the first, second ... class of length."""

SPOT_BITS = 5
"""Bits of a document's number below its spot."""
BLOCK_BITS = 8
"""Bits of a spot below its block."""
LENGTH_MASK = 7
"""Those of a document's lowest bits that are the class of length."""
BLOCK_OF = "(rowid >> 13)"
"""SQL for the block of a document."""
ROLE_OF = "(rowid >> 3 & 3)"
"""SQL for the number in `ROLES` of a document's role."""


def numbered(block: int, position: int, role: Role, *, terms: int) -> int:
    """Return the number of the message at a position of its session, with so many terms."""
    spot = block << 8 | position % BLOCK + _MARGIN
    return spot << SPOT_BITS | ROLES.index(role) << 3 | sum(terms > limit for limit in _CLASSES)


def spot_of(document: int) -> int:
    """Return where a document stands."""
    return document >> SPOT_BITS


def role_of(document: int) -> Role:
    """Return the role of the message."""
    return ROLES[document >> 3 & 3]


def block_of(spot: int) -> int:
    """Return the block that a spot belongs to."""
    return spot >> BLOCK_BITS


def offset_of(spot: int) -> int:
    """Return the place in its block; negative, or `BLOCK` and more, where no message stands."""
    return (spot & 255) - _MARGIN


def documents_of(first: int, last: int) -> tuple[int, int]:
    """Return the least and the greatest document of the blocks `first` to `last`."""
    return first << 13, ((last + 1) << 13) - 1


MARK = "\u00a7"
"""Begins a term that no text contains."""
WRITTEN = f"{MARK}w"
"""Begins the mark of the day on which a message was written, which every message has. Another one,
of the day on which its session began, follows where it differs. No search asks for days; indexes
on users' disks have the marks."""


@dataclass(frozen=True, slots=True)
class IndexedMessage:
    """A message in the index, wherever it stands: its role, and its terms and marks in order.

    A space stands between any two terms. `length` is the number of terms without marks, `forms`
    are what terms and marks are made of (`words.of_form`).
    """

    role: Role
    length: int
    terms: str
    forms: list[str]

    def number(self, block: int, position: int) -> int:
        """Return its number in the index, at a position of its session."""
        return numbered(block, position, self.role, terms=self.length)


def document(body: str, *, at: float, began: float | None) -> IndexedMessage:
    """Return the document of a stored message.

    `at` is when it was written and `began` when its session was, in seconds since the epoch.
    """
    role, text = _read(body)
    terms, forms = words.in_forms(text)
    length = terms.count(" ") + 1 if terms else 0
    marks = [spoken_by(term) for term in words.terms(speaker(text))]
    written, said = _day(at), _day(began)
    marks.append(WRITTEN + written)
    if said and said != written:
        marks.append(f"{MARK}s{said}")
    forms += marks
    return IndexedMessage(role, length, " ".join((terms, words.BREAK, *marks)), forms)


def text_of(body: str) -> str:
    """Return what a stored message is found by: its text, its tool's name, the calls it asks for.

    One that cannot be read is found by what lies there.
    """
    return _read(body)[1]


def speaker(text: str) -> str:
    """Return who a text says is speaking ("Ana: hello"), "" where it does not.

    What a log puts before that is passed over: `[9:30 am, 8 May 2023] Ana: hello`.
    """
    found = _SPEAKER.match(text)
    return found["name"] if found else ""


def said(text: str) -> str:
    """Return what is said in a text, without who says it and when."""
    found = _SPEAKER.match(text)
    return text[found.end() :] if found else text


_NAME = r"[^\W\d_][\w.'\u2019-]{0,30}"
_LOGGED = r"\[[^\]\n]{1,60}\]|\([^)\n]{1,60}\)|\d[\d:./T -]{3,24}(?:[ap]m\b)?,?"
_SPEAKER = re.compile(
    rf"\s{{0,9}}(?:(?:{_LOGGED})\s{{0,9}}(?:[-|\u2013]\s{{0,9}})?)?"
    rf"(?P<name>{_NAME}(?: {_NAME}){{0,2}})(?::| (?:said|says|asked)[,:])\s",
)


def spoken_by(term: str) -> str:
    """Return the mark of messages whose speaker's name has this term."""
    return f"{MARK}v{term}"


def _day(at: float | None) -> str:
    """Return the local day of a time as `20230508`, "" where there is no such."""
    try:
        day = time.localtime(at) if at is not None else None
    except (OverflowError, OSError, ValueError):
        return ""
    if day is None or not datetime.MINYEAR <= day.tm_year <= datetime.MAXYEAR:
        return ""
    return f"{day.tm_year:04d}{day.tm_mon:02d}{day.tm_mday:02d}"


def _read(body: str) -> tuple[Role, str]:
    """Return the role of a stored message and its text; what cannot be read counts as a system's.

    The message itself is not made: that would take three times as long.
    """
    try:
        data = json.loads(body)
        role, name = data["role"], data.get("name")
        said = [part["text"] for part in data.get("parts", ()) if "image" not in part]
        calls = [ToolCall(**call) for call in data.get("calls", ())]
        asked = [f"{call.name} {call.arguments_json()}" for call in calls]
        if role in ROLES:
            return role, _joined(name, "\n".join(said), *asked)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return "system", body


def _joined(*parts: str | None) -> str:
    return "\n".join(filter(None, parts))


_MOST_KNOWN = 50_000
GRAM = 3
"""Characters of the parts by which words are compared."""


def listed(forms: Collection[str]) -> list[str]:
    """Return, in order, the words of some forms that are listed: marks, and what has parts."""
    terms = {term for form in forms for term in words.of_form(form)}
    return sorted(t for t in terms if t[0] == MARK or (len(t) > GRAM and t.isalpha()))


class Vocabulary:
    """The list of words of the index of a name, as one transaction adds to it."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._known = known(name)
        witness = "SELECT 1 FROM search_words WHERE id = ? AND word = ?"
        if self._known.last and not connection.execute(witness, self._known.last).fetchone():
            self._known.forms.clear()  # the transaction that added the words was rolled back

    def add(self, forms: set[str]) -> None:
        """Put the words among the terms of some forms into the list."""
        new = forms - self._known.forms
        added = self._connection.execute(
            "INSERT OR IGNORE INTO search_words (word) SELECT value FROM json_each(?)",
            (json.dumps(listed(new)),),
        ).rowcount
        if added:
            query = "SELECT id, word FROM search_words ORDER BY id DESC LIMIT 1"
            self._known.last = tuple(self._connection.execute(query).fetchone())
        if len(self._known.forms) < _MOST_KNOWN:
            self._known.forms |= new


class WordList:
    """The words that an index had when it was last read; see `word_list`."""

    def __init__(self) -> None:
        self._read = (0, "\n")
        """The number of the last word, and all up to it."""

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Read the words that were added since; all of them, if the file is an older one again."""
        last, text = self._read
        (greatest,) = connection.execute("SELECT max(id) FROM search_words").fetchone()
        if (greatest or 0) < last:
            last, text = self._read = 0, "\n"
        newest, found = connection.execute(
            "SELECT max(id), group_concat(word, char(10)) FROM search_words WHERE id > ?", (last,)
        ).fetchone()
        if newest is not None:
            self._read = newest, f"{text}{found}\n"

    def containing(self, part: str, *, most: int) -> list[str]:
        """Return up to `most` words that contain a text."""
        _, text = self._read
        found: list[str] = []
        for start in _lines(text, part):
            if len(found) == most:
                break
            found.append(text[start : text.index("\n", start)])
        return found

    def alike(self, word: str, *, most: int) -> list[tuple[str, int]]:
        """Return the `most` words that share most trigrams with one, and how many."""
        _, text = self._read
        shared = Counter[int]()
        for gram in grams(word):
            shared.update(_lines(text, gram))
        fewest = sorted(shared.values(), reverse=True)[:most][-1] if shared else 0
        found = [
            (text[start : text.index("\n", start)], count)
            for start, count in shared.items()
            if count >= fewest
        ]
        found.sort(key=lambda each: (-each[1], abs(len(each[0]) - len(word)), each[0]))
        return found[:most]


def word_list(connection: sqlite3.Connection, name: str) -> WordList:
    """Return the words of the index of a name, as they are now."""
    found = known(name).words if name else WordList()
    found.catch_up(connection)
    return found


@dataclass(slots=True)
class Known:
    """What a process knows of the index of a name.

    `forms` are those whose words the index has, or that have none; `last` is the number and the
    word of the last one that was added from here. `common` are expressions that the index has
    often: how often, and its last document then.
    """

    name: str
    forms: set[str] = field(default_factory=set)
    last: tuple[int, str] | None = None
    words: WordList = field(default_factory=WordList)
    common: dict[str, tuple[int, int]] = field(default_factory=dict)


known = lru_cache(maxsize=4)(Known)


def grams(text: str) -> set[str]:
    """Return the trigrams of a word."""
    return {text[n : n + GRAM] for n in range(len(text) - GRAM + 1)}


def _lines(text: str, part: str) -> Iterator[int]:
    """Yield where each line begins that contains a text; those with marks are left out."""
    at = text.find(part)
    while at >= 0:
        start = text.rfind("\n", 0, at) + 1
        if text[start] != MARK:
            yield start
        at = text.find(part, text.index("\n", at))
