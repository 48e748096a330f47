"""What a call and its result were, in a few words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.text import one_line

_TELLING = ("command", "code", "query", "pattern", "url", "path", "file_path", "name", "goal")
"""Arguments that say best what a call is about, the most telling first."""
PATHS = ("path", "file_path", "filename", "file", "workdir", "directory", "notebook")
"""Arguments that are paths."""
_EXIT = re.compile(
    r"(?i)\b(?:exit(?:ed)?|return(?:ed)?)(?:[ _-](?:code|status|with))*\W{1,3}(-?\d+)"
)
_LOOK = 300
"""Characters at each end of a result in which its outcome is looked for."""
_FAILURE = re.compile(
    r"(?:\b\w*(?:Error|Exception|Failure)\b|(?i:\b(?:error|fatal|failed|denied)\b)).*"
)
_SIGNS = ("error", "exception", "fail", "fatal", "denied")


def call_outline(call: ToolCall, limit: int = 80) -> str:
    """Return a call as `name gist`."""
    gist = _telling(call.arguments)
    if not gist:
        return call.name
    return f"{call.name} `{one_line(gist, limit)}`"


def outcome(result: Message) -> str:
    """Return how a call ended and how much it said, e.g. `exit 1, 212 lines`."""
    text = result.text
    facts = []
    if ended := ending(result):
        facts.append(ended)
    lines = text.count("\n") + 1
    facts.append(f"{lines:,} lines" if lines > 1 else f"{len(text):,} characters")
    if result.images:
        facts.append(f"{len(result.images)} image{'s' if len(result.images) > 1 else ''}")
    return ", ".join(facts)


def ending(result: Message) -> str:
    """Return a call's exit status or failure, "" where it has nothing of the kind."""
    text = result.text
    end = text[-_LOOK:]
    for part in (end, text[:_LOOK]):
        folded = part.lower()
        if ("exit" in folded or "return" in folded) and (found := _EXIT.search(part)):
            return f"exit {found[1]}"
    if result.failed:
        return f"failed: {one_line(text[:_LOOK], 80)}"
    folded = end.lower()
    if any(sign in folded for sign in _SIGNS) and (found := _FAILURE.search(end)):
        return one_line(found[0], 80)
    return "timed out" if "timed out" in folded else ""


def is_bad(result: Message, ended: str) -> bool:
    """Say whether a call that `ended` so did not do what it should."""
    return result.failed or (bool(ended) and ended != "exit 0")


def paths_of(call: ToolCall) -> Iterator[str]:
    """Yield the paths that a call names in its arguments."""
    for key in PATHS:
        value = call.arguments.get(key)
        if isinstance(value, str) and value.strip():
            yield one_line(value, 160)


def _telling(arguments: Mapping[str, Any]) -> str:
    for key in _TELLING:
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return value
    values = (value for value in arguments.values() if isinstance(value, str) and value.strip())
    return next(values, "")
