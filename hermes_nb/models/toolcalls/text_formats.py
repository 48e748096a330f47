"""The ways in which models write a tool call as text.

A format is a class with three answers: what may stand between its trigger and the JSON, what may
end it, and which calls the JSON means. `FORMATS` lists them; a new one is one more entry. The
reader knows none of them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, Protocol

from hermes_nb.core.messages import ToolCall
from hermes_nb.core.text import dumps
from hermes_nb.models.toolcalls.arguments import parse_arguments, strict_json
from hermes_nb.models.toolcalls.json_scan import JsonScan

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
