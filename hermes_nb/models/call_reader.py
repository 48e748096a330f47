"""Reads one reply: text and tool calls apart while they stream, never showing a piece of a call.

Text is held back from a call's trigger on until its brackets are closed, or until it cannot be a
call; then the trigger is shown and the rest is read again. What is read again is counted: hostile
text cannot make more work than a few times its length, after which the rest is plain text.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from typing import Any, Protocol

from hermes_nb.core.messages import ToolCall
from hermes_nb.core.text import dumps
from hermes_nb.models.arguments import parse_arguments, strict_json


@dataclass(frozen=True, slots=True)
class Reading:
    """What a whole reply said: the text to keep around the calls, and the calls in order.

    `raw` is the reply as the model wrote it, where the calls stood in its text.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    raw: str = ""


class Reader(Protocol):
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


_SLICE = 4096
"""Characters that are read at a time, so that what is read again is never copied often."""
_FREE_WORK = 50_000
_WORK = 4
"""Characters that may be read again: so many, plus this many times the length of the reply."""
_LONGEST_HEAD = 120
_LONGEST_GAP = 40
"""Characters of white space that may stand before a closer."""
_LONGEST_START = 300
"""Characters within which the first key and a name have to show."""
_CUT = "the call was cut off before its end; nothing was run, write it again"
_BROKEN = "the call's JSON could not be read; nothing was run, write it again as valid JSON"

_BRACKET = re.compile(r"[{\[]")
_MARK = re.compile(r"""["'\\{}\[\]<`]""")
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
    re.compile(rf"{_LANGUAGE.pattern}|j(?:so?)?|t(?:ool?(?:_c(?:al?)?)?)?|to|tool_?"),
)
_FORMS = {trigger: form for form in (_TAGGED, _NAMED, _FENCED) for trigger in form.triggers}
_TRIGGER = re.compile("|".join(map(re.escape, sorted(_FORMS, key=len, reverse=True))))
_BEGINNINGS = {word[:size] for word in _FORMS for size in range(1, len(word))}
_LONGEST_BEGINNING = max(map(len, _BEGINNINGS))


class _Candidate:
    """Held-back text that may be a call: its head, the JSON, and what closes it.

    `calls` is None while that is not known, and empty for text. `left` is what was looked at and
    does not belong to it.
    """

    def __init__(self, trigger: str, line: _Line, names: Set[str]) -> None:
        self.trigger = trigger
        self.calls: list[ToolCall] | None = None
        self.left = ""
        self._form = _FORMS[trigger]
        self._names = names
        self._line_start, self._fenced = line.blank, line.fenced
        self._head = ""
        self._pieces: list[str] = []
        self._start = ""
        self._depth = 0
        self._quote = ""
        self._before = ""

    @property
    def held(self) -> str:
        """What was taken behind the trigger."""
        return self._head + "".join(self._pieces)

    def feed(self, text: str, *, last: bool) -> None:
        """Take text; `last` says that nothing follows it."""
        at = 0
        if not self._pieces:
            bracket = _BRACKET.search(text)
            at = bracket.start() if bracket else len(text)
            self._head += text[:at]
            if not self._begins() or (bracket and not self._plausible()) or (last and not bracket):
                self.calls, self.left = [], text[at:]
            if not bracket or self.calls is not None:
                return
        if self._depth or not self._pieces:
            end = self._count(text, at, last=last)
            self._pieces.append(text[at:end])
            self._start += text[at:end][: _LONGEST_START - len(self._start)]
            if not self._plausible():
                self.calls, self.left = [], text[end:]
                return
            at = end
        if self._depth:
            self._wait(text[at:], last=last)
        else:
            self._close(text[at:], last=last)

    def _begins(self) -> bool:
        """Say whether the head may stand, or begin to stand, between trigger and JSON."""
        if self._form is _FENCED and (not self._line_start or self._fenced):
            return False
        fits = self._form.head.fullmatch(self._head) is not None
        return fits and len(self._head) <= _LONGEST_HEAD

    def _plausible(self) -> bool:
        """Say whether what is read can still become a call; of prose that shows early."""
        named, names, fenced = self._named(), self._names, self._fenced
        if self._form is _NAMED and named not in names:
            return bool(named) and self._line_start and not fenced
        if self._form is _FENCED and not _LANGUAGE.fullmatch(self._head):
            return False
        if fenced and named and named not in names:
            return False
        first = _FIRST_KEY.match(self._start)
        if first is None:
            return len(self._start) < _LONGEST_START
        key = first[1] or first[2] or first[3]
        if first[4] != ":" or (self._form is _FENCED and key not in _KEYS):
            return False
        strict = self._form is _FENCED or (fenced and not named)
        return not (strict and key == "name" and first[5] and first[5] not in names)

    def _count(self, text: str, at: int, *, last: bool) -> int:
        """Count brackets; return where they are even, a closer stands, or nothing more is known."""
        while found := _MARK.search(text, at):
            mark, here = found[0], found.start()
            self._before = text[at:here].rstrip()[-1:] or self._before
            at = found.end()
            if self._quote:
                if mark == "\\":
                    if at == len(text) and not last:
                        return here
                    at += 1
                elif mark == self._quote:
                    self._quote = ""
            elif mark in "{[":
                self._depth += 1
            elif mark in "}]":
                self._depth -= 1
                if not self._depth:
                    return at
            elif mark == '"' or (mark == "'" and self._before in "{[:,"):
                self._quote = mark
            elif mark in "<`" and (self._closer(text[here:]) or self._closes_later(text[here:])):
                return here
            self._before = mark
        self._before = text[at:].rstrip()[-1:] or self._before
        return len(text)

    def _closer(self, text: str) -> str:
        """Return what ends a call that the text begins with, or nothing."""
        return next((each for each in self._form.closers if text.startswith(each)), "")

    def _closes_later(self, text: str) -> bool:
        return any(each.startswith(text) for each in self._form.closers)

    def _wait(self, text: str, *, last: bool) -> None:
        """Wait for the brackets; a closer outside of a string says that the JSON is broken.

        In JSON that the reply ends in, a quote too many may have swallowed the closer.
        """
        closer = self._closer(text)
        if not (closer or last):
            self.left = text
            return
        body = "" if closer else "".join(self._pieces)
        found = [at for each in self._form.closers if (at := (body + text).find(each)) >= 0]
        name = self._name()
        self.calls, self.left = [], text
        if found and name in self._names and self._form is not _NAMED and self._has_arguments():
            rest = (body + text)[min(found) :]
            self.calls = [ToolCall(id="", name=name, problem=_BROKEN)]
            self.left = rest[len(self._closer(rest)) :]
        elif last and (name in self._names or (name and self._form is _TAGGED)):
            self.calls, self.left = [ToolCall(id="", name=name, problem=_CUT)], ""

    def _close(self, text: str, *, last: bool) -> None:
        """Look for a closer behind the JSON, which a block needs, and read it."""
        word = text.lstrip()
        closer, open_end = self._closer(word), self._closes_later(word)
        if open_end and not closer and not last and len(text) - len(word) <= _LONGEST_GAP:
            self.left = text
            return
        ends = closer or (last and open_end) or self._form is not _FENCED
        self.calls = self._read() if ends else []
        self.left = word[len(closer) :] if closer and self.calls else text

    def _named(self) -> str:
        """Return the name in a head such as "call: name", or nothing."""
        return self._head.strip().removeprefix("call:").strip() if self._form is not _FENCED else ""

    def _name(self) -> str:
        """Return the name in JSON that cannot be read as such: a tool's, if there is one."""
        found = [self._named() or each[1] for each in _NAME.finditer("".join(self._pieces))]
        return next((name for name in found if name in self._names), (found or [self._named()])[0])

    def _has_arguments(self) -> bool:
        return _ARGUMENTS.search("".join(self._pieces)) is not None

    def _read(self) -> list[ToolCall]:
        """Return the calls of the JSON, without ids; none when it is not a call after all."""
        body, names = "".join(self._pieces), self._names
        strict = self._form is _FENCED or self._fenced
        if name := self._named():
            return [_call(name, body)] if body[:1] == "{" or self._form is _TAGGED else []
        try:
            value = strict_json(body, control=True)
        except (ValueError, RecursionError):
            repaired = parse_arguments(body)
            if repaired.problem:
                name = self._name()
                known = name in names or (name and not strict)
                return [ToolCall(id="", name=name, problem=_BROKEN)] if known else []
            value = repaired.value
        items = value if isinstance(value, list) else [value]
        if self._form is _FENCED and not all(map(_only_a_call, items)):
            return []
        calls = [call for item in items if (call := _object_call(item)) is not None]
        known = not strict or all(call.name in names for call in calls)
        return calls if known and len(calls) == len(items) else []


def _only_a_call(value: object) -> bool:
    keys = value.keys() if isinstance(value, dict) else set()
    return keys <= _KEYS and not keys.isdisjoint(("arguments", "parameters"))


def _call(name: str, arguments: str) -> ToolCall:
    read = parse_arguments(arguments)
    return ToolCall(id="", name=name, arguments=read.value, text=read.text, problem=read.problem)


def _object_call(value: object) -> ToolCall | None:
    if not isinstance(value, Mapping):
        return None
    inner = value.get("function")
    fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else value
    name = fields.get("name")
    if not isinstance(name, str) or not name.strip():
        return None
    arguments = fields.get("arguments", fields.get("parameters"))
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else dumps(arguments).decode("utf-8")
    return _call(name.strip(), arguments)


class CallReader:
    """A `Reader` for text with calls; `names` are the tools that exist."""

    def __init__(self, names: Set[str]) -> None:
        self._names = names
        self._raw: list[str] = []
        self._parts: list[list[str]] = [[]]
        self._calls: list[ToolCall] = []
        self._candidate: _Candidate | None = None
        self._todo: list[str] = []
        self._rest = ""
        self._line = _Line()
        self._length = 0
        self._again = 0

    def feed(self, text: str) -> str:
        """Take more text and return what may be shown."""
        self._raw.append(text)
        self._length += len(text)
        self._push(text)
        return self._run(final=False)

    def finish(self) -> tuple[str, Reading]:
        """Return the rest that is text after all, and the reading of the whole."""
        shown = self._run(final=True)
        parts = ["".join(part) for part in self._parts]
        if not self._calls:
            return shown, Reading("".join(parts))
        text = "\n\n".join(part.strip() for part in parts if part.strip())
        calls = tuple(
            replace(call, id=f"call_{number}") for number, call in enumerate(self._calls, start=1)
        )
        return shown, Reading(text, calls, raw="".join(self._raw))

    def _push(self, text: str) -> None:
        """Put text before what is still to be read."""
        starts = range(0, len(text), _SLICE)
        self._todo += [text[start : start + _SLICE] for start in reversed(starts)]

    def _run(self, *, final: bool) -> str:
        """Read what there is, and return what may be shown."""
        out: list[str] = []
        while self._todo or (final and (self._candidate or self._rest)):
            text = self._rest + (self._todo.pop() if self._todo else "")
            self._rest = ""
            last = final and not self._todo
            if self._candidate is None:
                self._search(text, out, last=last)
            else:
                self._continue(self._candidate, text, out, last=last)
        return "".join(out)

    def _search(self, text: str, out: list[str], *, last: bool) -> None:
        """Show the text up to the next trigger."""
        if self._again > _FREE_WORK + _WORK * self._length:
            self._emit(text, out)
            return
        found = _TRIGGER.search(text)
        if found is None:
            end = len(text) - (0 if last else _beginning_at_end(text))
            self._emit(text[:end], out)
            self._rest = text[end:]
            return
        self._emit(text[: found.start()], out)
        if self._line.takes(found[0]):
            self._candidate = _Candidate(found[0], self._line, self._names)
        else:
            self._emit(found[0], out)
        self._push(text[found.end() :])

    def _continue(self, candidate: _Candidate, text: str, out: list[str], *, last: bool) -> None:
        """Give the candidate its next piece, and act on what it turns out to be."""
        candidate.left = ""
        candidate.feed(text, last=last)
        if candidate.calls is None:
            self._rest = candidate.left
            return
        self._candidate = None
        again = candidate.left
        if candidate.calls:
            self._calls.extend(candidate.calls)
            self._parts.append([])
            self._line.call()
        else:
            self._emit(candidate.trigger, out)
            again = candidate.held + again
        self._again += max(0, len(again) - len(text))
        self._push(again)

    def _emit(self, text: str, out: list[str]) -> None:
        if text:
            out.append(text)
            self._parts[-1].append(text)
            self._line.text(text)


def _beginning_at_end(text: str) -> int:
    """Return the length of the longest end of the text that a trigger begins with."""
    sizes = range(min(_LONGEST_BEGINNING, len(text)), 0, -1)
    return next((size for size in sizes if text[-size:] in _BEGINNINGS), 0)


class _Line:
    """What stands on the current line before a trigger, and whether a code block is open."""

    def __init__(self) -> None:
        self.blank = True
        self._ticks = 0
        self.fenced = False
        self._last = ""

    def takes(self, trigger: str) -> bool:
        """Say whether a trigger here may begin a call: not in inline code, not within a word."""
        if trigger[0].isalnum() and (self._last.isalnum() or self._last == "_"):
            return False
        return self._ticks % 2 == 0

    def text(self, text: str) -> None:
        """Take shown text."""
        if text == "```" and self.blank:
            self.fenced = not self.fenced
            self.blank = False
            self._last = "`"
            return
        line = text[text.rfind("\n") + 1 :]
        if len(line) < len(text):
            self.blank, self._ticks = True, 0
        self._ticks += line.count("`")
        self.blank = self.blank and not line.strip()
        self._last = text[-1]

    def call(self) -> None:
        """Take a call: what follows it stands on a line of its own."""
        self.blank, self._ticks, self._last = True, 0, ""
