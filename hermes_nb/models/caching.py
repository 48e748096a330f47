"""Mark prompt-cache breakpoints for providers that need them (`system_and_3`), at most four.

Claude's cache stores prefixes that end at a breakpoint. One breakpoint is on the system prompt,
which never changes. The others are on the last three messages that can carry one, so the next
request reuses what this one cached, even if a step or two cannot be marked.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Literal

from hermes_nb.core.json_values import dumps
from hermes_nb.core.messages import Json

TTL = Literal["5m", "1h"]
MOST = 4
"""Maximum breakpoints in one request to Anthropic, as of 2026-11."""
_KEY = "cache_control"
_SYSTEM = ("system", "developer")


def with_breakpoints(
    wire_messages: Sequence[Mapping[str, Json]], *, ttl: TTL = "5m", native: bool = False
) -> list[dict[str, Json]]:
    """Return a deep copy of the messages with breakpoints on the system prompt and the last three.

    The mark is set on a message's last content part; content that is a string becomes one text
    part. Messages that cannot carry a mark are skipped: those whose content or last part is empty
    (Anthropic rejects a mark there), and tool results unless `native`.

    Anthropic's own API accepts marks on tool results. The mark is set on the message, and that
    API's adapter moves it to the result. OpenRouter documents marks for text parts only. Requests
    with a mark on a tool message itself have gone unanswered there.

    Existing marks are removed first, so the function is idempotent.

    Args:
        wire_messages: Messages in the chat-completions format.
        ttl: Cache lifetime, `5m` (the providers' default, not sent) or `1h`.
        native: Whether tool results may be marked.

    Raises:
        ValueError: `ttl` is neither `5m` nor `1h`.
    """
    mark(ttl)
    out = [_unmarked(message) for message in wire_messages]
    for position in breakpoints(wire_messages, native=native):
        out[position] = marked(out[position], ttl=ttl)
    return out


def breakpoints(
    wire_messages: Sequence[Mapping[str, Json] | bytes], *, native: bool = False
) -> list[int]:
    """Return the positions to mark, in ascending order; tool results only if `native`.

    Checks the first message, then goes backwards from the last until three are found, so that no
    more serialised messages are parsed than needed.
    """
    found: list[int] = []
    for position in range(len(wire_messages) - 1, -1, -1):
        if len(found) == MOST - 1:
            break
        message = _read(wire_messages[position])
        role = message.get("role")
        if role not in _SYSTEM and (native or role != "tool") and _carries(message):
            found.append(position)
    first = _read(wire_messages[0]) if wire_messages else {}
    if first.get("role") in _SYSTEM and _carries(first):
        found.append(0)
    return sorted(found)


def marked(message: Mapping[str, Json], *, ttl: TTL = "5m", beside: bool = True) -> dict[str, Json]:
    """Return a marked copy of a message that can carry a mark.

    For a tool result, `beside` puts the mark on the message. Otherwise it is set on the last
    content part, as for all other messages.
    """
    out = _unmarked(message)
    if out.get("role") == "tool" and beside:
        return {**out, _KEY: mark(ttl)}
    content = out["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return {**out, "content": [*parts[:-1], {**parts[-1], _KEY: mark(ttl)}]}


def mark_items(items: Sequence[bytes], *, ttl: TTL = "5m", results: bool = False) -> list[bytes]:
    """Return serialised messages with marks; only marked messages are serialised again.

    Set `results` if tool results may be marked. In a loop of tool calls the assistant messages have
    no text, so only the results can carry a mark further down the conversation.
    """
    out = list(items)
    for position in breakpoints(items, native=results):
        out[position] = dumps(marked(_read(items[position]), ttl=ttl, beside=False))
    return out


def _read(message: Mapping[str, Json] | bytes) -> Mapping[str, Json]:
    read: Mapping[str, Json] = json.loads(message) if isinstance(message, bytes) else message
    return read


def mark(ttl: TTL) -> dict[str, str]:
    """Return a breakpoint; raise ValueError if the lifetime is invalid."""
    if ttl not in ("5m", "1h"):
        raise ValueError(f"the cache lifetime must be '5m' or '1h', not {ttl!r}")
    return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}


def _carries(message: Mapping[str, Json]) -> bool:
    content = message.get("content")
    if not isinstance(content, list):
        return isinstance(content, str) and bool(content.strip())
    last = content[-1] if content else None
    if not isinstance(last, Mapping):
        return False
    return last.get("type") != "text" or bool(str(last.get("text") or "").strip())


def _unmarked(message: Mapping[str, Json]) -> dict[str, Json]:
    """Return a deep copy without marks; a part that occurs twice is copied twice."""
    out = {key: copy.deepcopy(value) for key, value in message.items() if key != _KEY}
    if isinstance(parts := message.get("content"), list):
        out["content"] = [_unmarked(p) if isinstance(p, Mapping) else p for p in parts]
    return out
