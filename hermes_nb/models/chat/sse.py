"""Decode server-sent events from bytes as they arrive.

Tolerates common deviations: events without a blank line between them, one JSON document instead of
a stream, a bare error object among the events, lines that are not JSON. Line length is limited, and
decoding takes linear time.
"""

from __future__ import annotations

import json

from hermes_nb.models.chat.errors import malformed

LONGEST_LINE = 32 * 2**20
"""Maximum length of a line or document in bytes."""
_JOINED = 50
"""Maximum number of data lines in one event."""
_BLANK = b"\xef\xbb\xbf \t\r\n"


class StreamDecoder:
    """Takes bytes as they arrive and returns the complete JSON values.

    `done` is set at the server's end mark. `bad` counts unreadable events. `page` is set if the
    body is a web page.
    """

    def __init__(self) -> None:
        self.done = self.page = False
        self.bad = 0
        self._pieces: list[bytes] = []
        self._size = 0
        self._document: bool | None = None
        self._event: list[bytes] = []

    def feed(self, data: bytes) -> list[object]:
        """Return the values completed by `data`; raise `ModelError` if a line is too long."""
        if self._document is None:
            data = data.lstrip(_BLANK)  # also a byte order mark, or half of one
            if not data:
                return []
            self._document = data[:1] in b"{[<"
            self.page = data[:1] == b"<"
        if self._document is not False or b"\n" not in data:
            self._keep(data)
            return []
        *lines, rest = b"".join((*self._pieces, data)).split(b"\n")
        self._pieces, self._size = [], 0
        self._keep(rest)
        return [value for line in lines for value in self._line(line.rstrip(b"\r"))]

    def finish(self) -> list[object]:
        """Return the values completed by the end of the body."""
        rest, self._pieces = b"".join(self._pieces), []
        if self._document is not False:
            return self._parse_document(rest)
        values = [value for line in rest.split(b"\r") for value in self._line(line)]
        self._line(b"")
        return values

    def _keep(self, data: bytes) -> None:
        self._pieces.append(data)
        self._size += len(data)
        if self._size > LONGEST_LINE:
            raise malformed(f"the server sent a line of more than {LONGEST_LINE // 2**20} MB")

    def _parse_document(self, document: bytes) -> list[object]:
        document = document.strip(_BLANK)
        if not document or self.page:
            return []
        value = _json(document)
        if value is not None:
            self.done = True
            return [value]
        values = [value for line in document.splitlines() for value in self._line(line)]
        self.bad += not values
        return values

    def _line(self, line: bytes) -> list[object]:
        if not line:
            self.bad += bool(self._event)
            self._event = []
            return []
        if line.startswith(b"{"):
            return self._data(line)
        field, _, value = line.partition(b":")
        if field not in (b"data", b"error"):
            return []
        value = value.removeprefix(b" ")
        if value.strip() == b"[DONE]":
            self.done = True
            return []
        return self._data(value)

    def _data(self, value: bytes) -> list[object]:
        """Return the value of a data line, alone or joined with the event's previous lines."""
        if not value.strip() or self.done:
            return []
        alone = _json(value)
        if isinstance(alone, dict):
            self.bad += bool(self._event)
            self._event = []
            return [alone]
        self._event.append(value)
        if 1 < len(self._event) <= _JOINED:
            joined = _json(b"\n".join(self._event))
            if isinstance(joined, dict):
                self._event = []
                return [joined]
        return []


def _json(data: bytes) -> object:
    try:
        return json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
