"""Text within limits: head-and-tail truncation and token estimates."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hermes_nb.core.messages import Image, Message, Text

CHARACTERS_PER_TOKEN = 3.5
"""For prose and code; a rule of thumb between English prose (about 4) and dense code (about 3)."""
JSON_CHARACTERS_PER_TOKEN = 2.6
"""JSON tokenises shorter than prose: quotes, braces and keys are tokens of their own."""
IMAGE_TOKENS = 1_100
"""What a 1024 x 1024 picture costs, as an order of magnitude: providers count it differently."""


def head_tail(text: str, limit: int, *, where: str = "") -> str:
    """Return `text` in at most about `limit` characters: its head (70 %) and tail around a marker.

    The marker says how many characters were dropped and, if given, `where` the whole is kept. It
    comes on top of the limit, so the result is longer than `limit` by the marker's length.
    """
    if len(text) <= limit:
        return text
    head = limit * 7 // 10
    tail = limit - head
    dropped = len(text) - head - tail
    place = f"; the whole output is in {where}" if where else ""
    end = text[-tail:] if tail else ""
    return f"{text[:head]}\n[... {dropped:,} characters dropped{place} ...]\n{end}"


def one_line(text: str, limit: int = 80) -> str:
    """Return `text` on one line of at most `limit` characters, an ellipsis where it was cut."""
    line = " ".join(text[: limit * 8].split())
    if len(line) <= limit and len(text) <= limit * 8:
        return line
    return line[: limit - 1].rstrip() + "…"


def both_ends(text: str, limit: int) -> str:
    """Return `text` on one line of at most `limit` characters, cut in its middle.

    File names are told apart by how they end.
    """
    line = one_line(text, len(text) + 1)
    if len(line) <= limit:
        return line
    tail = limit // 2
    return f"{line[: limit - 1 - tail].rstrip()}…{line[len(line) - tail :].lstrip()}"


def number_of(count: int, noun: str) -> str:
    """Return how many there are of something, in English: `1 message`, `2 messages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def estimate_tokens(messages: Iterable[Message]) -> int:
    """Return a rough count of the prompt tokens that messages cost."""
    total = 0.0
    for message in messages:
        total += 4
        for part in message.parts:
            match part:
                case Text():
                    total += len(part.text) / CHARACTERS_PER_TOKEN
                case Image():
                    total += IMAGE_TOKENS
        for call in message.calls:
            size = len(call.name) + len(call.arguments_json())
            total += size / JSON_CHARACTERS_PER_TOKEN
    return round(total)


def canonical_json(value: object) -> str:
    """Return compact JSON with sorted keys: equal values give equal bytes."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)
