"""Text cut to a limit, and amounts of things, tokens and money as a person reads them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from hermes_nb.core.budget import dollars
from hermes_nb.core.messages import Image, Message, Text, Usage

CHARACTERS_PER_TOKEN = 3.5
"""For prose and code; a rule of thumb between English prose (about 4) and dense code (about 3)."""
JSON_CHARACTERS_PER_TOKEN = 2.6
"""JSON tokenises shorter than prose: quotes, braces and keys are tokens of their own."""
IMAGE_TOKENS = 1_100
"""What a 1024 x 1024 picture costs, as an order of magnitude: providers count it differently."""


TITLE = 60
"""Characters of a session's title."""


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


_UNFINISHED = re.compile(r"[\w+/=~-]{8,}\Z")


def latest(text: str, limit: int) -> str:
    """Return the end of a text that goes on, in at most `limit` characters.

    It begins with a line, or with a word of a line that is longer. A long word at its end, which
    may go on, is left out: half a secret is not known for one.
    """
    end = text[-limit:]
    if len(text) > limit:
        mark = next((mark for mark in "\n\r " if mark in end[:-1]), "")
        end = end.partition(mark)[2] if mark else ""
    return _UNFINISHED.sub("…", end)


def both_ends(text: str, limit: int) -> str:
    """Return `text` on one line of at most `limit` characters, cut in its middle.

    File names are told apart by how they end.
    """
    line = one_line(text, len(text) + 1)
    if len(line) <= limit:
        return line
    tail = limit // 2
    return f"{line[: limit - 1 - tail].rstrip()}…{line[len(line) - tail :].lstrip()}"


def capitalised(text: str) -> str:
    """Return `text` with a capital letter at its beginning, and the others as they are."""
    return text[:1].upper() + text[1:]


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


ROUNDS_UP = 0.99995
"""999,950 tokens are 1.0M, not 1000.0k."""


def amount(tokens: int) -> str:
    """Return a token count: 640, 14.7k, 1.2M."""
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if tokens >= size * ROUNDS_UP:
            return f"{tokens / size:.1f}{unit}"
    return str(tokens)


def used(usage: Usage) -> list[str]:
    """Return what requests used, part by part; a price that is not known is left out."""
    if not usage.requests:
        return []
    told = [number_of(usage.requests, "request")]
    if usage.input:
        share = f" ({round(100 * usage.cached / usage.input)} % cached)" if usage.cached else ""
        told += [f"{amount(usage.input)} in{share}", f"{amount(usage.output)} out"]
    if usage.cost is not None:
        told.append(dollars(usage.cost))
    return told
