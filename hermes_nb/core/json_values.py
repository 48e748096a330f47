"""JSON values that every store and server accepts, and a canonical JSON form.

Lone surrogates and NUL become U+FFFD: UTF-8 cannot encode the first, and PostgreSQL and many
servers reject the second. NaN and infinities become null. Anything nested deeper than `DEEPEST`
levels becomes null.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping

from hermes_nb.core.messages import REPLACEMENT, Json


def canonical_json(value: object) -> str:
    """Return compact JSON with sorted keys: equal values produce equal strings."""
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"), default=str)


def fingerprint(value: object) -> str:
    """Return a value's hash: the first 16 hex digits of its canonical JSON's SHA-256."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:16]


DEEPEST = 100
"""Maximum nesting of lists and objects. JSON readers recurse and would overflow their stack."""


def clean_text(text: str) -> str:
    """Return `text` with NUL and lone surrogates replaced by U+FFFD, and surrogate pairs joined."""
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
    """Return whether lists and objects are nested deeper than `levels`."""
    match value:
        case Mapping():
            return levels == 0 or any(too_deep(item, levels - 1) for item in value.values())
        case list() | tuple():
            return levels == 0 or any(too_deep(item, levels - 1) for item in value)
        case _:
            return False


def clean(value: object, levels: int = DEEPEST) -> Json:
    """Return `value` as a valid JSON value; other types become their `str`.

    Lists and objects nested deeper than `levels` become null.
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
    """Return a JSON value with `change` applied to every string, including keys."""
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
    """Return compact JSON as UTF-8, after `clean`. Keys keep their order."""
    text = json.dumps(clean(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")
