"""`@tool`: turn a typed function with a docstring into a tool for the model.

The schema is built from the signature, the description from the docstring's first paragraph, and
the descriptions of arguments from its `Args:` section. A first parameter annotated `ToolContext`
receives the context and is not part of the schema. Every request contains the schemas, so they are
minimal: no titles, no `$defs`, and `X | None = None` appears as `X`, because omitting the argument
means the same.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import textwrap
import types
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import (
    Annotated,
    Any,
    Literal,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Arguments, Content, Risk, Tool, ToolContext, ToolOutput
from hermes_nb.tools.arguments import Checker, Convert, Function, calling, converted

Schema = dict[str, Json]
Annotation: TypeAlias = Any
"""Any parameter annotation; typing has no type for it before 3.15."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """What an annotation means for a tool: its schema, and how values are converted."""

    schema: Schema
    """Its JSON Schema."""
    convert: Convert = None
    """Converts a valid JSON value to the Python value; None if unchanged."""


_SCALARS: dict[Annotation, Shape] = {
    str: Shape({"type": "string"}),
    int: Shape({"type": "integer"}, int),  # 5.0 is a valid JSON integer
    float: Shape({"type": "number"}),
    bool: Shape({"type": "boolean"}),
    type(None): Shape({"type": "null"}),
}


def shape_of(annotation: Annotation) -> Shape:
    """Return the shape of `annotation`; raise TypeError if JSON Schema cannot express it.

    `Annotated[T, "text"]` adds a description, `Annotated[T, {"minimum": 1}]` schema keywords.
    """
    if annotation is Any:
        return Shape({})
    if make := _GENERICS.get(_origin(annotation) or annotation):
        return make(get_args(annotation))
    if annotation in _SCALARS:  # not earlier: an Annotated with a dict in it is not hashable
        return _SCALARS[annotation]
    if typing.is_typeddict(annotation):
        return _object(annotation, _required_keys(annotation), dict)
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        required = {f.name for f in dataclasses.fields(annotation) if _is_required(f)}
        return _object(annotation, required, annotation)
    message = f"{annotation!r} has no JSON Schema; use str, int, float, bool, list, dict, Literal"
    raise TypeError(message)


def without_none(annotation: Annotation) -> Annotation:
    """Return `X` for `X | None`, and any other annotation unchanged."""
    if _origin(annotation) not in (Union, types.UnionType):
        return annotation
    rest = tuple(part for part in get_args(annotation) if part is not type(None))
    return Union[rest] if rest else annotation  # noqa: UP007 - built from a tuple


def _origin(annotation: Annotation) -> Annotation:
    return get_origin(annotation)


def _annotated(arguments: tuple[Annotation, ...]) -> Shape:
    shape = shape_of(arguments[0])
    schema = dict(shape.schema)
    for extra in arguments[1:]:
        if isinstance(extra, str):
            schema["description"] = extra
        elif isinstance(extra, Mapping):
            schema.update(extra)
    return Shape(schema, shape.convert)


def _literal(values: tuple[Annotation, ...]) -> Shape:
    schema: Schema = {"enum": list(values)}
    kinds = {type(value) for value in values}
    if len(kinds) == 1 and (kind := kinds.pop()) in _SCALARS:
        schema = {**_SCALARS[kind].schema, **schema}
    return Shape(schema)


def _union(options: tuple[Annotation, ...]) -> Shape:
    schemas = [shape_of(option).schema for option in options]
    if all(schema.keys() == {"type"} for schema in schemas):  # the short form
        return Shape({"type": [schema["type"] for schema in schemas]})
    return Shape({"anyOf": schemas})


def _array(arguments: tuple[Annotation, ...]) -> Shape:
    if not arguments:
        return Shape({"type": "array"})
    item = shape_of(arguments[0])
    schema = {"type": "array", "items": item.schema}
    return Shape(schema, lambda values: [converted(value, item.convert) for value in values])


def _mapping(arguments: tuple[Annotation, ...]) -> Shape:
    schema: Schema = {"type": "object"}
    if not arguments[1:] or arguments[1] is Any:
        return Shape(schema)
    if arguments[0] is not str:
        raise TypeError(f"JSON object keys are strings, not {arguments[0]!r}")
    value = shape_of(arguments[1])
    schema["additionalProperties"] = value.schema
    return Shape(
        schema, lambda items: {key: converted(each, value.convert) for key, each in items.items()}
    )


def _object(kind: Annotation, required: typing.Iterable[str], build: Function) -> Shape:
    hints = get_type_hints(kind, include_extras=True)
    fields = {name: shape_of(_unwrapped(hint)) for name, hint in hints.items()}
    schema: Schema = {
        "type": "object",
        "properties": {name: field.schema for name, field in fields.items()},
        "required": [name for name in fields if name in set(required)],
        "additionalProperties": False,
    }

    def convert(value: Mapping[str, Json]) -> object:
        return build(**{key: converted(each, fields[key].convert) for key, each in value.items()})

    return Shape(schema, convert)


def _unwrapped(hint: Annotation) -> Annotation:
    """Return `X` for `Required[X]` and `NotRequired[X]` in a TypedDict."""
    if _origin(hint) in (typing.Required, typing.NotRequired):
        return get_args(hint)[0]
    return hint


def _required_keys(kind: Annotation) -> set[str]:
    """Return a TypedDict's required keys, excluding `NotRequired` in string annotations."""
    hints = get_type_hints(kind, include_extras=True)
    return {key for key in kind.__required_keys__ if _origin(hints[key]) is not typing.NotRequired}


def _is_required(field: dataclasses.Field[Any]) -> bool:
    missing = dataclasses.MISSING
    return field.default is missing and field.default_factory is missing


_GENERICS: dict[Annotation, Callable[[tuple[Annotation, ...]], Shape]] = {
    Annotated: _annotated,
    Literal: _literal,
    Union: _union,
    types.UnionType: _union,
    list: _array,
    dict: _mapping,
    Mapping: _mapping,
}


_ARGUMENT = re.compile(r"(\w+)(?: *\([^)]*\))?: *(.*)")
_SECTION = re.compile(r"(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*$")


@overload
def tool(function: Function, /) -> Tool: ...
@overload
def tool(
    *,
    name: str = "",
    toolset: str = "",
    risk: Risk = Risk.READ,
    paths: Iterable[str] = (),
    root: Path | None = None,
    exclusive: bool = False,
    cap: int | None = None,
    available: Callable[[], str] = str,
    origin: Callable[[Mapping[str, Json]], str] | None = None,
    risk_of: Callable[[Mapping[str, Json]], Risk] | None = None,
    describe: Callable[[Mapping[str, Json]], str] | None = None,
    preview: Callable[..., Awaitable[str | Content]] | None = None,
    result: Callable[..., Awaitable[str]] | None = None,
    scope: Callable[[Arguments], str] | None = None,
    known: Callable[[ToolContext, Arguments], Awaitable[ToolOutput | None]] | None = None,
    runner: str = "",
    joint: bool = False,
) -> Callable[[Function], Tool]: ...
def tool(
    function: Function | None = None,
    /,
    *,
    name: str = "",
    **facts: Json,
) -> Tool | Callable[[Function], Tool]:
    """Create a `Tool` from a function; the keywords are fields of `Tool`.

    Raises TypeError if JSON Schema cannot express the signature.
    """

    def make(function: Function) -> Tool:
        facts["paths"] = tuple(facts.get("paths", ()))
        return _make(function, name or function.__name__, facts)

    return make if function is None else make(function)


def with_earlier_names(made: Tool, names: Mapping[str, str]) -> Tool:
    """Return a tool that also accepts arguments by their earlier names, which recorded calls use.

    `names` maps each earlier name to the current one, at any depth.
    """

    def current(value: Json) -> Json:
        if isinstance(value, Mapping):
            return {names.get(key, key): current(item) for key, item in value.items()}
        return [current(item) for item in value] if isinstance(value, list) else value

    return with_arguments(made, current)


def with_arguments(made: Tool, current: Callable[[Arguments], Arguments]) -> Tool:
    """Return a tool whose arguments are converted by `current` before they are checked and used."""

    async def run(context: ToolContext, arguments: Arguments) -> object:
        return await made.run(context, current(arguments))

    return replace(made, run=run, check=lambda arguments: made.check(current(arguments)))


def as_tool(thing: Tool | Function) -> Tool:
    """Return a tool unchanged, or make one from a function; raise TypeError otherwise."""
    if not (isinstance(thing, Tool) or hasattr(thing, "__name__")):
        raise TypeError(f"{one_line(repr(thing), 60)} is neither a tool nor a function")
    return thing if isinstance(thing, Tool) else tool(thing)


@dataclass(frozen=True, slots=True)
class _Parameter:
    """A tool parameter. If it is `optional`, it has a default, which may be None."""

    shape: Shape
    optional: bool
    default: Any

    @property
    def null_means_absent(self) -> bool:
        """Whether an explicit null means the same as omitting the argument."""
        return self.optional and self.default is None


def _make(function: Function, name: str, facts: Mapping[str, Json]) -> Tool:
    wants_context, parameters = _parameters(function)
    description, notes = _documentation(function)
    schema: dict[str, Json] = {
        "type": "object",
        "properties": {key: _property(p, notes.get(key, "")) for key, p in parameters.items()},
        "required": [key for key, parameter in parameters.items() if not parameter.optional],
        "additionalProperties": False,
    }
    nullable = frozenset(key for key, p in parameters.items() if p.null_means_absent)
    return Tool(
        name=name,
        description=description,
        parameters=schema,
        run=calling(
            function,
            {key: parameter.shape.convert for key, parameter in parameters.items()},
            nullable,
            wants_context=wants_context,
        ),
        check=Checker(name, schema, nullable),
        **facts,
    )


def _parameters(function: Function) -> tuple[bool, dict[str, _Parameter]]:
    """Return whether the function takes the context, and the parameters for the model."""
    hints = get_type_hints(function, include_extras=True)
    wants_context = False
    parameters: dict[str, _Parameter] = {}
    for position, (name, each) in enumerate(inspect.signature(function).parameters.items()):
        annotation = hints.get(name, str)
        if position == 0 and annotation is ToolContext:
            wants_context = True
            continue
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            raise TypeError(
                f"{function.__name__}() takes {each}; a tool's parameters must be named"
            )
        optional = each.default is not each.empty
        if optional and each.default is None:
            annotation = without_none(annotation)
        parameters[name] = _Parameter(shape_of(annotation), optional, each.default)
    return wants_context, parameters


def _property(parameter: _Parameter, note: str) -> dict[str, Json]:
    schema = dict(parameter.shape.schema)
    if note:
        schema["description"] = note
    if parameter.optional and parameter.default is not None:
        schema["default"] = parameter.default
    return schema


def _documentation(function: Function) -> tuple[str, dict[str, str]]:
    """Return the docstring's first paragraph on one line, and its notes on the arguments."""
    lines = _docstring(function).splitlines()
    first: list[str] = []
    for line in lines:
        if not line.strip() or _SECTION.match(line):
            break
        first.append(line.strip())
    return " ".join(first), _argument_notes(lines)


def _docstring(function: Function) -> str:
    """Return a docstring, read from the source if `-OO` has removed it."""
    if function.__doc__ is None and sys.flags.optimize > 1:
        with suppress(OSError, TypeError, SyntaxError):
            (node,) = ast.parse(textwrap.dedent(inspect.getsource(function))).body
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                return ast.get_docstring(node) or ""
    return inspect.cleandoc(function.__doc__ or "")


def _argument_notes(lines: Iterable[str]) -> dict[str, str]:
    notes: dict[str, str] = {}
    inside, indent, current = False, 0, ""
    for line in lines:
        text = line.strip()
        if not line.startswith(" ") and text:
            section = _SECTION.match(line)
            inside, indent = bool(section and section[1].startswith("Arg")), 0
            continue
        if not inside or not text:
            continue
        depth = len(line) - len(line.lstrip())
        indent = indent or depth
        if depth <= indent and (match := _ARGUMENT.fullmatch(text)):
            current, notes[match[1]] = match[1], match[2]
        elif current:
            notes[current] = f"{notes[current]} {text}".strip()
    return notes
