"""How a message lies in the store: JSON that any message fits into and that comes back as it was.

NaN and the infinities are written as Python's json writes them, NUL is escaped, and a text that
UTF-8 cannot hold (a lone surrogate) makes its whole message ASCII with escapes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hermes_nb.core.messages import Message


def encode(message: Message) -> str:
    """Return the text to store; it never raises and is always valid UTF-8.

    Values that JSON does not know become their `str`. What cannot be written even so (a structure
    that holds itself or is nested too deeply for the parser) is left out: the message's text and
    the arguments as the model wrote them remain.
    """
    try:
        return _dumps(message.to_dict())
    except (ValueError, TypeError, RecursionError):
        calls = tuple(replace(call, arguments={}) for call in message.calls)
        return _dumps(replace(message, calls=calls, echo={}).to_dict())


def decode(body: str) -> Message | None:
    """Return the message that `encode` wrote, None for anything else."""
    try:
        return Message.from_dict(json.loads(body))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def storable(text: str) -> str:
    """Return text that UTF-8 can hold: a lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").decode("utf-8")


def _dumps(value: dict[str, Any]) -> str:
    # Not ASCII throughout: that would double what Chinese or Russian takes.
    text = _PLAIN.encode(value)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return _ASCII.encode(value)
    return text


_PLAIN, _ASCII = (
    json.JSONEncoder(ensure_ascii=ascii_, default=str, skipkeys=True, separators=(",", ":"))
    for ascii_ in (False, True)
)
