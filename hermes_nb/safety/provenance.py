"""Find untrusted content in a conversation, and store which files the user trusts.

Every part of a message has an origin (`core.messages.Origin`) that survives storage, compression,
delegation and resuming. This module answers two questions. Does the conversation contain untrusted
content? Such content may hold instructions from anyone, so calls that could send data out or plant
something then need approval. Does a text to be saved in memory quote someone other than the user
word for word? If so, saving it needs approval.

`Trust` stores which files the user has accepted in spite of the scan's warning: this content at
this path. It is a JSON file in the Hermes directory that only its owner can read. Lookups write
nothing. If the file is damaged, nothing is trusted and `Trust.problem` describes the damage; the
next write renames the damaged file.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import count
from pathlib import Path

from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.core.messages import Message, Origin, Part, Text
from hermes_nb.core.text import one_line

ROW = 5
"""Consecutive words that count as copied. In scripts without spaces, twice as many characters."""
_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"
_WORD = re.compile(f"[{_UNSPACED}]|[^\\W_{_UNSPACED}]+")
_PRECISE = re.compile(
    r"\b[a-z][a-z0-9+.-]{1,20}://[^\s<>\"')]{3,400}"  # a URL
    r"|\b[\w.+-]{1,64}@[\w-]{1,63}(?:\.[\w-]{1,63}){1,4}"
    r"|(?<![\w/])(?:~|\.{1,2})?(?:/[\w.@+-]{1,100}){2,20}"  # a path
    r"|`[^`\s]{1,200}\s[^`\n]{2,200}`"  # a command or code, not a mere name
)
_LINE_NUMBER = re.compile(r"(?m)^\s{0,9}(?:[\w./-]{1,200}[:-])?\d{1,9}[\t:-]")
"""A line number added by a tool. It would separate words that follow each other."""
_UNSEEN = re.compile(r"[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u2064\ufeff]")
_LINE = re.compile(r"[^\n]{8,400}")
_CODE = re.compile(r"[|;={}()<>$]|^\s*(?:[\w./-]+\s+)?-{1,2}\w")


RECALLED = "[From memory ("
"""Start of text from a memory service: recalled text, or the service's self-description.

All other content attached to a message starts with a different heading or mark.
"""


def outside(messages: Iterable[Message], *, recalled: bool = True) -> str:
    """Describe where a conversation contains untrusted content; return "" if it has none.

    With `recalled=False`, text recalled by a memory service does not count.
    """
    for message in messages:
        if message.origin == "outside" and (recalled or not _is_recalled(message)):
            return _place(message)
    return ""


def _is_recalled(message: Message) -> bool:
    """Return whether all untrusted content in a message comes from a memory service."""
    found = [part for part in message.parts if isinstance(part, Text) and part.origin == "outside"]
    with_prompt = message.role == "user" and message.parts[0] not in found
    return (with_prompt or message.role == "system") and all(
        part.text.startswith(RECALLED) for part in found
    )


def _place(message: Message) -> str:
    return f"a result of {message.name}" if message.name else _WHERE[message.role]


_WHERE = {
    "system": "a result of a memory service",
    "user": "an attachment of a message",
    "assistant": "a summary of it",
    "tool": "a result",
}


def accepted(messages: Iterable[Message]) -> list[Message]:
    """Return the messages with the origin "outside" replaced by "workspace"."""

    def ours(part: Part) -> Part:
        if isinstance(part, Text) and part.origin == "outside":
            return replace(part, origin="workspace")
        return part

    return [
        replace(message, parts=tuple(map(ours, message.parts)))
        if message.origin == "outside"
        else message
        for message in messages
    ]


def taken(text: str, messages: Sequence[Message]) -> str:
    """Return a passage of `text` that was copied from someone other than the user, or "".

    A passage is five consecutive words, a URL or e-mail address, a path, a command or a line of
    code. It must occur in a text with origin "workspace" or "outside" and in none of the user's.
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
    """Return a description of the message that contains the passage found by `taken`."""
    own = [message for message in messages if message.role == "user"]
    for message in messages:
        if message.origin in ("workspace", "outside") and taken(text, [message, *own]):
            project = message.role == "system" and message.origin == "workspace"
            return "the project's instructions" if project else _place(message)
    return "text by someone else"


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
    """Return the words, without invisible characters and line numbers added by tools."""
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


FILE = "trust.json"
_VERSION = 1
_LARGEST = 4_000_000
"""Maximum size in bytes. A larger file cannot be a list of manual approvals."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """A file that the user trusts."""

    path: str
    """The file's canonical path."""
    sha256: str
    """SHA-256 of its text."""
    when: str
    """When the user accepted it: ISO 8601, UTC."""


class Trust:
    """The files that the user has accepted. Safe for concurrent processes."""

    def __init__(self, home: Path) -> None:
        self._file = Path(home) / FILE

    @property
    def problem(self) -> str:
        """Return the reason the existing file cannot be used, or "" if there is no problem."""
        return self._read()[1]

    def accepts(self, path: Path | str, text: str) -> bool:
        """Return whether the user accepted exactly this text at this path."""
        entry = self._read()[0].get(_canonical(path))
        return entry is not None and entry.sha256 == _digest(text)

    def accept(self, path: Path | str, text: str) -> None:
        """Store that the user accepts this text at this path, replacing an earlier text.

        Raises OSError, or TimeoutError if another process has locked the file.
        """
        place = _canonical(path)
        when = datetime.now(UTC).isoformat(timespec="seconds")
        entry = Accepted(path=place, sha256=_digest(text), when=when)
        make_private(self._file.parent)
        with locked(self._file):
            self._write({**self._read_or_set_aside(), place: entry})

    def revoke(self, path: Path | str) -> bool:
        """Remove the entry for this path. Return whether there was one."""
        place = _canonical(path)
        if place not in self._read()[0]:
            return False
        with locked(self._file):
            entries = self._read_or_set_aside()
            known = entries.pop(place, None) is not None
            self._write(entries)
        return known

    def entries(self) -> tuple[Accepted, ...]:
        """Return all entries, sorted by path."""
        return tuple(entry for _, entry in sorted(self._read()[0].items()))

    def _read(self) -> tuple[dict[str, Accepted], str]:
        """Return the entries by path, and a description of the file's problem or ""."""
        try:
            with self._file.open("rb") as file:
                data = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return {}, ""
        except OSError as error:
            return {}, f"{FILE} cannot be read ({error.strerror}); nothing is trusted"
        try:
            return _entries(data), ""
        except (ValueError, TypeError, KeyError, RecursionError):
            text = "a copy is kept when you next trust something"
            return {}, f"{FILE} is damaged and nothing is trusted; {text}"

    def _read_or_set_aside(self) -> dict[str, Accepted]:
        """Return the entries. A damaged file is renamed first."""
        entries, problem = self._read()
        if problem:
            places = (self._file.with_name(f"{FILE}.damaged-{n}") for n in count(1))
            self._file.replace(next(place for place in places if not place.exists()))
        return entries

    def _write(self, entries: dict[str, Accepted]) -> None:
        listed = [asdict(entry) for _, entry in sorted(entries.items())]
        document = {"version": _VERSION, "accepted": listed}
        data = json.dumps(document, ensure_ascii=True, indent=1).encode() + b"\n"
        if self._file.exists():
            self._file.chmod(0o600)
        write_atomic(self._file, data, mode=0o600)


def _entries(data: bytes) -> dict[str, Accepted]:
    """Return the entries in a file's bytes. Raise ValueError, TypeError or KeyError if invalid."""
    if len(data) > _LARGEST:
        raise ValueError("too large")
    document = json.loads(data)
    if document["version"] != _VERSION:
        raise ValueError("written by a different version")
    found = (
        Accepted(path=item["path"], sha256=item["sha256"], when=item["when"])
        for item in document["accepted"]
    )
    entries = {entry.path: entry for entry in found}
    if not all(isinstance(v, str) for e in entries.values() for v in (e.path, e.sha256, e.when)):
        raise ValueError("an entry is not text")
    return entries


def _canonical(path: Path | str) -> str:
    return os.path.realpath(Path(path).expanduser())


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
