"""Separate the text and the tool calls of a streamed reply, without showing a partial call.

A trigger is text that may start a call, such as `<tool_call>`. From a trigger on, text is held back
until the call's brackets are closed or it turns out not to be a call. In the latter case the
trigger is shown and the rest is scanned again. Rescanning is limited, so that hostile text cannot
cost more than a few times its length. Beyond the limit, the remainder is treated as plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Protocol

from hermes_nb.core.messages import Json, ToolCall
from hermes_nb.models.arguments import dumps_text, parse_arguments, strict_json


@dataclass(frozen=True, slots=True)
class Reading:
    """The result of reading a complete reply."""

    text: str
    """The text around the calls."""
    calls: tuple[ToolCall, ...] = ()
    """The calls, in order."""
    raw: str = ""
    """The reply as the model wrote it, if its text contained calls; "" otherwise."""


class ReplyReader(Protocol):
    """Reads one streamed reply. Create a new reader for every reply."""

    def feed(self, text: str) -> str:
        """Add content and return the part that can be shown now, never part of a call."""
        ...

    def finish(self) -> tuple[str, Reading]:
        """Return any held-back text that is not part of a call, and the result for the whole reply.

        The pieces shown, plus this one, add up to the result's text, apart from white space where a
        call was removed.
        """
        ...


class PlainReader:
    """Passes all content through, for replies with calls in a separate field."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def feed(self, text: str) -> str:
        """Store and return the text."""
        self._pieces.append(text)
        return text

    def finish(self) -> tuple[str, Reading]:
        """Return the content unchanged."""
        return "", Reading("".join(self._pieces))


_FREE_WORK = 50_000
_WORK = 4
"""Factor of the rescan limit: `_FREE_WORK` characters plus this many times the reply's length."""
_OFTEN = 2_000
"""A possible call of at most this many characters is checked after every piece, a longer one
whenever it has grown by an eighth."""
_LONGEST_HEAD = 120
_LONGEST_GAP = 40
"""Maximum white space before a closing tag, in characters."""
_LONGEST_START = 300
"""Maximum characters before the first key and a name."""
_CUT = "the call was cut off before its end; nothing was run, write it again"
_BROKEN = "the call's JSON could not be read; nothing was run, write it again as valid JSON"

_BRACKET = re.compile(r"[{\[]")
_MARK = re.compile(r"""["'\\{}\[\]<`]""")
_SPACE = re.compile(r"\s*")
_FIRST_KEY = re.compile(
    r"""[\[{\s]+(?:"([^"]{0,200})"|'([^']{0,200})'|([\w.-]{1,200}))\s*([^\s\w.-])"""
    r"""(?:\s*["']([^"'\\]{0,200})["'])?"""
)
_NAME = re.compile(r"""["']?\bname["']?\s*:\s*["']([^"'\\]{1,200})["']""")
_ARGUMENTS = re.compile(r"""["']?\b(?:arguments|parameters)["']?\s*:""")
_KEYS = frozenset({"name", "arguments", "parameters", "id", "type"})


@dataclass(frozen=True, slots=True)
class _Form:
    """One notation for a call: triggers, closing tags and the text allowed before the JSON."""

    triggers: tuple[str, ...]
    closers: tuple[str, ...]
    head: re.Pattern[str]


_TAGGED = _Form(  # <tool_call>{"name": …, "arguments": …}</tool_call>, or call:name{…} inside
    ("<tool_call>", "<|tool_call>", "<|tool_call|>"),
    ("</tool_call>", "<tool_call|>", "<|/tool_call|>", "<|tool_call_end|>"),
    re.compile(r"\s*(?:c(?:a(?:l(?:l(?::\s?(?:[A-Za-z_][\w.-]*\s?)?)?)?)?)?)?"),
)
_NAMED = _Form(  # call:name{…}, keys quoted or bare
    ("call:",), ("<tool_call|>", "</tool_call>"), re.compile(r"\s?(?:[A-Za-z_][\w.-]*\s?)?")
)
_LANGUAGE = re.compile(r"(?i)(?:json|tool_call)\s*")
_FENCED = _Form(  # a fenced block that contains an object with only a name and arguments
    ("```",),
    ("```",),
    re.compile(rf"{_LANGUAGE.pattern}|j(?:so?)?|t(?:ool?(?:_c(?:al?)?)?)?|to|tool_?|"),
)
_FORMS = {trigger: form for form in (_TAGGED, _NAMED, _FENCED) for trigger in form.triggers}
_TRIGGER = re.compile("|".join(map(re.escape, sorted(_FORMS, key=len, reverse=True))))
_BEGINNINGS = {word[:size] for word in _FORMS for size in range(1, len(word))}
_LONGEST_BEGINNING = max(map(len, _BEGINNINGS))


@dataclass(frozen=True, slots=True)
class _LineStart:
    """The line before a trigger, which decides whether a call may start there."""

    blank: bool = True
    """Whether the line is blank so far."""
    ticks: int = 0
    """Number of backticks in the line so far; odd inside inline code."""
    fenced: bool = False
    """Whether a fenced code block is open."""
    last: str = ""
    """The last character before the trigger; "" at the start."""

    def takes(self, trigger: str) -> bool:
        """Return whether a call may start here: not in inline code and not inside a word."""
        if trigger[0].isalnum() and (self.last.isalnum() or self.last == "_"):
            return False
        return self.ticks % 2 == 0

    def behind(self, text: str) -> _LineStart:
        """Return the line's state after `text`."""
        if text == "```" and self.blank:
            return _LineStart(blank=False, ticks=self.ticks, fenced=not self.fenced, last="`")
        line = text[text.rfind("\n") + 1 :]
        new = len(line) < len(text)
        ticks = line.count("`") + (0 if new else self.ticks)
        return _LineStart((new or self.blank) and not line.strip(), ticks, self.fenced, text[-1])


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Text after a trigger that may be a call; chunk boundaries do not affect the result."""

    form: _Form
    text: str
    start: int
    line: _LineStart
    names: Set[str]
    last: bool
    """Whether the reply ends with this text."""

    def read(self) -> tuple[list[ToolCall], int] | None:
        """Return the calls and the end position, or None if more text is needed.

        Plain text yields no calls.
        """
        found = _BRACKET.search(self.text, self.start, self.start + _LONGEST_HEAD + 1)
        at = found.start() if found else min(len(self.text), self.start + _LONGEST_HEAD + 1)
        head = self.text[self.start : at]
        fits = self.form.head.fullmatch(head) is not None and len(head) <= _LONGEST_HEAD
        if self.form is _FENCED and (not self.line.blank or self.line.fenced):
            fits = False
        if not fits or not found:
            return ([], at) if self.last or not fits else None
        named = "" if self.form is _FENCED else head.strip().removeprefix("call:").strip()
        end, whole = self._end(at, at + _LONGEST_START)
        if not self._plausible(head, named, self.text[at:end]):
            return [], end
        if not whole:
            end, whole = self._end(at, len(self.text))
        return self._closed(named, at, end) if whole else self._open(named, at, end)

    def _plausible(self, head: str, named: str, start: str) -> bool:
        """Return whether the text can still become a call. Prose is ruled out early."""
        names, fenced = self.names, self.line.fenced
        if self.form is _NAMED and named not in names:
            return bool(named) and self.line.blank and not fenced
        if self.form is _FENCED and not _LANGUAGE.fullmatch(head):
            return False
        if fenced and named and named not in names:
            return False
        first = _FIRST_KEY.match(start)
        if first is None:
            return len(start) < _LONGEST_START
        key = first[1] or first[2] or first[3]
        if first[4] != ":" or (self.form is _FENCED and key not in _KEYS):
            return False
        strict = self.form is _FENCED or (fenced and not named)
        return not (strict and key == "name" and first[5] and first[5] not in names)

    def _end(self, at: int, stop: int) -> tuple[int, bool]:
        """Return where the JSON ends, and whether its brackets are balanced.

        Without balanced brackets it ends at a closing tag or at the end of the text.
        """
        depth, quote, before = 0, "", ""
        while found := _MARK.search(self.text, at, stop):
            mark, here = found[0], found.start()
            before = self.text[at:here].rstrip()[-1:] or before
            at = found.end()
            if quote:
                at += mark == "\\"
                quote = "" if mark == quote else quote
            elif mark in "{[":
                depth += 1
            elif mark in "}]":
                depth -= 1
                if not depth:
                    return at, True
            elif mark == '"' or (mark == "'" and before in "{[:,"):
                quote = mark
            elif mark in "<`" and self.text.startswith(self.form.closers, here):
                return here, False
            before = mark
        return min(len(self.text), stop), False

    def _open(self, named: str, at: int, end: int) -> tuple[list[ToolCall], int] | None:
        """Handle a missing closing bracket; a closing tag outside a string means broken JSON.

        At the end of the reply, a surplus quote may have swallowed the closing tag, so look inside
        strings too.
        """
        closed = self.text.startswith(self.form.closers, end)
        if not (closed or self.last):
            return None
        body, begin = self.text[at:end], end if closed else at
        ends = [(p, c) for c in self.form.closers if (p := self.text.find(c, begin)) >= 0]
        name = self._name(named, body)
        if ends and name in self.names and self.form is not _NAMED and _ARGUMENTS.search(body):
            place, closer = min(ends)
            return [ToolCall(id="", name=name, problem=_BROKEN)], place + len(closer)
        if self.last and (name in self.names or (name and self.form is _TAGGED)):
            return [ToolCall(id="", name=name, problem=_CUT)], len(self.text)
        return [], end

    def _closed(self, named: str, at: int, end: int) -> tuple[list[ToolCall], int] | None:
        """Find the closing tag after the JSON and parse the calls, or return None to wait for text.

        A fenced block is only parsed if it is closed.
        """
        space = _SPACE.match(self.text, end)
        place = space.end() if space else end
        closer = next((c for c in self.form.closers if self.text.startswith(c, place)), "")
        rest = self.text[place : place + _LONGEST_GAP]
        begun = any(c.startswith(rest) for c in self.form.closers)
        if begun and not closer and not self.last and place - end <= _LONGEST_GAP:
            return None
        ends = closer or (self.last and begun) or self.form is not _FENCED
        calls = self._calls(named, self.text[at:end]) if ends else []
        return calls, place + len(closer) if closer and calls else end

    def _name(self, named: str, body: str) -> str:
        """Return the name in unparseable JSON, preferably a known tool's."""
        found = [named or each[1] for each in _NAME.finditer(body)]
        return next((name for name in found if name in self.names), (found or [named])[0])

    def _calls(self, named: str, body: str) -> list[ToolCall]:
        """Return the calls in the JSON, without ids; [] if it is not a call."""
        strict = self.form is _FENCED or self.line.fenced
        if named:
            known = body[:1] == "{" or self.form is _TAGGED
            return [parse_arguments(body).call(named)] if known else []
        value: Json
        try:
            value = strict_json(body, control=True)
        except (ValueError, RecursionError):
            repaired = parse_arguments(body)
            if repaired.problem:
                name = self._name(named, body)
                known = name in self.names or bool(name and not strict)
                return [ToolCall(id="", name=name, problem=_BROKEN)] if known else []
            value = repaired.value
        items = value if isinstance(value, list) else [value]
        if self.form is _FENCED and not all(map(_only_a_call, items)):
            return []
        calls = [call for item in items if (call := _object_call(item)) is not None]
        known = not strict or all(call.name in self.names for call in calls)
        return calls if known and len(calls) == len(items) else []


def _only_a_call(value: Json) -> bool:
    keys = value.keys() if isinstance(value, Mapping) else set()
    return keys <= _KEYS and not keys.isdisjoint(("arguments", "parameters"))


def _object_call(value: Json) -> ToolCall | None:
    if not isinstance(value, Mapping):
        return None
    inner = value.get("function")
    fields = inner if isinstance(inner, Mapping) else value
    name = fields.get("name")
    if not isinstance(name, str) or not name.strip():
        return None
    arguments = fields.get("arguments", fields.get("parameters"))
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else dumps_text(arguments)
    return parse_arguments(arguments).call(name.strip())


class CallReader:
    """A `ReplyReader` for text with calls; `names` are the available tools."""

    def __init__(self, names: Set[str]) -> None:
        self._names = names
        self._raw: list[str] = []
        self._parts: list[list[str]] = [[]]
        self._calls: list[ToolCall] = []
        self._held: list[str] = []
        self._size = self._look = self._length = self._again = 0
        self._line = _LineStart()

    def feed(self, text: str) -> str:
        """Add text and return the part that can be shown."""
        self._raw.append(text)
        self._held.append(text)
        self._size += len(text)
        self._length += len(text)
        return self._read(last=False) if self._size >= self._look else ""

    def finish(self) -> tuple[str, Reading]:
        """Return the remaining plain text, and the result for the whole reply."""
        shown = self._read(last=True)
        parts = ["".join(part) for part in self._parts]
        if not self._calls:
            return shown, Reading("".join(parts))
        text = "\n\n".join(part.strip() for part in parts if part.strip())
        calls = tuple(replace(call, id=f"call_{n}") for n, call in enumerate(self._calls, start=1))
        return shown, Reading(text, calls, raw="".join(self._raw))

    def _read(self, *, last: bool) -> str:
        text, out, at = "".join(self._held), list[str](), 0
        while self._again <= _FREE_WORK + _WORK * self._length:
            if (found := _TRIGGER.search(text, at)) is None:
                break
            self._emit(text[at : found.start()], out)
            at, calls = found.start(), list[ToolCall]()
            if self._line.takes(found[0]):
                form = _FORMS[found[0]]
                candidate = _Candidate(form, text, found.end(), self._line, self._names, last)
                if (read := candidate.read()) is None:
                    return self._hold(text[at:], out)
                calls, end = read
                self._again += end - at
            if calls:
                self._calls += calls
                self._parts.append([])
                self._line = _LineStart(fenced=self._line.fenced)
                at = end
            else:
                self._emit(found[0], out)
                at = found.end()
        else:
            last = True
        sizes = range(min(_LONGEST_BEGINNING, len(text) - at), 0, -1)
        begun = next((size for size in sizes if not last and text[-size:] in _BEGINNINGS), 0)
        self._emit(text[at : len(text) - begun], out)
        return self._hold(text[len(text) - begun :], out)

    def _hold(self, rest: str, out: list[str]) -> str:
        self._held, self._size = [rest], len(rest)
        self._look = self._size + (self._size // 8 if self._size > _OFTEN else 0)
        return "".join(out)

    def _emit(self, text: str, out: list[str]) -> None:
        if text:
            out.append(text)
            self._parts[-1].append(text)
            self._line = self._line.behind(text)
