"""Events of a turn as JSON, one line each, for programs: what `run --json` prints.

Each is an object with `event`, the name of its class in `hermes_nb.core.events`, and that class's
fields; a message is as `Message.to_dict` gives it. Texts are without secrets.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

from hermes_nb.core.events import Event
from hermes_nb.core.messages import Message
from hermes_nb.safety.redact import redact


def line_of(event: Event) -> dict[str, Any]:
    """Return an event as it is printed."""
    return {"event": type(event).__name__, **_plain(event)}


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever an event holds, and JSON
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Message):
        return _plain(value.to_dict())
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: _plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, bool | int | float | None) else str(value)
