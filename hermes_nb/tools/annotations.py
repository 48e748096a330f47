"""From Python annotations to JSON Schema, and from JSON values back to what the function expects.

Schemas are sent with every request, so they say no more than they must: no titles, no `$defs`, and
`X | None = None` shows as `X`, because leaving the argument out says the same.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

Schema = dict[str, Any]
Annotation = Any
"""Whatever may stand behind a colon in a signature; typing has no name for it before 3.15."""
Convert = Callable[[Any], Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What an annotation means: its schema, and how a valid JSON value becomes a Python one."""

    schema: Schema
    convert: Convert = lambda value: value


_SCALARS: dict[Any, Shape] = {
    str: Shape({"type": "string"}),
    int: Shape({"type": "integer"}, int),  # 5.0 is a valid JSON integer
    float: Shape({"type": "number"}),
    bool: Shape({"type": "boolean"}),
    type(None): Shape({"type": "null"}),
}


def shape_of(annotation: Annotation) -> Shape:
    """Return the shape of `annotation`; raise TypeError on what JSON cannot say.

    `Annotated[T, "text"]` adds a description, `Annotated[T, {"minimum": 1}]` schema keywords.
    """
    if annotation is Any:
        return Shape({})
    if make := _GENERICS.get(_origin(annotation) or annotation):
        return make(get_args(annotation))
    if annotation in _SCALARS:  # only now: an Annotated with a dict in it has no hash
        return _SCALARS[annotation]
    if typing.is_typeddict(annotation):
        return _object(annotation, _required_keys(annotation), dict)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        required = {f.name for f in dataclasses.fields(annotation) if _is_required(f)}
        return _object(annotation, required, annotation)
    message = f"{annotation!r} has no JSON Schema; use str, int, float, bool, list, dict, Literal"
    raise TypeError(message)


def without_none(annotation: Annotation) -> Annotation:
    """Return `X` for `X | None`, and anything else as it is."""
    if _origin(annotation) not in (Union, types.UnionType):
        return annotation
    rest = tuple(part for part in get_args(annotation) if part is not type(None))
    return Union[rest] if rest else annotation  # noqa: UP007 - built from a tuple


def _origin(annotation: Annotation) -> Any:  # noqa: ANN401 - typeshed would say ParamSpec
    return get_origin(annotation)


def _annotated(arguments: tuple[Any, ...]) -> Shape:
    shape = shape_of(arguments[0])
    schema = dict(shape.schema)
    for extra in arguments[1:]:
        if isinstance(extra, str):
            schema["description"] = extra
        elif isinstance(extra, Mapping):
            schema.update(extra)
    return Shape(schema, shape.convert)


def _literal(values: tuple[Any, ...]) -> Shape:
    schema: Schema = {"enum": list(values)}
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and (kind := kinds.pop()) in _SCALARS:
        schema = {**_SCALARS[kind].schema, **schema}
    return Shape(schema)


def _union(options: tuple[Any, ...]) -> Shape:
    schemas = [shape_of(option).schema for option in options]
    if all(schema.keys() == {"type"} for schema in schemas):  # the short form
        return Shape({"type": [schema["type"] for schema in schemas]})
    return Shape({"anyOf": schemas})


def _array(arguments: tuple[Any, ...]) -> Shape:
    if not arguments:
        return Shape({"type": "array"})
    item = shape_of(arguments[0])
    schema = {"type": "array", "items": item.schema}
    return Shape(schema, lambda values: [item.convert(value) for value in values])


def _mapping(arguments: tuple[Any, ...]) -> Shape:
    schema: Schema = {"type": "object"}
    if len(arguments) < 2 or arguments[1] is Any:  # noqa: PLR2004 - dict[key, value]
        return Shape(schema)
    if arguments[0] is not str:
        message = f"JSON object keys are strings, not {arguments[0]!r}"
        raise TypeError(message)
    value = shape_of(arguments[1])
    schema["additionalProperties"] = value.schema
    return Shape(schema, lambda items: {key: value.convert(each) for key, each in items.items()})


def _object(kind: Annotation, required: typing.Iterable[str], build: Callable[..., Any]) -> Shape:
    hints = get_type_hints(kind, include_extras=True)
    fields = {name: shape_of(_unwrapped(hint)) for name, hint in hints.items()}
    schema: Schema = {
        "type": "object",
        "properties": {name: field.schema for name, field in fields.items()},
        "required": [name for name in fields if name in set(required)],
        "additionalProperties": False,
    }

    def convert(value: Mapping[str, Any]) -> object:
        return build(**{name: fields[name].convert(each) for name, each in value.items()})

    return Shape(schema, convert)


def _unwrapped(hint: Annotation) -> Annotation:
    """Return `X` for the `Required[X]` and `NotRequired[X]` of a TypedDict."""
    if _origin(hint) in (typing.Required, typing.NotRequired):
        return get_args(hint)[0]
    return hint


def _required_keys(kind: Annotation) -> set[str]:
    """Return a TypedDict's required keys; it misses `NotRequired` where annotations are strings."""
    hints = get_type_hints(kind, include_extras=True)
    return {key for key in kind.__required_keys__ if _origin(hints[key]) is not typing.NotRequired}


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


_GENERICS: dict[Any, Callable[[tuple[Any, ...]], Shape]] = {
    Annotated: _annotated,
    Literal: _literal,
    Union: _union,
    types.UnionType: _union,
    list: _array,
    dict: _mapping,
    Mapping: _mapping,
}
