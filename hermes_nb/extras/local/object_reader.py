"""Read a reply that is one JSON object with one key: a tool and its argument, or `reply` and text.

`{"reply": "…"}` is shown as it arrives, decoded; a call is never shown, not even half of one. A
reply that was cut off becomes the text so far, or a call with a problem: nothing here raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextlib import suppress

from hermes_nb.core.json_values import clean_text
from hermes_nb.core.messages import REPLACEMENT, Json, ToolCall
from hermes_nb.models.call_reader import Reading

REPLY = "reply"
_KEY = re.compile(r'\s*\{\s*"([A-Za-z0-9_-]*)"\s*:\s*')
_BEGINNING = re.compile(r'\s*(?:\{\s*(?:"[A-Za-z0-9_-]*(?:"\s*:?\s*)?)?)?')
_WHOLE = re.compile(
    r"""(?: [^"\\]+ | \\[^u]
          | \\u (?![dD][89abAB]) [0-9a-fA-F]{4}
          | \\u [dD][89abAB][0-9a-fA-F]{2} (?: \\u[0-9a-fA-F]{4} | (?=[^\\]) | (?=\\[^u]) )
        )*""",
    re.VERBOSE,
)
"""What of a JSON string can be decoded now: the first half of a surrogate pair waits for more."""
_CUT = "the call was cut off before its end; make it shorter"


class ObjectReader:
    """Reads one reply. `arguments` maps a tool's name to the name of its one argument."""

    def __init__(self, arguments: Mapping[str, str], call_id: str) -> None:
        self._arguments = arguments
        self._call_id = call_id
        self._raw = ""
        self._name: str | None = None
        self._text: _StringDecoder | None = None
        self._plain = False

    def feed(self, text: str) -> str:
        """Take more content and return what of it may be shown now."""
        self._raw += text
        if self._text is not None:
            return self._text.feed(text)
        if self._plain:
            return text
        if self._name is None:
            return self._open()
        return ""

    def _open(self) -> str:
        found = _KEY.match(self._raw)
        if found is None:
            if _BEGINNING.fullmatch(self._raw) is None:
                self._plain = True
                return self._raw
            return ""
        rest = self._raw[found.end() :]
        if not rest:
            return ""  # white space may follow
        if found[1] != REPLY and found[1] not in self._arguments:
            self._plain = True  # JSON that is no call: an answer to a request without tools
            return self._raw
        self._name = found[1]
        if self._name == REPLY and rest.startswith('"'):
            self._text = _StringDecoder()
            return self._text.feed(rest[1:])
        return ""

    def finish(self) -> tuple[str, Reading]:
        """Return what was held back of a text, and the text or the call."""
        if self._text is not None:
            rest = self._text.finish()
            return rest, Reading(self._text.text)
        if self._plain:
            return "", Reading(self._raw)
        if self._name is None:
            return "", Reading("")
        value: Json = None
        with suppress(ValueError, RecursionError):  # it is not whole
            value = json.loads(self._raw, strict=False)[self._name]
        if self._name == REPLY:
            shown = "" if value is None else str(value)
            return shown, Reading(shown)
        arguments = {} if value is None else {self._arguments[self._name]: value}
        problem = "" if arguments else _CUT
        call = ToolCall(id=self._call_id, name=self._name, arguments=arguments, problem=problem)
        return "", Reading("", (call,))


class _StringDecoder:
    """Decodes a JSON string behind its opening quote, however it is cut into pieces."""

    def __init__(self) -> None:
        self.text = ""
        self._held = ""
        self._closed = False

    def feed(self, piece: str) -> str:
        """Return what `piece` adds; half an escape or half a surrogate pair waits."""
        if self._closed:
            return ""
        source = self._held + piece
        found = _WHOLE.match(source)
        end = found.end() if found else 0
        self._held = source[end:]
        self._closed = self._held.startswith('"')
        return self._add(_decoded(source[:end]))

    def finish(self) -> str:
        """Return a stand-in for an escape that never became whole."""
        return self._add("" if self._closed or not self._held else REPLACEMENT)

    def _add(self, text: str) -> str:
        self.text += text
        return text


def _decoded(source: str) -> str:
    try:
        text: str = json.loads(f'"{source}"', strict=False)
    except ValueError:  # an escape that JSON does not have
        text = source
    return clean_text(text)
