"""Read text and tool calls apart while they stream, without ever showing a piece of a call.

From a trigger on, text is held back until it is a call or certain not to be one; then the trigger
is shown and the rest is read again. What is read again is counted: hostile text cannot make more
work than a few times its length, after which the rest is taken as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from dataclasses import replace
from enum import Enum

from hermes_nb.core.messages import ToolCall
from hermes_nb.models.toolcalls.strategies import Reading
from hermes_nb.models.toolcalls.text_formats import (
    FORMATS,
    Attempt,
    Format,
    Place,
    broken,
    triggers,
)

_BRACKET = re.compile(r"[{\[]")
_LONGEST_HEAD = 120
_LONGEST_GAP = 40
"""Characters of white space that may stand before a closer."""
_FREE_WORK = 50_000
_WORK = 4
"""Characters that may be read again: so many, plus this many times the length of the reply."""


class Verdict(Enum):
    """What a candidate has turned out to be."""

    OPEN = "not known yet"
    CALL = "a call"
    TEXT = "text"


class _Candidate:
    """Held-back text that may be a call: its head, the JSON, and what closes it."""

    def __init__(self, trigger: str, form: Format, place: Place) -> None:
        self.trigger = trigger
        self.calls: list[ToolCall] = []
        self.over = ""
        """Text that was held while waiting for a closer, and is none."""
        self._form = form
        self._attempt = Attempt(place)
        self._in_head = True
        self._damaged = False
        self._pieces: list[str] = []
        self._tail = ""

    @property
    def held(self) -> str:
        """Everything behind the trigger that was taken so far."""
        return "".join(self._pieces)

    def feed(self, text: str, start: int) -> tuple[Verdict, int]:
        """Take text from `start` on; return the verdict and how far the text was taken."""
        verdict, end = self._take(text, start)
        self._pieces.append(text[start:end])
        return verdict, end

    def finish(self) -> Verdict:
        """Return the verdict now that nothing more comes."""
        return Verdict.TEXT if self._in_head else self._decide()

    def _take(self, text: str, start: int) -> tuple[Verdict, int]:
        position = start
        attempt, scan = self._attempt, self._attempt.scan
        if self._damaged:
            return self._take_damaged(text, start)
        if self._in_head:
            position = self._take_head(text, start)
            if len(attempt.head) > _LONGEST_HEAD or not self._form.begins(attempt):
                return Verdict.TEXT, position
            if position == len(text):
                return Verdict.OPEN, position
            self._in_head = False
        if not scan.complete:
            end = scan.feed(text, position)
            attempt.pieces.append(text[position:end])
            position = end
            if not self._form.plausible(attempt):
                return Verdict.TEXT, position
            if scan.rejected:
                self._damaged = self._form.damaged(attempt)
                if self._damaged:
                    return self._take_damaged(text, position)
                return Verdict.TEXT, position
            if not scan.complete:
                return Verdict.OPEN, position
        return self._take_tail(text, position)

    def _take_head(self, text: str, start: int) -> int:
        """Extend the head up to the first bracket, at most a little beyond its limit."""
        end = min(len(text), start + _LONGEST_HEAD + 1)
        bracket = _BRACKET.search(text, start, end)
        end = bracket.start() if bracket else end
        self._attempt.head += text[start:end]
        return end

    def _take_tail(self, text: str, start: int) -> tuple[Verdict, int]:
        """Look for a closer behind the JSON."""
        position = start
        while position < len(text):
            tail = self._tail + text[position]
            position += 1
            word = tail.lstrip()
            if word in self._form.closers:
                self._tail = ""
                return self._decide(), position
            if len(tail) - len(word) > _LONGEST_GAP or not any(
                closer.startswith(word) for closer in self._form.closers
            ):
                self.over, self._tail = tail, ""
                return (Verdict.TEXT if self._form.closed else self._decide()), position
            self._tail = tail
        return Verdict.OPEN, position

    def _take_damaged(self, text: str, start: int) -> tuple[Verdict, int]:
        """Look for the closer that ends a call whose JSON is broken."""
        closer = self._form.closers[0]
        seam = self._tail + text[start : start + len(closer)]
        found = seam.find(closer)
        end = start - len(self._tail) + found if found >= 0 else text.find(closer, start)
        if end >= 0 or found >= 0:
            self._tail = ""
            return self._decide(), end + len(closer)
        self._tail = (seam if len(text) - start < len(closer) else text)[1 - len(closer) :]
        return Verdict.OPEN, len(text)

    def _decide(self) -> Verdict:
        if self._damaged:
            self.calls = broken(self._attempt)
            return Verdict.CALL
        self.over = self.over or self._tail
        self.calls = self._form.calls(self._attempt)
        return Verdict.CALL if self.calls else Verdict.TEXT


class CallReader:
    """A `Reader` for text with calls; `names` are the tools that exist."""

    def __init__(self, names: Set[str], formats: Sequence[Format] = FORMATS) -> None:
        self._names = names
        self._forms = triggers(formats)
        longest_first = sorted(self._forms, key=len, reverse=True)
        self._trigger = re.compile("|".join(map(re.escape, longest_first)))
        self._beginnings = {word[:i] for word in self._forms for i in range(1, len(word))}
        self._longest = max(map(len, self._beginnings), default=0)
        self._raw: list[str] = []
        self._parts: list[list[str]] = [[]]
        self._calls: list[ToolCall] = []
        self._candidate: _Candidate | None = None
        self._tail = ""
        self._line = _Line()
        self._length = 0
        self._again = 0

    def feed(self, text: str) -> str:
        """Take more text and return what may be shown."""
        self._raw.append(text)
        self._length += len(text)
        return self._run([(text, 0)], final=False)

    def finish(self) -> tuple[str, Reading]:
        """Return the rest that is text after all, and the reading of the whole."""
        shown = self._run([], final=True)
        parts = ["".join(part) for part in self._parts]
        if not self._calls:
            return shown, Reading("".join(parts))
        text = "\n\n".join(part.strip() for part in parts if part.strip())
        calls = tuple(
            replace(call, id=f"call_{number}") for number, call in enumerate(self._calls, start=1)
        )
        return shown, Reading(text, calls, raw="".join(self._raw))

    def _run(self, todo: list[tuple[str, int]], *, final: bool) -> str:
        """Work through the pieces, the last one first, and return what may be shown."""
        out: list[str] = []
        while todo or (final and (self._candidate or self._tail)):
            if self._candidate is not None:
                self._continue(self._candidate, todo, out)
            elif todo:
                self._search(todo, out)
            else:
                self._emit(self._tail, out)
                self._tail = ""
        return "".join(out)

    def _search(self, todo: list[tuple[str, int]], out: list[str]) -> None:
        """Show the text up to the next trigger."""
        text, start = todo.pop()
        if self._tail:
            text, start, self._tail = self._tail + text[start:], 0, ""
        if self._again > _FREE_WORK + _WORK * self._length:
            self._emit(text[start:], out)
            return
        found = self._trigger.search(text, start)
        if found is None:
            end = len(text) - self._beginning_at_end(text, start)
            self._emit(text[start:end], out)
            self._tail = text[end:]
            return
        self._emit(text[start : found.start()], out)
        if self._line.takes(found[0]):
            place = self._line.place(self._names)
            self._candidate = _Candidate(found[0], self._forms[found[0]], place)
        else:
            self._emit(found[0], out)
        if found.end() < len(text):
            todo.append((text, found.end()))

    def _continue(self, candidate: _Candidate, todo: list[tuple[str, int]], out: list[str]) -> None:
        """Give the candidate its next piece, and act on its verdict."""
        text, start, end = "", 0, 0
        if todo:
            text, start = todo.pop()
            verdict, end = candidate.feed(text, start)
        else:
            verdict = candidate.finish()
        if verdict is Verdict.OPEN:
            return
        self._candidate = None
        if verdict is Verdict.CALL:
            self._calls.extend(candidate.calls)
            self._parts.append([])
            self._line.call()
            again = candidate.over
        else:
            self._emit(candidate.trigger, out)
            again = candidate.held
        self._again += len(again)
        # What was taken from this piece is read again in place; only what came before is copied.
        here = min(end - start, len(again))
        if end - here < len(text):
            todo.append((text, end - here))
        if before := again[: len(again) - here]:
            todo.append((before, 0))

    def _emit(self, text: str, out: list[str]) -> None:
        if text:
            out.append(text)
            self._parts[-1].append(text)
            self._line.text(text)

    def _beginning_at_end(self, text: str, start: int) -> int:
        """Return the length of the longest end of the text that a trigger begins with."""
        for length in range(min(self._longest, len(text) - start), 0, -1):
            if text[len(text) - length :] in self._beginnings:
                return length
        return 0


class _Line:
    """What stands on the current line before a trigger, and whether a code block is open."""

    def __init__(self) -> None:
        self._blank = True
        self._ticks = 0
        self._fenced = False
        self._last = ""

    def takes(self, trigger: str) -> bool:
        """Say whether a trigger here may begin a call: not in inline code, not within a word."""
        if trigger[0].isalnum() and (self._last.isalnum() or self._last == "_"):
            return False
        return self._ticks % 2 == 0

    def place(self, names: Set[str]) -> Place:
        """Return where a call that began here would stand."""
        return Place(self._blank, self._fenced, names)

    def text(self, text: str) -> None:
        """Take shown text."""
        if text == "```" and self._blank:
            self._fenced = not self._fenced
            self._blank = False
            self._last = "`"
            return
        line = text[text.rfind("\n") + 1 :]
        if len(line) < len(text):
            self._blank, self._ticks = True, 0
        self._ticks += line.count("`")
        self._blank = self._blank and not line.strip()
        self._last = text[-1]

    def call(self) -> None:
        """Take a call: what follows it stands on a line of its own."""
        self._blank, self._ticks, self._last = True, 0, ""
