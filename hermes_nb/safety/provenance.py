"""Where the texts of a conversation come from, and what a write has taken from them.

Every part of a message carries its origin (`core.messages.Origin`), through store, compression,
delegation and resumption. Two questions are asked here. Is there text from outside, which may hold
anybody's orders: then what could carry something out or plant something asks. And is what would be
remembered taken word for word from a text that is not the user's: then that write asks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hermes_nb.core.messages import Message, Origin, Part, Text
from hermes_nb.core.text import one_line

ROW = 5
"""Words in a row that are no coincidence; of scripts without blanks, twice as many characters."""
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")
_PRECISE = re.compile(
    r"\b[a-z][a-z0-9+.-]{1,20}://[^\s<>\"')]{3,400}"  # an address
    r"|\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}"
    r"|(?<![\w/])(?:~|\.{1,2})?(?:/[\w.@+-]{1,100}){2,20}"  # a path
    r"|`[^`\s]{1,200}\s[^`\n]{2,200}`"  # a command or code, not a mere name
)
_LINE_NUMBER = re.compile(r"(?m)^\s{0,9}(?:[\w./-]{1,200}[:-])?\d{1,9}[\t:-]")
"""Before a line, as tools number them: it would part words that follow each other."""
_UNSEEN = re.compile(r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_LINE = re.compile(r"[^\n]{8,400}")
_CODE = re.compile(r"[|;={}()<>$]|^\s*(?:[\w./-]+\s+)?-{1,2}\w")


def outside(messages: Iterable[Message]) -> str:
    """Return where text from outside stands in a conversation, "" if there is none."""
    for message in messages:
        if message.origin == "outside":
            return _place(message)
    return ""


def _place(message: Message) -> str:
    return f"a result of {message.name}" if message.name else _WHERE[message.role]


_WHERE = {
    "system": "what a memory service told",
    "user": "what came with a message",
    "assistant": "a summary of it",
    "tool": "a result",
}


def accepted(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with text from outside counted as the workspace's."""
    return [
        replace(message, parts=tuple(map(_accepted, message.parts)))
        if message.origin == "outside"
        else message
        for message in messages
    ]


def _accepted(part: Part) -> Part:
    if isinstance(part, Text) and part.origin == "outside":
        return replace(part, origin="workspace")
    return part


def taken(text: str, messages: Sequence[Message]) -> str:
    """Return a passage of `text` that stands in somebody else's text and not in the user's own.

    That is five words in a row, an address, a path, a command or a line of code. "" if there is
    none: then what `text` says, it says in the model's own words or in the user's.
    """
    foreign = _joined(messages, ("workspace", "outside"))
    if not foreign:
        return ""
    own = _joined(messages, ("user",))
    theirs, mine = _plain(foreign), _plain(own)
    for row in _rows(text):
        if f" {row} " in theirs and f" {row} " not in mine:
            return row
    for passage in _passages(text):
        if passage in foreign and passage not in own:
            return one_line(passage, 120)
    return ""


def source_of(text: str, messages: Sequence[Message]) -> str:
    """Return which message the passage that `taken` found stands in."""
    own = [message for message in messages if message.role == "user"]
    for message in messages:
        if message.origin in ("workspace", "outside") and taken(text, [message, *own]):
            project = message.role == "system" and message.origin == "workspace"
            return "the project's instructions" if project else _place(message)
    return "somebody else's text"


def _joined(messages: Iterable[Message], origins: Sequence[Origin]) -> str:
    found = (
        part.text
        for message in messages
        for part in message.parts
        if isinstance(part, Text) and part.origin in origins
    )
    return "\n".join(found)


def _plain(text: str) -> str:
    return f" {' '.join(_words(text))} "


def _words(text: str) -> list[str]:
    """Return the words, without what is not seen and what tools put before lines."""
    return _WORD.findall(_LINE_NUMBER.sub("", _UNSEEN.sub("", text)).casefold())


def _rows(text: str) -> Iterator[str]:
    words = _words(text)
    for at in range(len(words) - ROW + 1):
        row = words[at : at + ROW]
        if any(len(word) == 1 and word >= "\u0e00" for word in row):
            row = words[at : at + 2 * ROW]
            if len(row) < 2 * ROW:
                continue
        yield " ".join(row)


def _passages(text: str) -> Iterator[str]:
    for found in _PRECISE.finditer(text):
        yield found[0].strip("`").rstrip(".,;:!?")
    for line in _LINE.findall(text):
        if _CODE.search(line):
            yield line.strip()
