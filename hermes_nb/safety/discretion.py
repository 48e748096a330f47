"""Takes secrets out of messages before they are stored."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hermes_nb.core.messages import Message, Part, Text, ToolCall
from hermes_nb.safety.redact import redact

OPAQUE = frozenset({"signature", "data", "encrypted_content", "id"})
"""Fields of a provider's own that it checks byte by byte: they look random, and say nothing."""


def without_secrets(message: Message) -> Message:
    """Return the message as it may be stored: the same object where it holds no secret.

    Text, reasoning, arguments and a provider's readable fields are looked at, pictures are not.
    """
    parts = tuple(_part(part) for part in message.parts)
    calls = tuple(_call(call) for call in message.calls)
    reasoning = redact(message.reasoning)
    echo: Mapping[str, Any] = _strings(message.echo)
    stored = replace(message, parts=parts, calls=calls, reasoning=reasoning, echo=echo)
    return message if stored == message else stored


def _part(part: Part) -> Part:
    return Text(redact(part.text)) if isinstance(part, Text) else part


def _call(call: ToolCall) -> ToolCall:
    """Return the call with its arguments redacted, together with the names they stand under."""
    written = redact(call.text)
    arguments = _arguments(call.arguments)
    if written == call.text and arguments == call.arguments:
        return call
    problem = redact(call.problem)
    return replace(call, text=written if problem else "", arguments=arguments, problem=problem)


def _arguments(arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    told = json.dumps(arguments, ensure_ascii=False, default=str)
    hidden = redact(told)
    if hidden == told:
        return arguments
    try:
        found = json.loads(hidden)
    except ValueError:  # a secret that spans an escape or a quote
        found = None
    return found if isinstance(found, dict) else _strings(arguments)


def _strings(value: Any) -> Any:  # noqa: ANN401 - JSON
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Mapping):
        return {key: each if key in OPAQUE else _strings(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_strings(each) for each in value]
    return value
