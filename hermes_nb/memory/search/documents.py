"""What the index knows a message by: its terms, and marks of when it was said and by whom.

A document is made of a row of the store and always the same for it: what is taken out of a
contentless index has to be named exactly as it was put in.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from hermes_nb.core.messages import Message, Role, ToolCall
from hermes_nb.memory.search import addresses, dates, words

MARK = "\u00a7"
"""Begins a term that no text contains."""


@dataclass(frozen=True, slots=True)
class Document:
    """A message in the index, wherever it stands: its role, and its terms and marks in order.

    A space stands between any two terms. `length` is the number of terms without marks, `forms`
    are what terms and marks are made of (`words.of_form`).
    """

    role: Role
    length: int
    terms: str
    forms: list[str]

    def number(self, block: int, position: int) -> int:
        """Return its number in the index (`addresses`), at a position of its session."""
        return addresses.document(block, position, self.role, terms=self.length)


def document(body: str, *, at: float, began: float | None) -> Document:
    """Return the document of a stored message.

    `at` is when it was written and `began` when its session was, in seconds since the epoch.
    """
    expected = _EXPECTED.pop(body, ())
    role, text = expected or _read(body)
    terms, forms = words.in_forms(text)
    length = terms.count(" ") + 1 if terms else 0
    marks = [spoken_by(term) for term in words.terms(speaker(text))]
    written, said = (dates.day_of(when) if when is not None else None for when in (at, began))
    marks.append(written_on(dates.digits(written) if written else ""))
    if said and said != written:
        marks.append(said_on(dates.digits(said)))
    forms += marks
    return Document(role, length, " ".join((terms, words.BREAK, *marks)), forms)


def expect(body: str, message: Message) -> None:
    """Keep what a message is found by until its document is made, where that is cheap to tell.

    Which is where it is sure to be read back as it was written: ASCII, without calls. To read it
    would take a sixth of what its document does.
    """
    text = _joined(message.name, message.text)
    if message.calls or message.role not in addresses.ROLES or not text.isascii():
        return
    if len(_EXPECTED) >= _MOST_EXPECTED:
        _EXPECTED.clear()
    _EXPECTED[body] = message.role, text


_EXPECTED: dict[str, tuple[Role, str]] = {}
_MOST_EXPECTED = 256


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


def written_on(day: str) -> str:
    """Return the mark of messages written on a day (`20230508`); every message has one."""
    return f"{MARK}w{day}"


def said_on(day: str) -> str:
    """Return the mark of messages whose session began on a day that they were not written on."""
    return f"{MARK}s{day}"


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
        if role in addresses.ROLES:
            return role, _joined(name, "\n".join(said), *asked)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        pass
    return "system", body


def _joined(*parts: str | None) -> str:
    return "\n".join(filter(None, parts))
