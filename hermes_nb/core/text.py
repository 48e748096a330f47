r"""Text within limits that shows what it is, amounts as a person reads them, values for any store.

What a terminal or a browser would act on becomes its escape: control characters, ANSI sequences,
right-to-left overrides, zero-width and tag characters come out as `\x1b`, `\u202e` and so on;
everything else, every script and emoji, stays as it is.

In JSON, lone surrogates and NUL become U+FFFD (UTF-8 cannot carry the first, PostgreSQL and many
servers refuse the second), NaN and infinities become null, and what is nested without end is cut.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from functools import cache

from hermes_nb.core.budget import dollars
from hermes_nb.core.messages import REPLACEMENT, Image, Json, Message, Text, Usage

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


def canonical_json(value: object) -> str:
    """Return compact JSON with sorted keys: equal values give equal bytes."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def fingerprint(value: object) -> str:
    """Return what tells a value from a changed one, in 16 characters."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


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


DEEPEST = 100
"""Levels of lists and objects in one another: readers everywhere recurse, and run out of stack."""


def clean_text(text: str) -> str:
    """Return `text` without lone surrogates and NUL; halves that belong together are joined."""
    if "\0" in text:
        text = text.replace("\0", REPLACEMENT)
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def too_deep(value: object, levels: int = DEEPEST) -> bool:
    """Say whether lists and objects are nested in more than so many levels."""
    match value:
        case Mapping():
            return levels == 0 or any(too_deep(item, levels - 1) for item in value.values())
        case list() | tuple():
            return levels == 0 or any(too_deep(item, levels - 1) for item in value)
        case _:
            return False


def clean(value: object, levels: int = DEEPEST) -> Json:
    """Return `value` as JSON can carry it; what is no JSON value at all becomes its text.

    What lies deeper than so many levels becomes null.
    """
    match value:
        case str():
            return clean_text(value)
        case bool() | int() | None:
            return value
        case float():
            return value if math.isfinite(value) else None
        case Mapping() | list() | tuple() if levels == 0:
            return None
        case Mapping():
            return {clean_text(str(key)): clean(item, levels - 1) for key, item in value.items()}
        case list() | tuple():
            return [clean(item, levels - 1) for item in value]
        case _:
            return clean_text(str(value))


def with_texts(value: Json, change: Callable[[str], str]) -> Json:
    """Return a JSON value each of whose texts, keys included, went through `change`."""
    match value:
        case str():
            return change(value)
        case Mapping():
            return {change(key): with_texts(item, change) for key, item in value.items()}
        case list() | tuple():
            return [with_texts(item, change) for item in value]
        case _:
            return value


def dumps(value: object) -> bytes:
    """Return compact JSON as UTF-8; equal values in equal order give equal bytes."""
    text = json.dumps(clean(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")


_HIDDEN = frozenset({"Cc", "Cf", "Cs", "Co", "Zl", "Zp"})
"""Unicode's categories of characters that have no shape of their own."""
_JOINED = re.compile("(?<=[^\x00-\x7f])[\u200c\u200d](?=[^\x00-\x7f])")
"""What joins or parts letters and emoji of many scripts; beside an ASCII letter it only hides."""
_REMEMBERED = 20_000
"""Characters whose shape is remembered."""
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_MARKERS = "\u200e\u200f\u00ad"
"""Marks of direction for one place, and soft hyphens: right in prose, and they reorder nothing."""


def visible(text: str, *, lines: bool = False) -> str:
    """Return `text` with its invisible characters escaped; `lines` keeps line ends and tabs."""
    return _shown(text, "\n\t" if lines else "")


def readable(text: str) -> str:
    """Return prose with what hides or reorders it escaped; what scripts and emoji need stays.

    An override of direction or an ANSI sequence shows as its escape, a family of emoji or a
    Persian word stays whole. Line ends become those of Unix.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if text.isascii():
        return _shown(text, "\n\t")
    pieces, at = [], 0
    for joined in _JOINED.finditer(text):
        pieces += [_shown(text[at : joined.start()], "\n\t" + _MARKERS), joined[0]]
        at = joined.end()
    return "".join([*pieces, _shown(text[at:], "\n\t" + _MARKERS)])


def _shown(text: str, keep: str) -> str:
    if text.isascii():
        if text.isprintable():
            return text
        return _CONTROL.sub(lambda m: m[0] if m[0] in keep else _escaped(m[0]), text)
    return text.translate(_shapes(keep))


@cache
def _shapes(keep: str) -> _Shapes:
    return _Shapes(keep)


class _Shapes(dict[int, str]):
    """How each character is shown, worked out when it first appears; `keep` stay as they are."""

    def __init__(self, keep: str) -> None:
        super().__init__()
        self._keep = keep

    def __missing__(self, code: int) -> str:
        if len(self) >= _REMEMBERED:
            self.clear()
        character = chr(code)
        hidden = unicodedata.category(character) in _HIDDEN and character not in self._keep
        shown = self[code] = _escaped(character) if hidden else character
        return shown


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode()
