"""Checks a call's arguments against a tool's schema, and says in one line what was expected.

Two validators, both built once a tool: fastjsonschema says quickly that arguments are right, and
jsonschema, whose import takes up to 2 s, finds everything that is wrong with those that are not.
`True` is not an integer, and 5.0 is one.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from hermes_nb.core.text import one_line

if TYPE_CHECKING:
    from jsonschema.exceptions import ValidationError
    from jsonschema.protocols import Validator

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


class Checker:
    """Says what is wrong with arguments, or nothing; safe to call from several threads."""

    def __init__(
        self, name: str, schema: Mapping[str, Any], nullable: frozenset[str] = frozenset()
    ) -> None:
        self._schema = dict(schema)
        self._signature = signature_text(name, schema)
        self._nullable = nullable
        self._validator: Validator | None = None
        self._accepts: Callable[[Mapping[str, Any]], bool] | None = None

    def __call__(self, arguments: Mapping[str, Any]) -> str:
        """Return one line on the problems and the tool's signature, or ""."""
        given = {
            key: value
            for key, value in arguments.items()
            if value is not None or key not in self._nullable
        }
        if self._accepts is None:
            self._accepts = _acceptor(self._schema)
        if self._accepts(given):
            return ""
        errors = sorted(self._build().iter_errors(given), key=_position)
        if not errors:
            return ""
        problems = [problem for error in errors for problem in _problems(error)]
        told = "; ".join(problems[:_PROBLEMS_SHOWN])
        if more := len(problems) - _PROBLEMS_SHOWN:
            told += f"; {more} more" if more > 0 else ""
        return f"{told}. Expected {self._signature}"

    def _build(self) -> Validator:
        if self._validator is None:
            from jsonschema import Draft202012Validator

            self._validator = Draft202012Validator(self._schema)
        return self._validator


def _acceptor(schema: dict[str, Any]) -> Callable[[Mapping[str, Any]], bool]:
    """Return a quick test that never accepts what is wrong; an odd schema accepts none."""
    import fastjsonschema

    try:
        validate = fastjsonschema.compile(schema, use_default=False)
    except fastjsonschema.JsonSchemaDefinitionException:
        return lambda _: False

    def accepts(arguments: Mapping[str, Any]) -> bool:
        try:
            validate(dict(arguments))
        except fastjsonschema.JsonSchemaValueException:
            return False
        return True

    return accepts


def signature_text(name: str, schema: Mapping[str, Any]) -> str:
    """Return a schema as a call: `read_file(path: string, offset: integer = 1, tags?: list)`."""
    required = schema.get("required", ())
    parts = []
    for key, each in schema.get("properties", {}).items():
        mark = "" if key in required or "default" in each else "?"
        default = f" = {json.dumps(each['default'], default=str)}" if "default" in each else ""
        parts.append(f"{key}{mark}: {_type_text(each)}{default}")
    return f"{name}({', '.join(parts)})"


def _type_text(schema: Mapping[str, Any]) -> str:
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


def _position(error: ValidationError) -> tuple[int, str]:
    """Order errors: what is wrong with the whole before what is wrong inside, then by place."""
    return len(error.absolute_path), _place(error)


def _place(error: ValidationError) -> str:
    place = ""
    for step in error.absolute_path:
        place += f"[{step}]" if isinstance(step, int) else f".{step}" if place else str(step)
    return place


def _problems(error: ValidationError) -> Iterator[str]:
    place = _place(error)
    prefix = f"{place}." if place else ""
    schema = error.schema if isinstance(error.schema, Mapping) else {}
    if error.validator == "additionalProperties" and isinstance(error.instance, Mapping):
        known = list(schema.get("properties", ()))
        for key in error.instance:
            if key not in known:
                yield _unknown(f"{prefix}{key}", str(key), known)
    elif error.validator == "required":
        missing = str(error.message).split("' is a required")[0].strip("'\"")
        yield f"missing `{prefix}{missing}`"
    else:
        value = one_line(repr(error.instance), 60)
        kind = type(error.instance).__name__
        yield f"`{place}` must be {_expected(error, schema)}, got {value} ({kind})"


def _unknown(place: str, key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    hint = f" (did you mean `{close[0]}`?)" if close else ""
    return f"unknown argument `{one_line(place, 60)}`{hint}"


def _expected(error: ValidationError, schema: Mapping[str, Any]) -> str:
    limit: Any = error.validator_value
    match error.validator:
        case "type":
            kinds = [limit] if isinstance(limit, str) else limit
            return " or ".join(_NAMES.get(kind, kind) for kind in kinds)
        case "enum":
            return "one of " + ", ".join(json.dumps(value) for value in limit)
        case "minimum":
            return f"at least {limit}"
        case "maximum":
            return f"at most {limit}"
        case _:
            return _type_text(schema)
