"""Separate reasoning between `<think>` and `</think>` from an answer's text.

Most local reasoning models mark their reasoning this way. Some chat templates put the opening tag
in the prompt, so all text before a closing tag without an opening one is reasoning. If an opening
tag is never closed, the rest of the answer is reasoning if the tag is at the start of the answer,
and text otherwise. Tags in code and in call arguments are text. Chunk boundaries don't affect the
result, and parsing takes linear time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

Kind = Literal["text", "reasoning", "retract"]
"""Kind of piece; `retract` reclassifies all the text so far as reasoning."""
Piece = tuple[Kind, str]
"""A piece of an answer and its kind."""

_OPENER, _CLOSER, _CALL = _TAGS = ("<think>", "</think>", "<tool_call>")
_TAG = re.compile("|".join(_TAGS))
_FENCE = re.compile(r"[\s>]*(`{3,}|~{3,})")
_HEAD = 40
"""Number of characters of a line to examine to recognise code."""


class Thinking:
    """Parser for one streamed answer; `found` tells whether it contains reasoning."""

    def __init__(self) -> None:
        self.found = False
        self._state: Literal["start", "text", "inside", "held"] = "start"
        self._partial = ""
        self._kept: list[str] = []  # leading blanks, or text after an opening tag mid-answer
        self._begin()

    def _begin(self) -> None:
        """Reset the state of code and calls at the start of new text."""
        self._fence, self._head, self._ticks, self._last, self._called = "", "", 0, "", False

    def feed(self, text: str) -> list[Piece]:
        """Parse the next chunk and return its pieces; a possible start of a tag is buffered."""
        text = self._partial + text
        end = len(text) - _beginning(text)
        self._partial = text[end:]
        return list(self._read(text[:end]))

    def finish(self) -> list[Piece]:
        """Return the remaining pieces at the end of the answer."""
        rest = list(self._emit_text(self._partial))
        if self._state == "held":
            rest.append(("text", "".join([_OPENER, *self._kept])))
        elif self._state == "start" and self._kept and not self.found:
            rest.append(("text", "".join(self._kept)))
        return rest

    def _read(self, text: str) -> Iterator[Piece]:
        position = 0
        for found in _TAG.finditer(text):
            yield from self._emit_text(text[position : found.start()])
            yield from self._tag(found[0])
            position = found.end()
        yield from self._emit_text(text[position:])

    def _emit_text(self, text: str) -> Iterator[Piece]:
        if not text:
            return
        if self._state == "inside":
            self._last = text[-1]
            yield "reasoning", text
        elif self._state == "held" or (self._state == "start" and text.isspace()):
            self._last = text[-1]
            self._kept.append(text)
        else:
            if self._state == "start":
                text = text.lstrip() if self.found else "".join([*self._kept, text])
                self._state, self._kept = "text", []
            self._note(text)
            yield "text", text

    def _tag(self, tag: str) -> Iterator[Piece]:
        within = self._state in ("inside", "held")
        if (self._last == "`" or tag != _CLOSER) if within else self._is_text(tag):
            yield from self._emit_text(tag)
        elif tag == _OPENER:
            self._state = "inside" if self._state == "start" else "held"
            self._kept = []
        elif self._state == "held":
            self._state, self.found = "text", True
            yield "reasoning", "".join(self._kept)
            self._kept = []
        elif within or not self.found:
            if not within:
                yield "retract", ""
            self._state, self.found, self._kept = "start", True, []
            self._begin()

    def _is_text(self, tag: str) -> bool:
        """Return whether a tag outside reasoning is literal text, in code or in a call."""
        code = self._fence or self._ticks % 2 or self._head.startswith((" " * 4, "\t"))
        code = code or "call:" in self._head or (self._state == "text" and self._last == "`")
        self._called = self._called or (tag == _CALL and not code)
        # In the JSON of a call no line begins with a tag.
        return bool(code) or tag == _CALL or (self._called and bool(self._head.strip()))

    def _note(self, text: str) -> None:
        """Track the code fences and backticks that are open at the end of the text."""
        for number, line in enumerate(text.split("\n")):
            if number:
                mark = found[1] if (found := _FENCE.match(self._head)) else ""
                if mark and not self._fence:
                    self._fence = mark
                elif mark.startswith(self._fence):
                    self._fence = ""
                self._head, self._ticks = "", 0
            self._head += line[: _HEAD - len(self._head)] if len(self._head) < _HEAD else ""
            self._ticks += line.count("`")
        self._last = text[-1]


def _beginning(text: str) -> int:
    """Return the length of what may be the start of a tag at the end of `text`."""
    start = text.rfind("<", -max(map(len, _TAGS)))
    begun = start >= 0 and any(
        tag != text[start:] and tag.startswith(text[start:]) for tag in _TAGS
    )
    return len(text) - start if begun else 0


def split_thinking(text: str) -> tuple[str, str]:
    """Split a complete answer into its text and its reasoning."""
    if "think>" not in text:
        return text, ""
    thinking = Thinking()
    parts: dict[Kind, list[str]] = {"text": [], "reasoning": []}
    for kind, piece in [*thinking.feed(text), *thinking.finish()]:
        if kind == "retract":
            parts = {"text": [], "reasoning": [*parts["reasoning"], *parts["text"]]}
        else:
            parts[kind].append(piece)
    return "".join(parts["text"]), "".join(parts["reasoning"]).strip()
