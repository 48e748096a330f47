"""What is said in a conversation, as frozen values.

A message knows nothing of ids, timestamps or a provider's wire format: storage adds the first two,
`models/` speaks the third. `to_dict`/`from_dict` give the wire-neutral form that is stored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Self

_JSON = json.JSONEncoder(ensure_ascii=False, default=str)

Role = Literal["system", "user", "assistant", "tool"]


@dataclass(frozen=True, slots=True)
class Text:
    """A run of text."""

    text: str


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
    arguments: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    problem: str = ""

    def arguments_json(self) -> str:
        """Return valid JSON for the arguments: the model's own bytes when they are valid."""
        if self.text and not self.problem:
            return self.text
        return _JSON.encode(self.arguments)


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
    echo: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def system(cls, text: str) -> Self:
        """Return a system message."""
        return cls(role="system", parts=_parts(text))

    @classmethod
    def user(cls, text: str, *, images: Iterable[Image] = ()) -> Self:
        """Return a user message, its images after its text."""
        return cls(role="user", parts=(*_parts(text), *images))

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
            parts=_parts(text),
            calls=tuple(calls),
            reasoning=reasoning,
            interrupted=interrupted,
        )

    @classmethod
    def tool(
        cls, call: ToolCall, text: str, *, images: Iterable[Image] = (), failed: bool = False
    ) -> Self:
        """Return the result of `call`."""
        parts = (*_parts(text), *images)
        return cls(role="tool", parts=parts, call_id=call.id, name=call.name, failed=failed)

    @property
    def text(self) -> str:
        """The text parts, joined by newlines."""
        return "\n".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def images(self) -> tuple[Image, ...]:
        """The image parts."""
        return tuple(part for part in self.parts if isinstance(part, Image))

    def to_dict(self) -> dict[str, Any]:
        """Return the message as JSON-ready values; what is empty is left out."""
        out: dict[str, Any] = {"role": self.role}
        if self.parts:
            out["parts"] = [_part_to_dict(part) for part in self.parts]
        if self.calls:
            out["calls"] = [_call_to_dict(call) for call in self.calls]
        for key in ("call_id", "name", "failed", "interrupted", "reasoning", "echo"):
            if value := getattr(self, key):
                out[key] = dict(value) if key == "echo" else value
        return out

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Return the message that `to_dict` made; raise KeyError or TypeError on anything else."""
        return cls(
            role=data["role"],
            parts=tuple(_part_from_dict(part) for part in data.get("parts", ())),
            calls=tuple(ToolCall(**call) for call in data.get("calls", ())),
            call_id=data.get("call_id", ""),
            name=data.get("name", ""),
            failed=data.get("failed", False),
            interrupted=data.get("interrupted", False),
            reasoning=data.get("reasoning", ""),
            echo=data.get("echo", {}),
        )


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


def mend(messages: Sequence[Message], *, note: str) -> list[Message]:
    """Return the conversation made valid for the next request, as a new list.

    A killed process can leave a call without its result, and an outside hand anything at all. A
    call without a result gets one that says `note`; a result without a call, and a second result
    for one call, go; results stand in call order right behind their calls; a conversation that
    ends with the user or a tool gets an empty, interrupted assistant message.
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
        settle()
        out.append(message)
        pending = message.calls
    settle()
    if out and out[-1].role in ("user", "tool"):
        out.append(Message.assistant(interrupted=True))
    return out


def _parts(text: str) -> tuple[Part, ...]:
    return (Text(text),) if text else ()


def _part_to_dict(part: Part) -> dict[str, Any]:
    match part:
        case Text():
            return {"text": part.text}
        case Image():
            return {"image": part.data, "mime": part.mime}


def _part_from_dict(data: Mapping[str, Any]) -> Part:
    if "image" in data:
        return Image(data["image"], data.get("mime", "image/png"))
    return Text(data["text"])


def _call_to_dict(call: ToolCall) -> dict[str, Any]:
    out: dict[str, Any] = {"id": call.id, "name": call.name, "arguments": dict(call.arguments)}
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
