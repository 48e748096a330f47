"""Make any value fit for JSON and for the stores behind it.

Lone surrogates and NUL become U+FFFD (UTF-8 cannot carry the first, PostgreSQL and many servers
refuse the second), NaN and infinities become null, and what is nested without end is cut.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

REPLACEMENT = "�"
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


def clean(value: Any, levels: int = DEEPEST) -> Any:  # noqa: ANN401 - any JSON value
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


def dumps(value: object) -> bytes:
    """Return compact JSON as UTF-8; equal values in equal order give equal bytes."""
    text = json.dumps(clean(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8")
