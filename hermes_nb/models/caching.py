"""`system_and_3`: where a provider that wants to be told is told to cache, four times at most.

Claude's cache holds prefixes that end at a breakpoint. One on the system prompt holds what never
changes; one on each of the last three messages that can carry it lets the next request begin where
this one ended, and survives a step or two that cannot be marked.
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
"""Breakpoints that Anthropic takes in one request, as of 2026-11."""
_KEY = "cache_control"
_SYSTEM = ("system", "developer")


def with_breakpoints(
    wire_messages: Sequence[Mapping[str, Json]], *, ttl: TTL = "5m", native: bool = False
) -> list[dict[str, Json]]:
    """Return a deep copy of the messages, marked at the system prompt and the last three others.

    A text becomes one text part, and the mark goes on the last part. What cannot carry one is
    passed over: empty content and an empty last part (Anthropic refuses a mark there), and the
    result of a tool unless `native`. Anthropic's own API takes marks on tool results, and an
    adapter that speaks it moves one there from the message, which is where it is put; OpenRouter
    documents marks for text parts only, and has left requests unanswered whose tool messages had
    one beside their text. Marks that were there before are gone, so marking twice is marking once.
    `ttl` is `5m`, the providers' default and not spelt out, or `1h`; anything else raises
    ValueError.
    """
    _mark(ttl)
    out = [_unmarked(message) for message in wire_messages]
    for position in breakpoints(wire_messages, native=native):
        out[position] = marked(out[position], ttl=ttl)
    return out


def breakpoints(
    wire_messages: Sequence[Mapping[str, Json] | bytes], *, native: bool = False
) -> list[int]:
    """Return the positions that get a mark, in ascending order; tool results only if `native`.

    Looks at the first message, then backwards from the last until it has three: of serialised
    messages no more are read than needed.
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
    """Return a copy of a message that can carry a mark, with one.

    That of a tool result stands `beside` its text, or else in it as everywhere.
    """
    out = _unmarked(message)
    if out.get("role") == "tool" and beside:
        return {**out, _KEY: _mark(ttl)}
    content = out["content"]
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    return {**out, "content": [*parts[:-1], {**parts[-1], _KEY: _mark(ttl)}]}


def mark_items(items: Sequence[bytes], *, ttl: TTL = "5m", results: bool = False) -> list[bytes]:
    """Return serialised messages with marks; only those that get one are serialised anew.

    `results` says that the text of a tool result may carry one: in a loop of tool calls, whose
    assistant messages are without text, nothing else moves on with the conversation.
    """
    out = list(items)
    for position in breakpoints(items, native=results):
        out[position] = dumps(marked(_read(items[position]), ttl=ttl, beside=False))
    return out


def _read(message: Mapping[str, Json] | bytes) -> Mapping[str, Json]:
    read: Mapping[str, Json] = json.loads(message) if isinstance(message, bytes) else message
    return read


def _mark(ttl: TTL) -> dict[str, str]:
    if ttl not in ("5m", "1h"):
        raise ValueError(f"a cache entry lives for '5m' or '1h', not {ttl!r}")
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
    """Return a deep copy without marks; parts that were one object become several."""
    out = {key: copy.deepcopy(value) for key, value in message.items() if key != _KEY}
    if isinstance(parts := message.get("content"), list):
        out["content"] = [_unmarked(p) if isinstance(p, Mapping) else p for p in parts]
    return out
