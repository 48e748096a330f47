"""Validate the arguments of a tool call and convert them for the tool's function.

Arguments are validated with fastjsonschema, compiled once per tool: `True` is not an integer, but
5.0 is. When they are invalid, a simple walk over the schema lists the common mistakes.
"""

from __future__ import annotations

import difflib
import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from typing import Any, TypeAlias

from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Arguments, Run, ToolContext

Function: TypeAlias = Callable[..., Any]
"""The Python function that a tool calls, with any parameters."""
Convert: TypeAlias = Callable[[Json], Any] | None
"""Converts a valid JSON value to the Python value that a parameter expects; None if unchanged."""
_PROBLEMS_SHOWN = 3
_NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
    "null": "null",
}


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "array": list,
    "object": Mapping,
    "null": type(None),
}


def converted(value: Json, convert: Convert) -> Json:
    """Return a valid JSON value as the Python value that the function expects."""
    return value if convert is None else convert(value)


def calling(
    function: Function,
    converts: Mapping[str, Convert],
    nullable: frozenset[str],
    *,
    wants_context: bool,
) -> Run:
    """Wrap a function as `run(context, arguments)`. The result is async only if the function is.

    An explicit null for one of the `nullable` parameters is treated as an omitted argument.
    """

    def start(context: ToolContext, arguments: Arguments) -> Json:
        keywords = {
            key: converted(value, converts[key])
            for key, value in arguments.items()
            if value is not None or key not in nullable
        }
        return function(context, **keywords) if wants_context else function(**keywords)

    async def start_async(context: ToolContext, arguments: Arguments) -> object:
        return await start(context, arguments)

    return start_async if inspect.iscoroutinefunction(function) else start


class Checker:
    """Describes the problems of a call's arguments, if any; safe to call from several threads.

    If the schema cannot be compiled, only common mistakes are rejected, and the tool has to handle
    all others.
    """

    def __init__(
        self, name: str, schema: Mapping[str, Json], nullable: frozenset[str] = frozenset()
    ) -> None:
        self._name = name
        self._schema = dict(schema)
        self._nullable = nullable

    @cached_property
    def _validate(self) -> Callable[[object], object] | None:
        import fastjsonschema

        try:
            return fastjsonschema.compile(self._schema, use_default=False)
        except Exception:  # noqa: BLE001 - a third-party schema can raise anything
            return None

    def __call__(self, arguments: Mapping[str, Json]) -> str:
        """Return the problems and the tool's signature on one line; "" if there are no problems."""
        from fastjsonschema import JsonSchemaValueException

        given = {
            key: value
            for key, value in arguments.items()
            if value is not None or key not in self._nullable
        }
        other: list[Problem] = []
        if self._validate is not None:
            try:
                self._validate(given)
            except JsonSchemaValueException as error:
                other = [_wrong(error.value, tuple(error.path[1:]), _type_text(error.definition))]
            else:
                return ""
        found = [*_problems(given, self._schema)] or other
        if not found:
            return ""
        # Problems with the whole object come first, then problems inside it, sorted by location.
        found.sort(key=lambda each: (len(each[0]), _text(each[0])))
        parts = [text for _, text in found]
        more = f"; {len(parts) - _PROBLEMS_SHOWN} more" if len(parts) > _PROBLEMS_SHOWN else ""
        expected = signature_text(self._name, self._schema)
        return f"{'; '.join(parts[:_PROBLEMS_SHOWN])}{more}. Expected {expected}"


def signature_text(name: str, schema: Mapping[str, Json]) -> str:
    """Render a schema as a call: `read_file(path: string, offset: integer = 1, tags?: list)`."""
    required = schema.get("required", ())
    parts = []
    for key, each in schema.get("properties", {}).items():
        mark = "" if key in required or "default" in each else "?"
        default = f" = {json.dumps(each['default'], default=str)}" if "default" in each else ""
        parts.append(f"{key}{mark}: {_type_text(each)}{default}")
    return f"{name}({', '.join(parts)})"


def _type_text(schema: Mapping[str, Json]) -> str:
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(_type_text(option) for option in schema["anyOf"])
    kind = schema.get("type", "any")
    if kind == "array" and "items" in schema:
        return f"list of {_type_text(schema['items'])}"
    if kind == "object" and "properties" in schema:
        inner = signature_text("", schema)
        return "{" + inner[1:-1] + "}"
    return kind if isinstance(kind, str) else " | ".join(kind)


Place = tuple[str | int, ...]
Problem = tuple[Place, str]
"""A problem's location in the arguments, and its description."""


def _problems(value: object, schema: Mapping[str, Json], place: Place = ()) -> Iterator[Problem]:
    """Yield the common mistakes in a value; the validator reports all others."""
    kinds = schema.get("type", ())
    kinds = [kinds] if isinstance(kinds, str) else kinds
    if kinds and not any(_is(value, kind) for kind in kinds):
        yield _wrong(value, place, " or ".join(_NAMES.get(kind, kind) for kind in kinds))
    if "enum" in schema and not any(_same(value, each) for each in schema["enum"]):
        yield _wrong(value, place, "one of " + ", ".join(map(json.dumps, schema["enum"])))
    if "anyOf" in schema and all(any(_problems(value, each)) for each in schema["anyOf"]):
        yield _wrong(value, place, _type_text(schema))
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value < schema.get("minimum", value):
            yield _wrong(value, place, f"at least {schema['minimum']}")
        if value > schema.get("maximum", value):
            yield _wrong(value, place, f"at most {schema['maximum']}")
    if isinstance(value, list) and isinstance(items := schema.get("items"), Mapping):
        for number, each in enumerate(value):
            yield from _problems(each, items, (*place, number))
    if isinstance(value, Mapping):
        yield from _problems_in(value, schema, place)


def _problems_in(
    value: Mapping[str, Json], schema: Mapping[str, Json], place: Place
) -> Iterator[Problem]:
    """Yield the problems in an object: missing and unknown keys, and invalid values."""
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    for key in schema.get("required", ()):
        if key not in value:
            yield place, f"missing `{_text((*place, key))}`"
    for key, each in value.items():
        inner = known.get(key, others)
        if isinstance(inner, Mapping):
            yield from _problems(each, inner, (*place, key))
        elif inner is False:
            close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f" (did you mean `{close[0]}`?)" if close else ""
            yield place, f"unknown argument `{one_line(_text((*place, key)), 60)}`{hint}"


def _wrong(value: object, place: Place, expected: str) -> Problem:
    kind = type(value).__name__
    return place, f"`{_text(place)}` must be {expected}, got {one_line(repr(value), 60)} ({kind})"


def _text(place: Place) -> str:
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in place)
    return text.removeprefix(".")


def _is(value: object, kind: str) -> bool:
    """Return whether a value has a JSON type."""
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES.get(kind, ()))


def _same(value: object, other: object) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)
