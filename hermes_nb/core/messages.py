"""What is said in a conversation, as frozen values.

A message knows nothing of ids, timestamps or a provider's wire format: storage adds the first two,
`models/` speaks the third. `to_dict`/`from_dict` give the wire-neutral form that is stored.
"""

from __future__ import annotations

import json
import re
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, Self, TypeAlias, TypeVar

from hermes_nb.core.thinking import split_thinking

_OWN = re.compile(r"_r\d{1,4}\Z")
_HALF = re.compile(
    r"\\u[dD][89abAB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB]..)\\u[dD][c-fC-F]", re.DOTALL
)
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
REPLACEMENT = "\ufffd"
_JSON = json.JSONEncoder(ensure_ascii=False, default=str)

Json: TypeAlias = Any
"""A value as it was read from JSON, or is to be written as JSON; whoever uses one checks it."""
Role = Literal["system", "user", "assistant", "tool"]
Origin = Literal["user", "ours", "workspace", "outside"]
"""Where a text comes from: the user, this package and its model, files and programs of the working
directory, or anybody else (network, other programs' services, files elsewhere)."""
_M = TypeVar("_M", bound="Message")
Made = TypeVar("Made")
_USUAL: Mapping[str, Origin] = {"user": "user", "tool": "workspace"}
"""Of a message's role; the others are ours. What is usual is not stored."""


@dataclass(frozen=True, slots=True)
class Text:
    """A run of text, and where it comes from; NUL, which many servers refuse, becomes U+FFFD."""

    text: str
    origin: Origin = "ours"

    def __post_init__(self) -> None:
        if "\0" in self.text:
            object.__setattr__(self, "text", self.text.replace("\0", REPLACEMENT))


@dataclass(frozen=True, slots=True)
class Image:
    """A picture: `data` is base64 without line breaks, `mime` such as `image/png`."""

    data: str
    mime: str = "image/png"


Part = Text | Image


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call the model asked for.

    `text` is the arguments' JSON as the model wrote it, sent back byte for byte so that a cached
    prefix stays one. `problem` says why the arguments could not be read; such a call is answered
    with that text and never executed.
    """

    id: str
    name: str
    arguments: Mapping[str, Json] = field(default_factory=dict)
    text: str = ""
    problem: str = ""

    def arguments_json(self) -> str:
        """Return valid JSON for the arguments: the model's own bytes when they are valid.

        Half a character, written as an escape, is JSON by the letter; many servers refuse it, and
        NUL as well.
        """
        whole = self.text and not self.problem and not _HALF.search(self.text)
        text = self.text if whole else _JSON.encode(self.arguments)
        return _NUL.sub(rf"\1{REPLACEMENT}", text) if "\\u0000" in text else text


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Message:
    """One message of the conversation.

    An assistant message may carry `calls`, `reasoning` and `echo` (a provider's own fields that it
    wants back with the message, by wire name). A tool message answers `call_id` and repeats the
    tool's `name`. `interrupted` marks an assistant message that a stop or a failure cut short.
    """

    role: Role
    parts: tuple[Part, ...] = ()
    calls: tuple[ToolCall, ...] = ()
    call_id: str = ""
    name: str = ""
    failed: bool = False
    interrupted: bool = False
    reasoning: str = ""
    echo: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def system(cls, text: str) -> Self:
        """Return a system message."""
        return cls(role="system", parts=_parts(text, "ours"))

    @classmethod
    def user(cls, text: str, *, images: Iterable[Image] = (), origin: Origin = "user") -> Self:
        """Return a user message, its images after its text."""
        return cls(role="user", parts=(*_parts(text, origin), *images))

    @classmethod
    def assistant(
        cls,
        text: str = "",
        *,
        calls: Iterable[ToolCall] = (),
        reasoning: str = "",
        interrupted: bool = False,
    ) -> Self:
        """Return an assistant message."""
        return cls(
            role="assistant",
            parts=_parts(text, "ours"),
            calls=tuple(calls),
            reasoning=reasoning,
            interrupted=interrupted,
        )

    @classmethod
    def tool(
        cls,
        call: ToolCall,
        text: str,
        *,
        images: Iterable[Image] = (),
        failed: bool = False,
        origin: Origin = "workspace",
    ) -> Self:
        """Return the result of `call`."""
        parts = (*_parts(text, origin), *images)
        return cls(role="tool", parts=parts, call_id=call.id, name=call.name, failed=failed)

    @property
    def text(self) -> str:
        """The text parts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def origin(self) -> Origin:
        """Whose text it is: that of the part which is trusted least."""
        return least_trusted(part.origin for part in self.parts if isinstance(part, Text))

    @property
    def images(self) -> tuple[Image, ...]:
        """The image parts."""
        return tuple(part for part in self.parts if isinstance(part, Image))

    def to_dict(self) -> dict[str, Json]:
        """Return the message as JSON-ready values; what is empty is left out."""
        out: dict[str, Json] = {"role": self.role}
        if self.parts:
            usual = _USUAL.get(self.role, "ours")
            out["parts"] = [_part_to_dict(part, usual) for part in self.parts]
        if self.calls:
            out["calls"] = [_call_to_dict(call) for call in self.calls]
        for key in ("call_id", "name", "failed", "interrupted", "reasoning", "echo"):
            if value := getattr(self, key):
                out[key] = dict(value) if key == "echo" else value
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Json]) -> Self:
        """Return the message that `to_dict` made; raise KeyError or TypeError on anything else.

        What was kept with its reasoning in the text is read without.
        """
        message = cls(
            role=data["role"],
            parts=tuple(
                _part_from_dict(part, _USUAL.get(data["role"], "ours"))
                for part in data.get("parts", ())
            ),
            calls=tuple(ToolCall(**call) for call in data.get("calls", ())),
            call_id=data.get("call_id", ""),
            name=data.get("name", ""),
            failed=data.get("failed", False),
            interrupted=data.get("interrupted", False),
            reasoning=data.get("reasoning", ""),
            echo=data.get("echo", {}),
        )
        return without_thinking(message)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Tokens of one or more requests, as the provider counted them.

    `input` counts every prompt token, cached ones included; `cached` were read from the provider's
    cache and `written` stored in it. `cost` is in US dollars, None when the price is unknown.
    """

    input: int = 0
    output: int = 0
    cached: int = 0
    written: int = 0
    reasoning: int = 0
    requests: int = 0
    cost: float | None = None

    def __add__(self, other: Usage) -> Usage:
        """Return the sum; a cost is known only if both are, or one side is empty."""
        return Usage(
            input=self.input + other.input,
            output=self.output + other.output,
            cached=self.cached + other.cached,
            written=self.written + other.written,
            reasoning=self.reasoning + other.reasoning,
            requests=self.requests + other.requests,
            cost=_sum_cost(self, other),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What one request gave: the assistant message, what it used, and why the model stopped.

    `finish` is `stop`, `tool_calls`, `length` (cut off by the output limit) or `filtered`.
    """

    message: Message
    usage: Usage = Usage(requests=1)
    finish: str = "stop"
    model: str = ""


def least_trusted(origins: Iterable[Origin]) -> Origin:
    """Return the origin that is trusted least; "ours" where there is none."""
    found = set(origins)
    order: tuple[Origin, ...] = ("outside", "workspace", "ours", "user")
    return next((origin for origin in order if origin in found), "ours")


def mend(messages: Sequence[Message], *, note: str) -> list[Message]:
    """Return the conversation made valid for the next request, as a new list.

    A killed process can leave a call without its result, and an outside hand anything at all. A
    call without a result gets one that says `note`; a result without a call, and a second result
    for one call, go; results stand in call order right behind their calls; neighbours of one role
    are merged; a conversation that ends with the user or a tool gets an empty, interrupted
    assistant message.
    """
    results: dict[str, Message] = {}
    out: list[Message] = []
    pending: tuple[ToolCall, ...] = ()

    def settle() -> None:
        out.extend(results.get(call.id, Message.tool(call, note, failed=True)) for call in pending)
        results.clear()

    for message in messages:
        if message.role == "tool":
            if any(call.id == message.call_id for call in pending):
                results.setdefault(message.call_id, message)
            continue
        if not results and out and _belong_together(out[-1], message):
            out[-1] = _merged(out[-1], message)
        else:
            settle()
            out.append(message)
        pending = out[-1].calls
    settle()
    if out and out[-1].role in ("user", "tool"):
        out.append(Message.assistant(interrupted=True))
    return _told_apart(out)


def without_thinking(message: _M) -> _M:
    """Return an assistant's message whose text has no reasoning: the same object where none had."""
    if message.role != "assistant" or "think>" not in message.text:
        return message
    reasoning = [message.reasoning]
    parts: list[Part] = []
    for part in message.parts:
        if not isinstance(part, Text):
            parts.append(part)
            continue
        said, thought = split_thinking(part.text)
        reasoning.append(thought)
        parts += [replace(part, text=said)] if said else []
    echo = {
        key: split_thinking(value)[0] if isinstance(value, str) else value
        for key, value in message.echo.items()
    }
    told = "\n\n".join(filter(None, reasoning))
    return replace(message, parts=tuple(parts), reasoning=told, echo=echo)


def with_own_ids(message: Message, taken: Collection[str]) -> Message:
    """Return a message none of whose calls has an id of `taken`.

    Some servers count their calls anew in each reply, and others refuse what they make of it.
    """
    ids = {call.id for call in message.calls}
    if ids.isdisjoint(taken):
        return message
    calls = []
    for call in message.calls:
        own, number = call.id, 2
        while own in taken or (own != call.id and own in ids):
            own, number = f"{call.id}_r{number}", number + 1
        calls.append(replace(call, id=own))
    return replace(message, calls=tuple(calls))


def given_id(call_id: str) -> str:
    """Return the id that a call's server gave it."""
    return _OWN.sub("", call_id)


def _told_apart(messages: Sequence[Message]) -> list[Message]:
    """Return a valid conversation in which no two calls have one id."""
    taken: set[str] = set()
    names: dict[str, str] = {}
    out = []
    for message in messages:
        made = with_own_ids(message, taken)
        if message.calls:
            names = {old.id: new.id for old, new in zip(message.calls, made.calls, strict=True)}
            taken.update(names.values())
        elif names.get(message.call_id, message.call_id) != message.call_id:
            made = replace(message, call_id=names[message.call_id])
        out.append(made)
    return out


def _belong_together(first: Message, second: Message) -> bool:
    ids = {call.id for call in first.calls}
    return first.role == second.role != "system" and ids.isdisjoint(c.id for c in second.calls)


def _merged(first: Message, second: Message) -> Message:
    """Return what one side has said in two messages as one."""
    return replace(
        second,
        parts=(*first.parts, *second.parts),
        calls=(*first.calls, *second.calls),
        reasoning=first.reasoning + second.reasoning,
        echo={**first.echo, **second.echo},
    )


def _parts(text: str, origin: Origin) -> tuple[Part, ...]:
    return (Text(text, origin),) if text else ()


def _part_to_dict(part: Part, usual: Origin) -> dict[str, Json]:
    match part:
        case Text(text, origin):
            return {"text": text} if origin == usual else {"text": text, "origin": origin}
        case Image():
            return {"image": part.data, "mime": part.mime}


def _part_from_dict(data: Mapping[str, Json], usual: Origin) -> Part:
    if "image" in data:
        return Image(data["image"], data.get("mime", "image/png"))
    return Text(data["text"], data.get("origin", usual))


def _call_to_dict(call: ToolCall) -> dict[str, Json]:
    out: dict[str, Json] = {"id": call.id, "name": call.name, "arguments": dict(call.arguments)}
    if call.text:
        out["text"] = call.text
    if call.problem:
        out["problem"] = call.problem
    return out


def _sum_cost(a: Usage, b: Usage) -> float | None:
    if not a.requests or not b.requests:
        return a.cost if a.requests else b.cost
    if a.cost is None or b.cost is None:
        return None
    return a.cost + b.cost


class Memo(Generic[Made]):
    """Maps a message, by identity, and a variant to a value that is made once."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Hashable], tuple[weakref.ref[Message], Made]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, message: Message, make: Callable[[], Made], variant: Hashable = None) -> Made:
        """Return the value for `message`, made by `make` the first time."""
        key = id(message), variant
        kept = self._kept.get(key)
        if kept is not None and kept[0]() is message:
            return kept[1]
        value = make()
        # An id is used again once its object is gone; by then the callback has dropped the entry.
        self._kept[key] = weakref.ref(message, lambda _: self._kept.pop(key, None)), value
        return value
