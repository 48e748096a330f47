"""Shorten text, and format counts, tokens and money for people."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hermes_nb.core.budget import dollars
from hermes_nb.core.messages import Image, Message, Text, Usage

CHARACTERS_PER_TOKEN = 3.5
"""Characters per token of text: a compromise between prose (about 4) and dense code (about 3)."""
JSON_CHARACTERS_PER_TOKEN = 2.6
"""Characters per token of JSON, where quotes, braces and keys are separate tokens."""
IMAGE_TOKENS = 1_100
"""Rough number of tokens in an image of 1024 x 1024 pixels; providers count differently."""


TITLE = 60
"""Maximum length of a session title, in characters."""


def head_tail(text: str, limit: int, *, where: str = "") -> str:
    """Shorten `text` to about `limit` characters: its head (70 %), a marker, and its tail.

    The marker states the number of dropped characters and, if set, `where` the full text is. The
    marker is not counted, so the result can exceed `limit` by its length.
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
    """Return `text` on one line of at most `limit` characters, with an ellipsis if truncated."""
    line = " ".join(text[: limit * 8].split())
    if len(line) <= limit and len(text) <= limit * 8:
        return line
    return line[: limit - 1].rstrip() + "…"


_UNFINISHED = re.compile(r"[\w+/=~-]{8,}\Z")


def latest(text: str, limit: int) -> str:
    """Return the last `limit` characters of text that is still growing.

    The result starts at a line, or at a word if the last line is too long. A long word at the end
    is replaced by an ellipsis: it may be the first half of a secret, which redaction can't
    recognise.
    """
    end = text[-limit:]
    if len(text) > limit:
        mark = next((mark for mark in "\n\r " if mark in end[:-1]), "")
        end = end.partition(mark)[2] if mark else ""
    return _UNFINISHED.sub("…", end)


def both_ends(text: str, limit: int) -> str:
    """Return `text` on one line of at most `limit` characters, shortened in the middle.

    This suits file names, which often differ only at the end.
    """
    line = one_line(text, len(text) + 1)
    if len(line) <= limit:
        return line
    tail = limit // 2
    return f"{line[: limit - 1 - tail].rstrip()}…{line[len(line) - tail :].lstrip()}"


def capitalised(text: str) -> str:
    """Return `text` with its first letter in upper case."""
    return text[:1].upper() + text[1:]


def number_of(count: int, noun: str) -> str:
    """Return a count with its noun in singular or plural: `1 message`, `2 messages`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def estimate_tokens(messages: Iterable[Message]) -> int:
    """Estimate the prompt tokens of messages."""
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


ROUNDS_UP = 0.99995
"""Fraction of a unit that rounds up to it: 999,950 tokens are 1.0M, not 1000.0k."""


def amount(tokens: int) -> str:
    """Format a token count: 640, 14.7k, 1.2M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if tokens >= size * ROUNDS_UP:
            return f"{tokens / size:.1f}{unit}"
    return str(tokens)


def used(usage: Usage) -> list[str]:
    """Return the parts of a usage report; an unknown price is left out."""
    if not usage.requests:
        return []
    parts = [number_of(usage.requests, "request")]
    if usage.input:
        share = f" ({round(100 * usage.cached / usage.input)} % cached)" if usage.cached else ""
        parts += [f"{amount(usage.input)} in{share}", f"{amount(usage.output)} out"]
    if usage.cost is not None:
        parts.append(dollars(usage.cost))
    return parts
