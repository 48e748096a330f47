"""A conversation's messages, as frozen dataclasses.

Messages have no ids, timestamps or provider wire format: the store adds ids and timestamps, and
`models/` converts to the wire format. `to_dict` and `from_dict` convert to the stored form.
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
"""A JSON value. It is typed `Any`, so code that uses one checks its type at runtime."""
Role = Literal["system", "user", "assistant", "tool"]
"""The author of a message."""
Origin = Literal["user", "ours", "workspace", "outside"]
"""Where a text comes from: `user`; `ours`, this package and its model; `workspace`, files and
programs in the working directory; `outside`, everything else (network, other services, files
elsewhere)."""
_M = TypeVar("_M", bound="Message")
Made = TypeVar("Made")
_USUAL: Mapping[str, Origin] = {"user": "user", "tool": "workspace"}
"""Default origin of text, by its message's role ("ours" for other roles). Defaults aren't
stored."""


@dataclass(frozen=True, slots=True)
class Text:
    """A text part of a message."""

    text: str
    """The text. NUL becomes U+FFFD because many servers reject it."""
    origin: Origin = "ours"
    """The origin of the text."""

    def __post_init__(self) -> None:
        if "\0" in self.text:
            object.__setattr__(self, "text", self.text.replace("\0", REPLACEMENT))


@dataclass(frozen=True, slots=True)
class Image:
    """An image part of a message."""

    data: str
    """The image in base64, without line breaks."""
    mime: str = "image/png"
    """Its MIME type."""


Part = Text | Image


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One tool call that the model requested."""

    id: str
    """Id that the server gave the call, changed if the conversation already has it."""
    name: str
    """Name of the tool."""
    arguments: Mapping[str, Json] = field(default_factory=dict)
    """The parsed arguments, by name."""
    text: str = ""
    """The arguments as the model wrote them. They are sent back unchanged, so that the provider's
    prompt cache still matches. "" if unknown."""
    problem: str = ""
    """Why the arguments could not be parsed, or "". Such a call is not run; this text is its
    result."""

    def arguments_json(self) -> str:
        """Return the arguments as JSON: the model's own text if that is valid.

        Escaped lone surrogates and NUL are valid JSON, but many servers reject them. They are
        replaced.
        """
        whole = self.text and not self.problem and not _HALF.search(self.text)
        text = self.text if whole else _JSON.encode(self.arguments)
        return _NUL.sub(rf"\1{REPLACEMENT}", text) if "\\u0000" in text else text


@dataclass(frozen=True, slots=True, kw_only=True, weakref_slot=True)
class Message:
    """One message of the conversation."""

    role: Role
    """Who speaks."""
    parts: tuple[Part, ...] = ()
    """Text and images, in order."""
    calls: tuple[ToolCall, ...] = ()
    """An assistant message's tool calls."""
    call_id: str = ""
    """In a tool message: the id of the call that it answers."""
    name: str = ""
    """In a tool message: the name of the tool."""
    failed: bool = False
    """In a tool message: whether the call failed or was not run."""
    interrupted: bool = False
    """In an assistant message: whether it was cut off by an interrupt or a failure."""
    reasoning: str = ""
    """The model's reasoning, or ""."""
    echo: Mapping[str, Json] = field(default_factory=dict)
    """Provider-specific fields, by wire name, that the provider expects back with the message."""

    @classmethod
    def system(cls, text: str) -> Self:
        """Create a system message."""
        return cls(role="system", parts=_parts(text, "ours"))

    @classmethod
    def user(cls, text: str, *, images: Iterable[Image] = (), origin: Origin = "user") -> Self:
        """Create a user message; images follow the text."""
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
        """Create an assistant message."""
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
        """Create the tool message with the result of `call`."""
        parts = (*_parts(text, origin), *images)
        return cls(role="tool", parts=parts, call_id=call.id, name=call.name, failed=failed)

    @property
    def text(self) -> str:
        """The text parts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def origin(self) -> Origin:
        """The least trusted origin among the text parts."""
        return least_trusted(part.origin for part in self.parts if isinstance(part, Text))

    @property
    def images(self) -> tuple[Image, ...]:
        """The image parts."""
        return tuple(part for part in self.parts if isinstance(part, Image))

    def to_dict(self) -> dict[str, Json]:
        """Return the message as JSON-ready values; empty fields are left out."""
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
        """Create a message from the result of `to_dict`.

        Reasoning that was stored inside the text is moved to `reasoning`.

        Raises:
            KeyError: The role or a required field is missing.
            TypeError: A value has an unexpected type.
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
    """Token counts and cost of one or more requests, as reported by the provider."""

    input: int = 0
    """Prompt tokens, cached ones included."""
    output: int = 0
    """Completion tokens, including reasoning."""
    cached: int = 0
    """Prompt tokens read from the provider's cache."""
    written: int = 0
    """Prompt tokens written to the provider's cache."""
    reasoning: int = 0
    """Completion tokens spent on reasoning."""
    requests: int = 0
    """Number of requests."""
    cost: float | None = None
    """Price in US dollars; None if unknown."""

    def __add__(self, other: Usage) -> Usage:
        """Return the sum. The cost is known if both costs are, or if one side made no requests."""
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
    """The result of one model request."""

    message: Message
    """The assistant message."""
    usage: Usage = Usage(requests=1)
    """Tokens and cost of the request."""
    finish: str = "stop"
    """Why the model stopped: `stop`, `tool_calls`, `length` (output limit), `filtered`, or
    `unverified` if the model could not check its answer."""
    model: str = ""
    """Name of the model that answered; "" if it is the requested one."""


def least_trusted(origins: Iterable[Origin]) -> Origin:
    """Return the least trusted of several origins; "ours" if there are none."""
    found = set(origins)
    order: tuple[Origin, ...] = ("outside", "workspace", "ours", "user")
    return next((origin for origin in order if origin in found), "ours")


def mend(messages: Sequence[Message], *, note: str) -> list[Message]:
    """Return a repaired copy of the conversation that is valid for the next request.

    A killed process can leave a call without a result, and stored messages can be edited by hand.

    - A call without a result is given a failed one with the text `note`.
    - Results without a call and second results for a call are dropped. Results follow their calls.
    - Adjacent user or assistant messages are merged, and repeated call ids are changed.
    - If the last message is a user or tool message, an empty, interrupted assistant message is
      added.
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
    return _with_unique_ids(out)


def without_thinking(message: _M) -> _M:
    """Return an assistant message with the reasoning moved out of its text.

    Returns the same object if its text contains no reasoning.
    """
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
    text = "\n\n".join(filter(None, reasoning))
    return replace(message, parts=tuple(parts), reasoning=text, echo=echo)


def with_own_ids(message: Message, taken: Collection[str]) -> Message:
    """Return the message with new ids for its calls whose id is in `taken`.

    Some servers restart their call ids with each reply, and others reject repeated ids.
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
    """Return the id that the server originally gave a call."""
    return _OWN.sub("", call_id)


def _with_unique_ids(messages: Sequence[Message]) -> list[Message]:
    """Return a valid conversation with a unique id for every call."""
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
    """Return two messages with the same role, merged into one."""
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
    """A cache with one value per message (by identity) and variant."""

    def __init__(self) -> None:
        self._kept: dict[tuple[int, Hashable], tuple[weakref.ref[Message], Made]] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, message: Message, make: Callable[[], Made], variant: Hashable = None) -> Made:
        """Return the cached value for `message`, calling `make` the first time."""
        key = id(message), variant
        kept = self._kept.get(key)
        if kept is not None and kept[0]() is message:
            return kept[1]
        value = make()
        # Python reuses ids of freed objects; the callback drops the entry before that.
        self._kept[key] = weakref.ref(message, lambda _: self._kept.pop(key, None)), value
        return value
