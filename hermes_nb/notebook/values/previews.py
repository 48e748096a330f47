"""A value's text within limits, as a limited `repr`.

Containers are walked, never printed whole; tables and arrays give their shape. A `__repr__` that
is not known to be harmless is called only where a time limit holds.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from hermes_nb.core.text import one_line
from hermes_nb.notebook.interrupt import has_time_limit
from hermes_nb.notebook.values.kinds import Foreign, library, shape_of, told, type_name

ITEMS = 8
"""Items of a container that a preview shows."""
HIDDEN = "(not shown: the name says it is a secret)"

_DEPTH = 3
_LONG_INTEGER = 200  # bits
_BRACKETS: dict[type, tuple[str, str]] = {
    list: ("[", "]"),
    tuple: ("(", ")"),
    set: ("{", "}"),
    frozenset: ("frozenset({", "})"),
    deque: ("deque([", "])"),
}
_HARMLESS = frozenset(
    "builtins datetime decimal fractions pathlib uuid enum re zoneinfo ipaddress collections types"
    " functools numpy pandas".split()
)
_STRONG = re.compile(
    r"(?:^|_)(?:password|passwd|passphrase|pwd|secret|credentials?|api_?key|access_?key|private_?key"
    r"|(?:auth|access|bearer|refresh|api)_?token)s?(?:$|_)"
)
_WEAK = re.compile(r"(?:^|_)(?:key|token|auth)s?$")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SECRET_LENGTH = 12
_SPACE = re.compile(r"\s")


def names_a_secret(name: str, value: object) -> bool:
    """Say whether a text called `name` must not be shown: `db_password` always, `key` if long."""
    text = value if issubclass(type(value), str | bytes) else None
    if not isinstance(text, str | bytes):
        return False
    name = _HUMP.sub("_", name[:200]).lower()
    if _STRONG.search(name):
        return True
    if _WEAK.search(name) is None or len(text) < _SECRET_LENGTH:
        return False
    return not (isinstance(text, str) and _SPACE.search(text))


def hides_column(name: object, values: Iterable[object]) -> bool:
    """Say whether a column must not be shown: by its name, or by that and what it holds."""
    parts = name if isinstance(name, tuple) else (name,)
    text = _HUMP.sub("_", "_".join(str(part) for part in parts)[:200]).lower()
    return _STRONG.search(text) is not None or any(names_a_secret(text, item) for item in values)


def preview(value: object, limit: int = 200, *, depth: int = _DEPTH) -> str:
    """Return a one-line text of about `limit` characters at most."""
    kind = type(value)
    if issubclass(kind, str | bytes):
        return _text(value, limit)  # type: ignore[arg-type]
    if issubclass(kind, int) and not issubclass(kind, bool) and library(value) == "builtins":
        bits = int.bit_length(value)  # type: ignore[arg-type]
        return repr(value) if bits <= _LONG_INTEGER else f"<int of {bits:,} bits>"
    for base, brackets in _BRACKETS.items():
        if issubclass(kind, base):
            return _sequence(value, base, brackets, limit, depth)
    if issubclass(kind, dict):
        return _dict(value, limit, depth)  # type: ignore[arg-type]
    if shape := shape_of(value):
        return f"<{type_name(value)}, {shape}>"
    if issubclass(kind, type):
        return f"<class {told(value, '__qualname__')}>"  # type: ignore[arg-type]
    return foreign(value, limit)


def foreign(value: object, limit: int = 200) -> str:
    """Return the value's own `repr` on one line, or what came of asking for it."""
    name = type_name(value)
    default = type(value).__repr__ is object.__repr__
    if default or not (library(value) in _HARMLESS or has_time_limit()):
        return f"<{name}>"
    try:
        text = repr(value)
    except Exception as error:  # noqa: BLE001 - it is the user's `__repr__`
        return f"<{name}, its repr raises {type(error).__name__}>"
    return one_line(str(text), limit)


def _text(value: str | bytes, limit: int) -> str:
    text = repr(value[:limit])
    return text if len(value) <= limit else f"{text}…"


def _sequence(value: Foreign, base: type, brackets: tuple[str, str], limit: int, depth: int) -> str:
    size: int = base.__len__(value)  # type: ignore[attr-defined]
    if depth <= 0 and size:
        return f"{brackets[0]}…{brackets[1]}"
    fields = getattr(type(value), "_fields", None) if base is tuple else None
    items: Iterator[Any] = base.__iter__(value)  # type: ignore[attr-defined]
    texts = (preview(item, limit // 4 + 20, depth=depth - 1) for item in items)
    if isinstance(fields, tuple):
        texts = (f"{field}={text}" for field, text in zip(fields, texts, strict=False))
        brackets = (f"{type(value).__name__}(", ")")
    elif base is tuple and size == 1:
        brackets = ("(", ",)")
    return brackets[0] + _joined(texts, size, limit) + brackets[1]


def _dict(value: dict[Any, Any], limit: int, depth: int) -> str:
    size = dict.__len__(value)
    if depth <= 0 and size:
        return "{…}"
    texts = (_item(key, item, limit, depth) for key, item in dict.items(value))
    return "{" + _joined(texts, size, limit) + "}"


def _item(key: object, item: object, limit: int, depth: int) -> str:
    shown = preview(key, 60, depth=1)
    if isinstance(key, str) and names_a_secret(key, item):
        return f"{shown}: {HIDDEN}"
    return f"{shown}: {preview(item, limit // 4 + 20, depth=depth - 1)}"


def _joined(texts: Iterable[str], size: int, limit: int) -> str:
    """Join the first items, as many as fit."""
    shown: list[str] = []
    used = 0
    for text in islice(texts, ITEMS):
        if shown and used + len(text) > limit:
            break
        shown.append(text)
        used += len(text) + 2
    if len(shown) < size:
        shown.append(f"… {size - len(shown):,} more")
    return ", ".join(shown)
