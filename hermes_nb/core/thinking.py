"""Reasoning that stands in an answer between `<think>` and `</think>`, told from the answer.

Most local reasoning models answer so. Some templates put the opener into the prompt: then all that
stands before a lone closer is reasoning. One that is never closed is reasoning at the start of an
answer and text within it. Tags in code and in the arguments of calls are text. How a stream is cut
into pieces makes no difference, and work is linear.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal

Kind = Literal["text", "reasoning", "retract"]
Piece = tuple[Kind, str]
"""`retract` says that all the text so far was reasoning."""

_OPENER, _CLOSER, _CALL = _TAGS = ("<think>", "</think>", "<tool_call>")
_TAG = re.compile("|".join(_TAGS))
_FENCE = re.compile(r"[\s>]*(`{3,}|~{3,})")
_HEAD = 40
"""Characters of a line that tell whether it is code."""


class Thinking:
    """One answer as it arrives; `found` says whether anything of it was reasoning."""

    def __init__(self) -> None:
        self.found = False
        self._state: Literal["start", "text", "inside", "held"] = "start"
        self._partial = ""
        self._kept: list[str] = []  # blanks at the start, or what follows an opener within the text
        self._begin()

    def _begin(self) -> None:
        """Begin with text of which nothing was said."""
        self._fence, self._head, self._ticks, self._last, self._called = "", "", 0, "", False

    def feed(self, text: str) -> list[Piece]:
        """Take more of the answer, and return what it is; the beginning of a tag is held back."""
        text = self._partial + text
        end = len(text) - _beginning(text)
        self._partial = text[end:]
        return list(self._read(text[:end]))

    def finish(self) -> list[Piece]:
        """Return the rest."""
        rest = list(self._said(self._partial))
        if self._state == "held":
            rest.append(("text", "".join([_OPENER, *self._kept])))
        elif self._state == "start" and self._kept and not self.found:
            rest.append(("text", "".join(self._kept)))
        return rest

    def _read(self, text: str) -> Iterator[Piece]:
        position = 0
        for found in _TAG.finditer(text):
            yield from self._said(text[position : found.start()])
            yield from self._tag(found[0])
            position = found.end()
        yield from self._said(text[position:])

    def _said(self, text: str) -> Iterator[Piece]:
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
            yield from self._said(tag)
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
        """Say whether a tag outside of reasoning stands for itself: in code, or in a call."""
        code = self._fence or self._ticks % 2 or self._head.startswith((" " * 4, "\t"))
        code = code or "call:" in self._head or (self._state == "text" and self._last == "`")
        self._called = self._called or (tag == _CALL and not code)
        # In the JSON of a call no line begins with a tag.
        return bool(code) or tag == _CALL or (self._called and bool(self._head.strip()))

    def _note(self, text: str) -> None:
        """Keep track of the fences and backticks that the end of the text stands behind."""
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
    """Return how many characters at the end of a text may be the beginning of a tag."""
    start = text.rfind("<", -max(map(len, _TAGS)))
    begun = start >= 0 and any(
        tag != text[start:] and tag.startswith(text[start:]) for tag in _TAGS
    )
    return len(text) - start if begun else 0


def split_thinking(text: str) -> tuple[str, str]:
    """Return the answer and the reasoning in a whole text."""
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
