"""Rebuild dataclass instances from stored JSON and check the types of their fields.

The JSON may have been edited by hand, cut off by a crash or written by another version.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import is_dataclass
from functools import cache
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def restored(kind: type[T], value: object) -> T:
    """Return an instance of `kind` built from its `dataclasses.asdict` form.

    Supported types: str, int, finite float, bool, None, Literal, list, tuple of any length, dict
    with str keys, unions, and nested dataclasses. A missing field gets its default.

    Raises:
        TypeError: `value` doesn't match `kind`.
    """
    found: T = _restored(kind, value)
    return found


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _restored(kind: Any, value: object) -> Any:  # noqa: ANN401 - any annotation, any value
    if type(value) is kind and kind is not float:
        return value
    origin, inner = get_origin(kind), get_args(kind)
    if is_dataclass(kind) and isinstance(value, Mapping):
        hints = _hints(kind)  # type: ignore[arg-type]  # is_dataclass: it is a class
        fields = {name: _restored(hints.get(name), each) for name, each in value.items()}
        return kind(**fields)  # type: ignore[operator]
    if origin in (Union, UnionType):
        for each in inner:
            with suppress(TypeError):
                return _restored(each, value)
    if origin in (list, tuple) and isinstance(value, list):
        return origin(_restored(inner[0], each) for each in value)
    if origin is dict and isinstance(value, dict):
        return {key: _restored(inner[1], each) for key, each in value.items()}
    if kind is float and isinstance(value, int | float) and abs(value) <= sys.float_info.max:
        return float(value)
    if origin is Literal and value in inner:
        return value
    raise TypeError(f"{str(value)[:80]!r} is not of type {kind}")
