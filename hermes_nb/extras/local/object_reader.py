"""Read a reply that is a JSON object with one key: a tool's name, or `reply`.

The value is the tool's argument or the reply's text. The text of `{"reply": "…"}` is decoded and
shown as it arrives; no part of a call is ever shown. A truncated reply becomes the text so far, or
a call whose `problem` is set; no errors are raised.
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
"""The part of a JSON string that can be decoded now. Half a surrogate pair waits for the other
half."""
_CUT = "the call was cut off; make it shorter"


class ObjectReader:
    """Reads one reply. `arguments` maps each tool's name to the name of its only argument."""

    def __init__(self, arguments: Mapping[str, str], call_id: str) -> None:
        self._arguments = arguments
        self._call_id = call_id
        self._raw = ""
        self._name: str | None = None
        self._text: _StringDecoder | None = None
        self._plain = False

    def feed(self, text: str) -> str:
        """Add content and return the part that can be shown now."""
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
            self._plain = True  # JSON that is not a call answers a request without tools
            return self._raw
        self._name = found[1]
        if self._name == REPLY and rest.startswith('"'):
            self._text = _StringDecoder()
            return self._text.feed(rest[1:])
        return ""

    def finish(self) -> tuple[str, Reading]:
        """Return the text held back so far, and the result: text or a call."""
        if self._text is not None:
            rest = self._text.finish()
            return rest, Reading(self._text.text)
        if self._plain:
            return "", Reading(self._raw)
        if self._name is None:
            return "", Reading("")
        value: Json = None
        with suppress(ValueError, RecursionError):  # it is incomplete
            value = json.loads(self._raw, strict=False)[self._name]
        if self._name == REPLY:
            shown = "" if value is None else str(value)
            return shown, Reading(shown)
        arguments = {} if value is None else {self._arguments[self._name]: value}
        problem = "" if arguments else _CUT
        call = ToolCall(id=self._call_id, name=self._name, arguments=arguments, problem=problem)
        return "", Reading("", (call,))


class _StringDecoder:
    """Decodes a JSON string after its opening quote from pieces of any size."""

    def __init__(self) -> None:
        self.text = ""
        self._held = ""
        self._closed = False

    def feed(self, piece: str) -> str:
        """Return the text that `piece` completes; incomplete escapes and pairs are held back."""
        if self._closed:
            return ""
        source = self._held + piece
        found = _WHOLE.match(source)
        end = found.end() if found else 0
        self._held = source[end:]
        self._closed = self._held.startswith('"')
        return self._add(_decoded(source[:end]))

    def finish(self) -> str:
        """Return a replacement character if an escape is incomplete."""
        return self._add("" if self._closed or not self._held else REPLACEMENT)

    def _add(self, text: str) -> str:
        self.text += text
        return text


def _decoded(source: str) -> str:
    try:
        text: str = json.loads(f'"{source}"', strict=False)
    except ValueError:  # an escape that is invalid in JSON
        text = source
    return clean_text(text)
