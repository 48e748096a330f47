"""Reads one reply: text and tool calls apart while they stream, never showing a piece of a call.

Text is held back from a call's trigger on until its brackets are closed, or until it cannot be a
call; then the trigger is shown and the rest is read again. What is read again is counted: hostile
text cannot make more work than a few times its length, after which the rest is plain text.
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
    """What a whole reply said: the text to keep around the calls, and the calls in order.

    `raw` is the reply as the model wrote it, where the calls stood in its text.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    raw: str = ""


class ReplyReader(Protocol):
    """Reads one reply as it streams; a fresh one is made for every reply."""

    def feed(self, text: str) -> str:
        """Take more content and return what of it may be shown now: never half a call."""
        ...

    def finish(self) -> tuple[str, Reading]:
        """Return what was held back but turned out to be text, and the reading of the whole.

        The shown pieces and this last one, joined, equal the reading's text but for white space at
        the seams where a call stood.
        """
        ...


class PlainReader:
    """Passes content through: the calls come in fields of their own."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def feed(self, text: str) -> str:
        """Keep and show everything."""
        self._pieces.append(text)
        return text

    def finish(self) -> tuple[str, Reading]:
        """Return the content as it came."""
        return "", Reading("".join(self._pieces))


_FREE_WORK = 50_000
_WORK = 4
"""Characters that may be read again: so many, plus this many times the length of the reply."""
_OFTEN = 2_000
"""Characters up to which a possible call is looked at with every piece; then with every eighth."""
_LONGEST_HEAD = 120
_LONGEST_GAP = 40
"""Characters of white space that may stand before a closer."""
_LONGEST_START = 300
"""Characters within which the first key and a name have to show."""
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
    """One way of writing a call: what begins it, what may end it, what may precede its JSON."""

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
_FENCED = _Form(  # a fenced block that holds an object with name and arguments, and only those
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
    """What stands before a trigger: `blank` lines and open code blocks decide what it may begin."""

    blank: bool = True
    ticks: int = 0
    fenced: bool = False
    last: str = ""

    def takes(self, trigger: str) -> bool:
        """Say whether a trigger here may begin a call: not in inline code, not within a word."""
        if trigger[0].isalnum() and (self.last.isalnum() or self.last == "_"):
            return False
        return self.ticks % 2 == 0

    def behind(self, text: str) -> _LineStart:
        """Return what stands before what follows this shown text."""
        if text == "```" and self.blank:
            return _LineStart(blank=False, ticks=self.ticks, fenced=not self.fenced, last="`")
        line = text[text.rfind("\n") + 1 :]
        new = len(line) < len(text)
        ticks = line.count("`") + (0 if new else self.ticks)
        return _LineStart((new or self.blank) and not line.strip(), ticks, self.fenced, text[-1])


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Text behind a trigger that may be a call; how it is cut into pieces makes no difference."""

    form: _Form
    text: str
    start: int
    line: _LineStart
    names: Set[str]
    last: bool
    """Whether the reply ends with the text."""

    def read(self) -> tuple[list[ToolCall], int] | None:
        """Return the calls, none for plain text, and how far was read; None if that is open yet."""
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
        """Say whether what is read can still become a call; of prose that shows early."""
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
        """Return where the brackets are even, or else where a closer stands or nothing follows."""
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
        """Wait for the brackets; a closer outside of a string says that the JSON is broken.

        In JSON that the reply ends in, a quote too many may have swallowed the closer.
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
        """Look for a closer behind the JSON, which a block needs, and read it."""
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
        """Return the name in JSON that cannot be read as such: a tool's, if there is one."""
        found = [named or each[1] for each in _NAME.finditer(body)]
        return next((name for name in found if name in self.names), (found or [named])[0])

    def _calls(self, named: str, body: str) -> list[ToolCall]:
        """Return the calls of the JSON, without ids; none when it is not a call after all."""
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
    """A `ReplyReader` for text with calls; `names` are the tools that exist."""

    def __init__(self, names: Set[str]) -> None:
        self._names = names
        self._raw: list[str] = []
        self._parts: list[list[str]] = [[]]
        self._calls: list[ToolCall] = []
        self._held: list[str] = []
        self._size = self._look = self._length = self._again = 0
        self._line = _LineStart()

    def feed(self, text: str) -> str:
        """Take more text and return what may be shown."""
        self._raw.append(text)
        self._held.append(text)
        self._size += len(text)
        self._length += len(text)
        return self._read(last=False) if self._size >= self._look else ""

    def finish(self) -> tuple[str, Reading]:
        """Return the rest that is text after all, and the reading of the whole."""
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
