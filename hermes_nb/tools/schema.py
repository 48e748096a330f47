"""`@tool`: a typed function with a docstring becomes a tool the model may call.

The signature gives the schema, the docstring's first paragraph the description, its `Args:`
section the arguments' descriptions. A first parameter annotated `ToolContext` is handed in and is
not part of the schema. An async function gives an async `run`, a plain one a plain `run`.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints, overload

from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Risk, Run, Tool, ToolContext
from hermes_nb.tools.annotations import Shape, shape_of, without_none
from hermes_nb.tools.arguments import Checker

_ARGUMENT = re.compile(r"(\w+)(?: *\([^)]*\))?: *(.*)")
_SECTION = re.compile(r"(Args|Arguments|Returns|Raises|Yields|Examples?|Notes?):\s*$")


@overload
def tool(function: Callable[..., Any], /) -> Tool: ...
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
    available: Callable[[], str] = lambda: "",
    origin: Callable[[Mapping[str, Any]], str] | None = None,
    risk_of: Callable[[Mapping[str, Any]], Risk] | None = None,
    describe: Callable[[Mapping[str, Any]], str] | None = None,
) -> Callable[[Callable[..., Any]], Tool]: ...
def tool(
    function: Callable[..., Any] | None = None,
    /,
    *,
    name: str = "",
    **facts: Any,
) -> Tool | Callable[[Callable[..., Any]], Tool]:
    """Make a `Tool` of a function; the keywords are those of `Tool`.

    Raises TypeError when the signature cannot be told in JSON Schema.
    """

    def make(function: Callable[..., Any]) -> Tool:
        facts["paths"] = tuple(facts.get("paths", ()))
        return _make(function, name or function.__name__, facts)

    return make if function is None else make(function)


def as_tool(thing: Tool | Callable[..., Any]) -> Tool:
    """Return a tool as it is, and make one of a plain function; raise TypeError for the rest."""
    if not (isinstance(thing, Tool) or hasattr(thing, "__name__")):
        message = f"{one_line(repr(thing), 60)} is neither a tool nor a function"
        raise TypeError(message)
    return thing if isinstance(thing, Tool) else tool(thing)


@dataclass(frozen=True, slots=True)
class _Parameter:
    """One argument of a tool; `optional` ones have a default, which may be None."""

    shape: Shape
    optional: bool
    default: Any

    @property
    def null_means_absent(self) -> bool:
        """Whether an explicit null says no more than leaving the argument out."""
        return self.optional and self.default is None


def _make(function: Callable[..., Any], name: str, facts: Mapping[str, Any]) -> Tool:
    wants_context, parameters = _parameters(function)
    description, notes = _documentation(function)
    schema: dict[str, Any] = {
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
        run=_run(function, parameters, wants_context=wants_context),
        check=Checker(name, schema, nullable),
        **facts,
    )


def _parameters(function: Callable[..., Any]) -> tuple[bool, dict[str, _Parameter]]:
    """Return whether the context is wanted, and the parameters that the model fills in."""
    hints = get_type_hints(function, include_extras=True)
    wants_context = False
    parameters: dict[str, _Parameter] = {}
    for position, (name, each) in enumerate(inspect.signature(function).parameters.items()):
        annotation = hints.get(name, str)
        if position == 0 and annotation is ToolContext:
            wants_context = True
            continue
        if each.kind not in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY):
            message = f"{function.__name__}() takes {each}; a tool's arguments have names"
            raise TypeError(message)
        optional = each.default is not each.empty
        if optional and each.default is None:
            annotation = without_none(annotation)
        parameters[name] = _Parameter(shape_of(annotation), optional, each.default)
    return wants_context, parameters


def _property(parameter: _Parameter, note: str) -> dict[str, Any]:
    schema = dict(parameter.shape.schema)
    if note:
        schema["description"] = note
    if parameter.optional and parameter.default is not None:
        schema["default"] = parameter.default
    return schema


def _run(
    function: Callable[..., Any], parameters: Mapping[str, _Parameter], *, wants_context: bool
) -> Run:
    """Return the function as `run(context, arguments)`, async exactly if the function is."""

    def start(context: ToolContext, arguments: Mapping[str, Any]) -> Any:  # noqa: ANN401
        keywords = {
            key: parameters[key].shape.convert(value)
            for key, value in arguments.items()
            if value is not None or not parameters[key].null_means_absent
        }
        return function(context, **keywords) if wants_context else function(**keywords)

    async def start_async(context: ToolContext, arguments: Mapping[str, Any]) -> object:
        return await start(context, arguments)

    return start_async if inspect.iscoroutinefunction(function) else start


def _documentation(function: Callable[..., Any]) -> tuple[str, dict[str, str]]:
    """Return the docstring's first paragraph on one line, and its notes on the arguments."""
    lines = _docstring(function).splitlines()
    first: list[str] = []
    for line in lines:
        if not line.strip() or _SECTION.match(line):
            break
        first.append(line.strip())
    return " ".join(first), _argument_notes(lines)


def _docstring(function: Callable[..., Any]) -> str:
    """Return a docstring; the source still has the one that `-OO` left out."""
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
