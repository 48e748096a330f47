"""`system_and_3`: where a provider that wants to be told is told to cache, four times at most.

Claude's cache holds prefixes that end at a breakpoint. One on the system prompt holds what never
changes; one on each of the last three messages that can carry it lets the next request begin where
this one ended, and survives a step or two that cannot be marked.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, overload

from hermes_nb.core.text import dumps

TTL = Literal["5m", "1h"]
MOST = 4
"""Breakpoints that Anthropic takes in one request, as of 2026-11."""
_KEY = "cache_control"
_SYSTEM = ("system", "developer")


def with_breakpoints(
    wire_messages: Sequence[Mapping[str, Any]], *, ttl: TTL = "5m", native: bool = False
) -> list[dict[str, Any]]:
    """Return a deep copy of the messages, marked at the system prompt and the last three others.

    A text becomes one text part, and the mark goes on the last part. What cannot carry one is
    passed over: empty content and an empty last part (Anthropic refuses a mark there), and the
    result of a tool unless `native`. Anthropic's own API takes marks on tool results, and an
    adapter that speaks it moves one there from the message, which is where it is put; OpenRouter
    documents marks for text parts only, and has left requests unanswered whose tool messages had
    one. Marks that were there before are gone, so marking twice is marking once. `ttl` is `5m`, the
    providers' default and not spelt out, or `1h`; anything else raises ValueError.
    """
    _mark(ttl)
    out = [_unmarked(message) for message in wire_messages]
    for position in breakpoints(wire_messages, native=native):
        out[position] = marked(out[position], ttl=ttl)
    return out


def breakpoints(wire_messages: Sequence[Mapping[str, Any]], *, native: bool = False) -> list[int]:
    """Return the positions that `with_breakpoints` marks, in ascending order.

    Looks at the first message, then backwards from the last until it has three: a sequence that
    makes its items when asked for them makes no more than needed.
    """
    found: list[int] = []
    if wire_messages and wire_messages[0].get("role") in _SYSTEM and _carries(wire_messages[0]):
        found.append(0)
    return sorted(found + list(_last(wire_messages, MOST - 1, native=native)))


def marked(message: Mapping[str, Any], *, ttl: TTL = "5m") -> dict[str, Any]:
    """Return a copy of a message that can carry a mark, with one."""
    out = _unmarked(message)
    if out.get("role") == "tool":
        out[_KEY] = _mark(ttl)
        return out
    content = out["content"]
    parts: list[dict[str, Any]] = (
        [{"type": "text", "text": content}] if isinstance(content, str) else content
    )
    parts[-1][_KEY] = _mark(ttl)
    out["content"] = parts
    return out


def mark_items(items: Sequence[bytes], *, ttl: TTL = "5m") -> list[bytes]:
    """Return serialised messages with marks; only those that get one are serialised anew."""
    out, messages = list(items), _Parsed(items)
    for position in breakpoints(messages):
        out[position] = dumps(marked(messages[position], ttl=ttl))
    return out


class _Parsed(Sequence[Mapping[str, Any]]):
    """Serialised messages, read when they are looked at."""

    def __init__(self, items: Sequence[bytes]) -> None:
        self._items = items

    def __len__(self) -> int:
        return len(self._items)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | list[Mapping[str, Any]]:
        if isinstance(index, slice):
            return [json.loads(item) for item in self._items[index]]
        read: Mapping[str, Any] = json.loads(self._items[index])
        return read


def _mark(ttl: TTL) -> dict[str, str]:
    if ttl not in ("5m", "1h"):
        message = f"a cache entry lives for '5m' or '1h', not {ttl!r}"
        raise ValueError(message)
    return {"type": "ephemeral"} if ttl == "5m" else {"type": "ephemeral", "ttl": ttl}


def _last(messages: Sequence[Mapping[str, Any]], most: int, *, native: bool) -> Iterator[int]:
    """Yield the last positions that can carry a mark, from the back."""
    for position in range(len(messages) - 1, -1, -1):
        if not most:
            return
        message = messages[position]
        role = message.get("role")
        if role not in _SYSTEM and (native or role != "tool") and _carries(message):
            most -= 1
            yield position


def _carries(message: Mapping[str, Any]) -> bool:
    """Say whether there is something to put a mark on."""
    content = message.get("content")
    if not isinstance(content, list):
        return isinstance(content, str) and bool(content.strip())
    last = content[-1] if content else None
    if not isinstance(last, Mapping):
        return False
    return last.get("type") != "text" or bool(str(last.get("text") or "").strip())


def _unmarked(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return a deep copy without marks; parts that were one object become several."""
    out = {key: copy.deepcopy(value) for key, value in message.items() if key != _KEY}
    if isinstance(parts := message.get("content"), list):
        out["content"] = [_plain(part) for part in parts]
    return out


def _plain(part: object) -> object:
    if not isinstance(part, Mapping):
        return copy.deepcopy(part)
    return {key: copy.deepcopy(value) for key, value in part.items() if key != _KEY}
