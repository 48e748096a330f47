"""A message's document in the index: its terms, marks for its day and speaker, and a number.

A *mark* is a term that no text contains, such as one for the speaker's name. A document depends
only on the message's row: to remove it from a contentless index, any version of this package must
be able to supply the exact terms again.

Its number encodes, from the highest bits to the lowest: the *block* (a section of a session), the
position in the block, the role, and the message's length class. Adjacent messages therefore have
adjacent numbers, a session is a few ranges of numbers, and ranking needs no lookup by document. A
*spot* is such a number without role and length, for uses that need only the position.

In the list of all words, a process looks up only those that it has not seen before, because a
lookup takes longer than indexing. For searches, the list is cached as one string with a line per
word, which grows with the store. Scanning it takes half a millisecond for 50,000 words, and reading
it the first time takes 15 ms. (An index of the words' trigrams is not faster; `fts5vocab` reads the
whole index.)
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
"""Unused positions at both ends of a block. Ranking, which also scores a hit's neighbours,
therefore never reaches into another block."""
BLOCK = 256 - 2 * _MARGIN
"""Number of messages in a block."""
_CLASSES = (24, 96, 384, 1536, 6144, 24576, 98304)
"""Maximum number of terms in a message of the first, second ... length class."""

SPOT_BITS = 5
"""Number of low bits in a document's number that are not part of its spot."""
BLOCK_BITS = 8
"""Number of low bits in a spot that are not part of its block."""
LENGTH_MASK = 7
"""Mask for the lowest bits of a document's number, which are its length class."""
BLOCK_OF = "(rowid >> 13)"
"""SQL for a document's block."""
ROLE_OF = "(rowid >> 3 & 3)"
"""SQL for the index of a document's role in `ROLES`."""


def numbered(block: int, position: int, role: Role, *, terms: int) -> int:
    """Return the number of a message with that many terms, at a position in its session."""
    spot = block << 8 | position % BLOCK + _MARGIN
    return spot << SPOT_BITS | ROLES.index(role) << 3 | sum(terms > limit for limit in _CLASSES)


def spot_of(document: int) -> int:
    """Return a document's spot."""
    return document >> SPOT_BITS


def role_of(document: int) -> Role:
    """Return the role of a document's message."""
    return ROLES[document >> 3 & 3]


def block_of(spot: int) -> int:
    """Return a spot's block."""
    return spot >> BLOCK_BITS


def offset_of(spot: int) -> int:
    """Return the position in the block; if below 0, or at least `BLOCK`, there is no message."""
    return (spot & 255) - _MARGIN


def documents_of(first: int, last: int) -> tuple[int, int]:
    """Return the smallest and largest document number in a range of blocks."""
    return first << 13, ((last + 1) << 13) - 1


MARK = "\u00a7"
"""First character of a mark, which is a term that no text contains."""
WRITTEN = f"{MARK}w"
"""Prefix of the mark for the day on which a message was written, which every message has. If its
session started on a different day, a mark for that day follows. Searches don't use the days, but
indexes on users' disks contain the marks."""


@dataclass(frozen=True, slots=True)
class IndexedMessage:
    """A message in the index, independent of its position."""

    role: Role
    """The message's role."""
    length: int
    """Number of terms, not counting marks."""
    terms: str
    """Terms and marks in order, separated by spaces."""
    forms: list[str]
    """The forms of its words (strings of terms, see `words.of_form`), and its marks."""

    def number(self, block: int, position: int) -> int:
        """Return a document's index number, given its position in the session."""
        return numbered(block, position, self.role, terms=self.length)


def document(body: str, *, at: float, began: float | None) -> IndexedMessage:
    """Return the document for a stored message.

    `at` is the message's time and `began` its session's start, in seconds since the epoch.
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
    """Return a stored message's searchable text: its text, its tool's name and its calls.

    For an unreadable message, that is the stored JSON.
    """
    return _read(body)[1]


def speaker(text: str) -> str:
    """Return the speaker's name that starts `text` ("Ana: hello"), or "" if there is none.

    A log prefix before it is skipped: `[9:30 am, 8 May 2023] Ana: hello`.
    """
    found = _SPEAKER.match(text)
    return found["name"] if found else ""


def without_speaker(text: str) -> str:
    """Strip the leading log prefix and speaker's name from `text`."""
    found = _SPEAKER.match(text)
    return text[found.end() :] if found else text


_NAME = r"[^\W\d_][\w.'\u2019-]{0,30}"
_LOGGED = r"\[[^\]\n]{1,60}\]|\([^)\n]{1,60}\)|\d[\d:./T -]{3,24}(?:[ap]m\b)?,?"
_SPEAKER = re.compile(
    rf"\s{{0,9}}(?:(?:{_LOGGED})\s{{0,9}}(?:[-|\u2013]\s{{0,9}})?)?"
    rf"(?P<name>{_NAME}(?: {_NAME}){{0,2}})(?::| (?:said|says|asked)[,:])\s",
)


def spoken_by(term: str) -> str:
    """Return the mark for messages whose speaker's name contains this term."""
    return f"{MARK}v{term}"


def _day(at: float | None) -> str:
    """Return a timestamp's local date as `20230508`, or "" if it is None or invalid."""
    try:
        day = time.localtime(at) if at is not None else None
    except (OverflowError, OSError, ValueError):
        return ""
    if day is None or not datetime.MINYEAR <= day.tm_year <= datetime.MAXYEAR:
        return ""
    return f"{day.tm_year:04d}{day.tm_mon:02d}{day.tm_mday:02d}"


def _read(body: str) -> tuple[Role, str]:
    """Return a stored message's role and text.

    An unreadable one counts as a system message. The `Message` itself is not created, which would
    take three times as long.
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
"""Maximum number of cached forms."""
GRAM = 3
"""Length, in characters, of the parts (trigrams) used to compare words."""


def listed(forms: Collection[str]) -> list[str]:
    """Return the terms in `forms` that belong to the index's list of words, sorted."""
    terms = {term for form in forms for term in words.of_form(form)}
    return sorted(t for t in terms if t[0] == MARK or (len(t) > GRAM and t.isalpha()))


class Vocabulary:
    """Adds words to the word list of an index, within one transaction."""

    def __init__(self, connection: sqlite3.Connection, name: str) -> None:
        self._connection = connection
        self._known = known(name)
        witness = "SELECT 1 FROM search_words WHERE id = ? AND word = ?"
        if self._known.last and not connection.execute(witness, self._known.last).fetchone():
            self._known.forms.clear()  # the transaction that added these words was rolled back

    def add(self, forms: set[str]) -> None:
        """Add the words in `forms` to the list, unless they are known to be there."""
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
    """The words in an index at the last read; see `word_list`."""

    def __init__(self) -> None:
        self._read = (0, "\n")
        """The id of the last word, and all words up to it, one per line."""

    def catch_up(self, connection: sqlite3.Connection) -> None:
        """Read the words added since the last read.

        All words are read again if the file was replaced by an older one.
        """
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
        """Return up to `most` words that contain `part`."""
        _, text = self._read
        found: list[str] = []
        for start in _lines(text, part):
            if len(found) == most:
                break
            found.append(text[start : text.index("\n", start)])
        return found

    def alike(self, word: str, *, most: int) -> list[tuple[str, int]]:
        """Return the `most` words that share the most trigrams with a word, and how many."""
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
    """Return an index's current words."""
    found = known(name).words if name else WordList()
    found.catch_up(connection)
    return found


@dataclass(slots=True)
class Known:
    """The cached data about an index."""

    name: str
    """The index's random name."""
    forms: set[str] = field(default_factory=set)
    """Forms whose words are in the index's list, or that have no words for it."""
    last: tuple[int, str] | None = None
    """Id and text of the last word that this process added, or None if there is none."""
    words: WordList = field(default_factory=WordList)
    """The cached list of words."""
    common: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By frequent expression: the number of matches, and the last document when they were
    counted."""


known = lru_cache(maxsize=4)(Known)


def grams(text: str) -> set[str]:
    """Return a word's trigrams."""
    return {text[n : n + GRAM] for n in range(len(text) - GRAM + 1)}


def _lines(text: str, part: str) -> Iterator[int]:
    """Yield the start of each line that contains `part`, except lines with marks."""
    at = text.find(part)
    while at >= 0:
        start = text.rfind("\n", 0, at) + 1
        if text[start] != MARK:
            yield start
        at = text.find(part, text.index("\n", at))
