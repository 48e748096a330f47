"""A conversation reduced to the text that the user and the agent wrote.

Background reviews and memory flushes see only this text, so that a prompt injection in a file, an
output or a web page cannot reach memory or skills. It also needs far fewer tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

from hermes_nb.core.messages import Image, Message, Part, Text, ToolCall
from hermes_nb.core.text import one_line

ARGUMENT = 100
"""Maximum length, in characters, of a call's argument to keep: paths and commands, but not file
contents."""
_GIST = 60


def without_other_texts(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation, with a short note replacing any text written by others.

    Calls keep their short arguments. The note for a result includes whether the call failed.
    Images, reasoning and provider-specific data are left out.
    """
    calls = {call.id: call for message in messages for call in message.calls}
    return [
        replace(
            message,
            parts=tuple(_part(part, message, calls.get(message.call_id)) for part in message.parts),
            calls=tuple(map(_call, message.calls)),
            reasoning="",
            echo={},
        )
        for message in messages
    ]


def _part(part: Part, message: Message, call: ToolCall | None) -> Part:
    if isinstance(part, Image):
        return Text("[a picture]")
    if part.origin in ("user", "ours"):
        return part
    what = {"tool": message.name, "user": "an attachment", "assistant": "a summary"}
    gist = _gist(call) if call else ""
    failed = "failed: " if message.failed else ""
    name = " ".join(filter(None, (what.get(message.role, message.role), gist)))
    return Text(f"[{failed}text of {name}, {len(part.text):,} characters]")


def _gist(call: ToolCall) -> str:
    given = (_short(value) for value in call.arguments.values() if isinstance(value, str))
    return one_line(" ".join(map(str, given)), _GIST)


def _call(call: ToolCall) -> ToolCall:
    return replace(call, arguments={k: _short(v) for k, v in call.arguments.items()}, text="")


def _short(value: object) -> object:
    if isinstance(value, bool | int | float | None):
        return value
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return value if len(text) <= ARGUMENT else f"[{len(text):,} characters]"
