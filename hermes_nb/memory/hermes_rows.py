"""A row of Hermes Agent's table `messages` as one of our messages."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

from hermes_nb.core.messages import Message, Role, Text, ToolCall, without_thinking

ROLES: tuple[Role, ...] = ("user", "assistant", "tool")
"""The system prompt is left out: it is not what anybody said."""
_PARTS_MARK = "\0json:"
"""How content begins that is a list of parts (text, image) instead of text."""


def text_of(row: sqlite3.Row) -> str:
    """Return what a row says: its text, else the calls that it makes."""
    message = message_of(row)
    return message.text or " ".join(f"{c.name} {c.arguments_json()}" for c in message.calls)


def message_of(row: sqlite3.Row) -> Message:
    """Return the message in a row; what cannot be read of it is left out."""
    text = _text(row["content"])
    message = Message(
        role=row["role"],
        parts=(Text(text),) if text else (),
        calls=_calls(row["tool_calls"]),
        call_id=str(row["tool_call_id"] or ""),
        name=str(row["tool_name"] or ""),
    )
    return without_thinking(message)


def _text(content: object) -> str:
    if isinstance(content, bytes):
        content = content.decode("utf-8", "replace")
    if not isinstance(content, str):
        return ""
    if not content.startswith((_PARTS_MARK, '[{"type"')):
        return content
    parts = _json(content.removeprefix(_PARTS_MARK))
    if not isinstance(parts, list):
        return content
    texts = [part.get("text") for part in parts if isinstance(part, Mapping)]
    return "\n".join(text for text in texts if isinstance(text, str))


def _calls(stored: object) -> tuple[ToolCall, ...]:
    calls = _json(stored) if isinstance(stored, str) and stored else None
    if not isinstance(calls, list):
        return ()
    return tuple(_call(call) for call in calls if isinstance(call, Mapping))


def _call(call: Mapping[str, Any]) -> ToolCall:
    function = call.get("function")
    named = function if isinstance(function, Mapping) else call
    arguments = named.get("arguments")
    if isinstance(arguments, str):
        arguments = _json(arguments)
    return ToolCall(
        id=str(call.get("id") or ""),
        name=str(named.get("name") or ""),
        arguments=arguments if isinstance(arguments, Mapping) else {},
    )


def _json(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
