"""Find the stored originals of a session's messages by their positions.

Positions in the store never change, even after a compression, so ids made from them remain valid as
long as the session exists.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence

from hermes_nb.context.boundaries import LEFT_OUT, is_ours, is_shortened, position_of
from hermes_nb.core.errors import StoreError
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Hit, SessionStore, StoredMessage

logger = logging.getLogger(__name__)

Located = Mapping[int, int]
"""Positions of messages in the store, by the `id()` of the message objects."""


class Archive:
    """The stored messages ("rows") of one session. Unreadable rows are treated as missing."""

    def __init__(self, store: SessionStore, session_id: str) -> None:
        self.session_id = session_id
        self._store = store
        self._positions: dict[Hashable, list[int]] = defaultdict(list)
        self._copies: set[int] = set()  # positions of shortened copies of other rows
        self._next = 0

    def locate(self, messages: Sequence[Message]) -> dict[int, int]:
        """Return the positions of stored messages; messages that aren't stored are left out.

        `messages` is a conversation, in order. If several rows have the same content, the first one
        after the previous message's row is used.
        """
        self._read_on()
        found: dict[int, int] = {}
        last = -1
        for message in messages:
            rows = self._positions.get(_key(message), ())
            if not rows:
                continue
            position = position_of(message.text)
            if position not in rows:  # not shortened, or its text merely resembles the mark
                place = bisect_right(rows, last)
                position = rows[place] if place < len(rows) else rows[0]
            found[id(message)] = position
            last = max(last, position)
        return found

    def originals(self, messages: Sequence[Message], located: Located) -> list[Message]:
        """Return the messages with shortened ones replaced by their stored originals."""
        wanted = {located[id(m)] for m in messages if id(m) in located and is_cut(m)}
        rows = self._rows(min(wanted), max(wanted)) if wanted else []
        whole = {row.position: row.message for row in rows if row.position in wanted}
        pairs = ((message, whole.get(located.get(id(message), -1))) for message in messages)
        return [row if row is not None and _key(row) == _key(m) else m for m, row in pairs]

    def span(self, first: int, last: int) -> list[StoredMessage]:
        """Return the rows at positions `first` to `last`, except rows from a compression."""
        self._read_on()
        return [
            row
            for row in self._rows(first, last)
            if not is_ours(row.message) and row.position not in self._copies
        ]

    def search(self, query: str, *, limit: int) -> list[Hit]:
        """Search the session and return hits, best first; raise `StoreError`."""
        return self._store.search(query, limit=limit, session_id=self.session_id)

    def containing(
        self, text: str, *, limit: int, without: Collection[int] = ()
    ) -> list[StoredMessage]:
        """Return the first rows that contain the exact text, ignoring case.

        Rows at the positions in `without` are skipped.
        """
        wanted = text.casefold()
        found: list[StoredMessage] = []
        for row in self.span(0, self._next + 1_000_000):
            if row.position not in without and wanted in everything(row.message).casefold():
                found.append(row)
                if len(found) >= limit:
                    break
        return found

    def _read_on(self) -> None:
        for row in self._rows(self._next, None):
            self._next = max(self._next, row.position + 1)
            message = row.message
            key = _key(message)
            if message.role == "tool" and is_shortened(message.text) and key in self._positions:
                self._copies.add(row.position)
            elif not is_ours(message):
                self._positions[key].append(row.position)

    def _rows(self, first: int, last: int | None) -> list[StoredMessage]:
        try:
            return self._store.rows(self.session_id, first=first, last=last)
        except StoreError:
            logger.warning("the session's rows cannot be read", exc_info=True)
            return []


def is_cut(message: Message) -> bool:
    """Return whether a compression may have shortened a message."""
    if message.role == "tool":
        return is_shortened(message.text) or LEFT_OUT in message.text
    return LEFT_OUT in message.text or any(LEFT_OUT in c.arguments_json() for c in message.calls)


def everything(message: Message) -> str:
    """Return a message's text and calls as a single searchable text."""
    calls = (f"{call.name} {call.arguments_json()}" for call in message.calls)
    return "\n".join([message.text, *calls] if message.text else [*calls])


def first_and_last(located: Located, messages: Iterable[Message]) -> tuple[int, int] | None:
    """Return the messages' lowest and highest positions, or None if one isn't stored."""
    positions = [located.get(id(message), -1) for message in messages]
    return (min(positions), max(positions)) if positions and min(positions) >= 0 else None


def _key(message: Message) -> Hashable:
    if message.role == "tool":
        return "tool", message.call_id, message.name
    if message.calls:
        return "calls", message.calls[0].id, message.calls[0].name
    return message.role, message.text, len(message.images)
