"""How tools are offered to a model and its calls read back, also from its text.

A strategy is three small answers: the conversation as this model reads it, the extra fields of the
request, and a reader for what comes back. The loop never sees which one is at work.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Protocol

from hermes_nb.core.messages import Memo, Message, Part, Text, ToolCall
from hermes_nb.core.protocols import Request
from hermes_nb.core.text import dumps
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.models.arguments import parse_arguments, strict_json

RAW = "raw_text"
"""The key in `Message.echo` under which a reply with calls in its text is kept as written."""


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


class Strategy(Protocol):
    """One way of tool calling."""

    def messages(self, request: Request) -> Sequence[Message]:
        """Return the conversation as the wire carries it.

        Maps a message to the same object every time it sees it in the same place (the adapter
        serialises each object once), and only ever extends what it returned for a shorter
        conversation.
        """
        ...

    def fields(self, request: Request) -> Mapping[str, Any]:
        """Return further top-level fields of the request: tools, response format, sampling."""
        ...

    def reader(self) -> Reader:
        """Return a reader for one reply."""
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


class Structured:
    """The `tools` parameter, `tool_calls` in the reply, results as `role: tool` messages."""

    def __init__(self) -> None:
        self._schemas: tuple[Toolset, list[dict[str, Any]]] | None = None

    def messages(self, request: Request) -> Sequence[Message]:
        """Return the conversation as it is."""
        return request.messages

    def fields(self, request: Request) -> Mapping[str, Any]:
        """Return the schemas, made once a toolset."""
        if not len(request.tools):
            return {}
        if self._schemas is None or self._schemas[0] is not request.tools:
            self._schemas = request.tools, [function_schema(tool) for tool in request.tools]
        out: dict[str, Any] = {"tools": self._schemas[1]}
        if request.tool_choice == "none":
            out["tool_choice"] = "none"
        return out

    def reader(self) -> Reader:
        """Return a reader that shows everything."""
        return PlainReader()


def function_schema(tool: Tool) -> dict[str, Any]:
    """Return a tool in the chat-completions form."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        },
    }


_SPACE = re.compile(r"\s+")
_WORD = re.compile(r"[^\s{}\[\]:,\"'<>`]+")
_STRING_END = {'"': re.compile(r'["\\]'), "'": re.compile(r"['\\]")}
_LONGEST_KEPT = 200
"""Characters of a key or name that are remembered."""


class Expect(Enum):
    """What may come next, outside a string."""

    KEY = "a key, or the end of the object"
    COLON = "a colon"
    VALUE = "a value, or the end of the array"
    COMMA = "a comma, or the end"


class JsonScan:
    """One object or array. `keys` and `name` are those of the outermost object, as they are read.

    `rejected` says that it cannot be JSON, `complete` that its last bracket has closed.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.name: str | None = None
        self.complete = False
        self.rejected = False
        self._stack: list[str] = []
        self._expect = Expect.VALUE
        self._quote = ""
        self._escaped = False
        self._token = ""
        self._key = ""
        self._in_word = False

    def feed(self, text: str, position: int) -> int:
        """Read on from `position`; return where it stopped: at the end, or behind the value."""
        while position < len(text) and not (self.complete or self.rejected):
            position = (
                self._string(text, position) if self._quote else self._outside(text, position)
            )
        return position

    def _string(self, text: str, position: int) -> int:
        if self._escaped:
            self._escaped = False
            self._remember(text[position])
            return position + 1
        found = _STRING_END[self._quote].search(text, position)
        end = found.start() if found else len(text)
        self._remember(text[position : min(end, position + _LONGEST_KEPT)])
        if found is None:
            return end
        if found[0] == "\\":
            self._escaped = True
        else:
            self._quote = ""
            self._token_ends(quoted=True)
        return end + 1

    def _outside(self, text: str, position: int) -> int:
        if space := _SPACE.match(text, position):
            self._word_ends()
            return space.end()
        if word := _WORD.match(text, position):
            return self._word(word[0], word.end())
        self._word_ends()
        mark = text[position]
        if mark in "\"'":
            self._quoted(mark)
        elif mark in "{[":
            self._open(mark)
        elif mark in "}]":
            self._close(mark)
        elif mark == ":":
            self._move(Expect.COLON, Expect.VALUE)
        elif mark == ",":
            inside = Expect.KEY if self._stack[-1:] == ["{"] else Expect.VALUE
            self._move(Expect.COMMA, inside)
        else:
            self.rejected = True
        return position + 1

    def _move(self, expected: Expect, following: Expect) -> None:
        if self._expect is not expected:
            self.rejected = True
        self._expect = following

    def _quoted(self, mark: str) -> None:
        if self._expect not in (Expect.KEY, Expect.VALUE):
            self.rejected = True
        self._quote, self._token = mark, ""

    def _word(self, word: str, end: int) -> int:
        """Take a bare word; several in a row are a value without quotes, never a key."""
        if self._in_word:
            self._remember(word)
        elif self._expect is Expect.COLON or not self._stack:
            self.rejected = True
        else:
            self._in_word, self._token = True, word[:_LONGEST_KEPT]
        return end

    def _word_ends(self) -> None:
        if self._in_word:
            self._in_word = False
            if self._expect is not Expect.COMMA:
                self._token_ends(quoted=False)

    def _token_ends(self, *, quoted: bool) -> None:
        """Take the string or word that is whole now as a key or a value."""
        if self._expect is Expect.KEY:
            self._expect = Expect.COLON
            if len(self._stack) == 1:
                self._key = self._token
                self.keys.append(self._token)
            return
        self._expect = Expect.COMMA
        if quoted and self._stack == ["{"] and self._key == "name" and self.name is None:
            self.name = self._token

    def _open(self, mark: str) -> None:
        if self._expect is not Expect.VALUE:
            self.rejected = True
        self._stack.append(mark)
        self._expect = Expect.KEY if mark == "{" else Expect.VALUE

    def _close(self, mark: str) -> None:
        opener = "{" if mark == "}" else "["
        ends = (Expect.COMMA, Expect.KEY if mark == "}" else Expect.VALUE)
        if not self._stack or self._stack.pop() != opener or self._expect not in ends:
            self.rejected = True
            return
        self._expect = Expect.COMMA
        self.complete = not self._stack

    def _remember(self, text: str) -> None:
        if len(self._token) < _LONGEST_KEPT:
            self._token += text


_CUT = "the call was cut off before its end; nothing was run, write it again"
_BROKEN = "the call's JSON could not be read; nothing was run, write it again as valid JSON"


@dataclass(frozen=True, slots=True)
class Place:
    """Where a call would begin: at the start of a line, or inside a fenced code block."""

    line_start: bool
    fenced: bool
    names: Set[str]


@dataclass(slots=True)
class Attempt:
    """A possible call as far as it was read: the head before the JSON, then the JSON itself."""

    place: Place
    head: str = ""
    pieces: list[str] = field(default_factory=list)
    scan: JsonScan = field(default_factory=JsonScan)

    @property
    def body(self) -> str:
        """The JSON so far."""
        return "".join(self.pieces)

    def known(self, name: str | None) -> bool:
        """Say whether a name is a tool's."""
        return name in self.place.names


class Format(Protocol):
    """One way of writing a call. `closers` may follow the JSON and belong to the call.

    `closed` formats are calls only with a closer, or the reply's end, behind the JSON. A call whose
    JSON is broken beyond doubt about what it is reaches to the first closer.
    """

    @property
    def triggers(self) -> tuple[str, ...]:
        """What a call begins with, word for word."""
        ...

    @property
    def closers(self) -> tuple[str, ...]:
        """What a call ends with, word for word."""
        ...

    @property
    def closed(self) -> bool:
        """Whether a closer is needed."""
        ...

    def begins(self, attempt: Attempt) -> bool:
        """Say whether the head may stand, or begin to stand, between trigger and JSON."""
        ...

    def plausible(self, attempt: Attempt) -> bool:
        """Say whether what is read of the JSON can still become a call."""
        ...

    def damaged(self, attempt: Attempt) -> bool:
        """Say whether JSON that broke off is a call all the same, and no prose."""
        ...

    def calls(self, attempt: Attempt) -> list[ToolCall]:
        """Return the calls of the JSON, without ids; none when it is not a call after all."""
        ...


class Tagged:
    """`<tool_call>{"name": …, "arguments": …}</tool_call>`, also with `call:name{…}` inside."""

    triggers = ("<tool_call>", "<|tool_call>", "<|tool_call|>")
    closers = ("</tool_call>", "<tool_call|>", "<|/tool_call|>", "<|tool_call_end|>")
    closed = False
    _head = re.compile(r"\s*(?:c(?:a(?:l(?:l(?::\s?(?:[A-Za-z_][\w.-]*\s?)?)?)?)?)?)?")

    def begins(self, attempt: Attempt) -> bool:
        """Allow white space, and the start of a named call."""
        return self._head.fullmatch(attempt.head) is not None

    def plausible(self, attempt: Attempt) -> bool:
        """Inside a code block only the tools that exist are called, not those of an example."""
        name = _named(attempt.head) or attempt.scan.name
        return not attempt.place.fenced or name is None or attempt.known(name)

    def damaged(self, attempt: Attempt) -> bool:
        """Go by a tool's name and the beginning of its arguments."""
        return _begun(attempt)

    def calls(self, attempt: Attempt) -> list[ToolCall]:
        """Return the calls of an object, a list of them, or a named call's arguments."""
        if name := _named(attempt.head):
            return [_call(name, attempt.body, complete=attempt.scan.complete)]
        calls = _objects(attempt)
        unknown = any(not attempt.known(call.name) for call in calls)
        return [] if attempt.place.fenced and unknown else calls


class Named:
    """`call:name{…}`, keys quoted or bare."""

    triggers = ("call:",)
    closers = ("<tool_call|>", "</tool_call>")
    closed = False
    _head = re.compile(r"\s?(?:[A-Za-z_][\w.-]*\s?)?")

    def begins(self, attempt: Attempt) -> bool:
        """Allow a name."""
        return self._head.fullmatch(attempt.head) is not None

    def plausible(self, attempt: Attempt) -> bool:
        """In the middle of a line or a code block the name must be a tool's."""
        name, place = attempt.head.strip(), attempt.place
        return bool(name) and (attempt.known(name) or (place.line_start and not place.fenced))

    def damaged(self, attempt: Attempt) -> bool:
        """Take it as prose: nothing says where such a call would end."""
        del attempt
        return False

    def calls(self, attempt: Attempt) -> list[ToolCall]:
        """Return the one call."""
        name, body, complete = attempt.head.strip(), attempt.body, attempt.scan.complete
        if body[:1] != "{" or not (complete or attempt.known(name)):
            return []
        return [_call(name, body, complete=complete)]


class Fenced:
    """A fenced `json` block that holds an object with `name` and `arguments`, and only those."""

    triggers = ("```",)
    closers = ("```",)
    closed = True
    _languages = ("json", "tool_call")
    _keys = frozenset({"name", "arguments", "parameters", "id", "type"})

    def begins(self, attempt: Attempt) -> bool:
        """Allow the language and white space, at the start of a line."""
        if not attempt.place.line_start or attempt.place.fenced:
            return False
        head = attempt.head.lower()
        return head.rstrip() in self._languages or any(
            language.startswith(head) for language in self._languages
        )

    def plausible(self, attempt: Attempt) -> bool:
        """Reject what has other keys, and a name that is no tool's: it is an example, or data."""
        scan = attempt.scan
        return (
            attempt.head.strip() != ""
            and self._keys.issuperset(scan.keys)
            and (scan.name is None or attempt.known(scan.name))
        )

    def damaged(self, attempt: Attempt) -> bool:
        """Go by a tool's name and the beginning of its arguments."""
        return _begun(attempt)

    def calls(self, attempt: Attempt) -> list[ToolCall]:
        """Return the calls if each is a tool's and has arguments."""
        if attempt.body[:1] == "{" and not {"arguments", "parameters"} & set(attempt.scan.keys):
            return []
        calls = _objects(attempt)
        return calls if all(attempt.known(call.name) for call in calls) else []


FORMATS: tuple[Format, ...] = (Tagged(), Named(), Fenced())


def broken(attempt: Attempt) -> list[ToolCall]:
    """Return a damaged call, with its problem for arguments."""
    return [ToolCall(id="", name=attempt.scan.name or "", problem=_BROKEN)]


def _begun(attempt: Attempt) -> bool:
    scan = attempt.scan
    return attempt.known(scan.name) and bool({"arguments", "parameters"} & set(scan.keys))


def _named(head: str) -> str:
    """Return the name in a head such as "call: name", or nothing."""
    return head.strip().removeprefix("call:").strip()


def _call(name: str, arguments: str, *, complete: bool) -> ToolCall:
    if not complete:
        return ToolCall(id="", name=name, problem=_CUT)
    read = parse_arguments(arguments)
    return ToolCall(id="", name=name, arguments=read.value, text=read.text, problem=read.problem)


def _objects(attempt: Attempt) -> list[ToolCall]:
    """Return the calls that a JSON object, or a list of them, describes."""
    scan = attempt.scan
    if not scan.complete:
        return [ToolCall(id="", name=scan.name, problem=_CUT)] if scan.name else []
    value = _value(attempt.body)
    if value is None:
        return [ToolCall(id="", name=scan.name, problem=_BROKEN)] if scan.name else []
    calls = [_object_call(item) for item in (value if isinstance(value, list) else [value])]
    found = [call for call in calls if call is not None]
    return found if len(found) == len(calls) else []


def _value(body: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return strict_json(body, control=True)
    except (ValueError, RecursionError):
        read = parse_arguments(body)
        return None if read.problem else read.value


def _object_call(value: object) -> ToolCall | None:
    if not isinstance(value, Mapping):
        return None
    inner = value.get("function")
    fields: Mapping[str, Any] = inner if isinstance(inner, Mapping) else value
    name = fields.get("name")
    if not isinstance(name, str) or not name.strip():
        return None
    arguments = fields.get("arguments", fields.get("parameters"))
    if isinstance(arguments, str):
        return _call(name.strip(), arguments, complete=True)
    text = "" if arguments is None else dumps(arguments).decode("utf-8")
    return _call(name.strip(), text, complete=True)


def triggers(formats: Sequence[Format]) -> dict[str, Format]:
    """Return which format each trigger belongs to."""
    return {trigger: form for form in formats for trigger in form.triggers}


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


RESULT = "[Tool Result: "
"""What a result begins with; also where the model must stop, or it would make one up."""

_INTRODUCTION = """\
# Tools
You can act by calling tools. Write a call as one block of exactly this form:

<tool_call>{"name": "tool_name", "arguments": {"parameter": "value"}}</tool_call>

The block holds valid JSON on one line or several. Several blocks may follow one another; end your \
message behind the last one. The results come in the next message, each behind \
[Tool Result: tool_name]; never write a result yourself. When you need no tool, answer without a \
block. The tools, with `?` behind optional parameters:
"""


class TextCalls:
    """Calls in the text, in any of `formats`; results as a user message.

    The results of a batch make one user message, and a user message right behind them joins it:
    many chat templates insist that user and assistant take turns. No request ends between the two.
    """

    def __init__(self, formats: Sequence[Format] = FORMATS) -> None:
        self._formats = formats
        self._described: tuple[Toolset, str] | None = None
        self._names: frozenset[str] = frozenset()
        self._systems: Memo[Message] = Memo()
        self._answers: Memo[Message] = Memo()
        self._results: Memo[Message] = Memo()
        self._alone: dict[str, Message] = {}

    def messages(self, request: Request) -> Sequence[Message]:
        """Return the conversation as text alone."""
        self._names = frozenset(tool.name for tool in request.tools)
        tools = self._description(request.tools)
        return list(self._told(request.messages, tools))

    def fields(self, request: Request) -> Mapping[str, Any]:
        """Return a stop mark: where the model would invent a result, its answer is over."""
        return {"stop": [RESULT]} if len(request.tools) else {}

    def reader(self) -> Reader:
        """Return a reader for the tools of the last request; without any, all is text."""
        return CallReader(self._names, self._formats) if self._names else PlainReader()

    def _description(self, tools: Toolset) -> str:
        if not len(tools):
            return ""
        if self._described is None or self._described[0] is not tools:
            lines = "\n".join(describe(tool) for tool in tools)
            self._described = tools, f"{_INTRODUCTION}\n{lines}"
        return self._described[1]

    def _told(self, messages: Sequence[Message], tools: str) -> Iterator[Message]:
        if tools and not (messages and messages[0].role == "system"):
            yield self._alone.setdefault(tools, Message.system(tools))
        batch: list[Message] = []
        for position, message in enumerate(messages):
            if message.role == "tool" or (batch and message.role == "user"):
                batch.append(message)
                continue
            if batch:
                yield self._merged(batch)
                batch = []
            if message.role == "system" and position == 0 and tools:
                yield self._with_tools(message, tools)
            elif message.role == "assistant" and message.calls:
                yield self._answer(message)
            else:
                yield message
        if batch:
            yield self._merged(batch)

    def _with_tools(self, message: Message, tools: str) -> Message:
        return self._systems.get(
            message, lambda: Message.system(f"{message.text}\n\n{tools}"), tools
        )

    def _merged(self, batch: Sequence[Message]) -> Message:
        batch = tuple(batch)
        key = tuple(map(id, batch))
        return self._results.get(batch[-1], lambda: _results(batch), key)

    def _answer(self, message: Message) -> Message:
        return self._answers.get(message, lambda: self._written(message))

    def _written(self, message: Message) -> Message:
        """Return an answer with its calls in its text: as it was written, if that is known."""
        raw = message.echo.get(RAW)
        if isinstance(raw, str) and raw and self._says(raw, message):
            text = raw
        else:
            blocks = [render(call) for call in message.calls]
            text = "\n".join([message.text, *blocks] if message.text else blocks)
        return Message.assistant(text, reasoning=message.reasoning, interrupted=message.interrupted)

    def _says(self, raw: str, message: Message) -> bool:
        """Say whether `raw` still is the message: compression may have shortened its calls."""
        reader = CallReader(frozenset(call.name for call in message.calls), self._formats)
        reader.feed(raw)
        _, reading = reader.finish()
        read = [(call.name, dict(call.arguments)) for call in reading.calls]
        return read == [(call.name, dict(call.arguments)) for call in message.calls]


def render(call: ToolCall) -> str:
    """Return a call as the tools' description asks for it."""
    name = call.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'<tool_call>{{"name": "{name}", "arguments": {call.arguments_json()}}}</tool_call>'


def describe(tool: Tool) -> str:
    """Return a tool as a signature, what it does, and what its parameters mean."""
    schema = tool.parameters
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    signature = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(value)}"
        for name, value in properties.items()
    )
    lines = [f"- {tool.name}({signature}): {' '.join(tool.description.split())}"]
    for name, value in properties.items():
        if isinstance(value, Mapping) and value.get("description"):
            lines.append(f"    {name}: {' '.join(str(value['description']).split())}")
    return "\n".join(lines)


def _type(schema: object) -> str:
    """Return a parameter's type in a few characters."""
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(schema.get("enum"), list):
        return "|".join(f'"{value}"' for value in schema["enum"])
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return "|".join(map(_type, options))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return "|".join(map(str, kind))
    if kind == "array":
        return f"[{_type(schema.get('items'))}]"
    return str(kind)


def _results(batch: Sequence[Message]) -> Message:
    """Return the user message that carries a batch's results and what the user said behind them."""
    parts: list[Part] = []
    texts: list[str] = []
    for message in batch:
        said = message.text
        if message.role == "tool":
            said = f"{RESULT}{message.name}] {said or '(no output)'}"
        if said:
            texts.append(said)
        if message.images:
            parts.extend((Text("\n\n".join(texts)), *message.images) if texts else message.images)
            texts = []
    if texts:
        parts.append(Text("\n\n".join(texts)))
    return Message(role="user", parts=tuple(parts))
