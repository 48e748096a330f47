"""The user's variables: their names and descriptions.

`summaries` is cheap enough for every turn and does not run the values' own code.
`describe` inspects one value within a character budget and a time limit. Secrets are not shown.
"""

from __future__ import annotations

import inspect
import re
import types
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Json
from hermes_nb.core.text import head_tail, one_line
from hermes_nb.notebook.interrupt import TimeLimit, user_code
from hermes_nb.notebook.previews import (
    HIDDEN,
    ITEMS,
    columns_of,
    describe_array,
    describe_series,
    describe_table,
    describe_tensor,
    foreign,
    hides_column,
    is_array,
    is_series,
    is_table,
    is_tensor,
    library,
    names_a_secret,
    overridden,
    own_attribute,
    preview,
    shape_of,
    type_name,
)
from hermes_nb.notebook.shell import Foreign, Shell
from hermes_nb.safety.redact import STUB, redact

if TYPE_CHECKING:
    from hermes_nb.core.protocols import Variable

BUDGET = 2_000
"""Characters of a description: about 570 tokens."""
SECONDS = 2.0
"""Time limit for describing a value; counting a large table's missing values takes longest."""

TEXTS, TEXT_ROWS = 50, 100_000
"""Most different texts of a column, and the rows that are searched for them."""
_TEXT = ("object", "str", "string", "category", "large_string[pyarrow]")

MOST_HIDDEN = 2_000
"""Maximum number of values to search for secrets."""
_SHORTEST, _DEPTH = 4, 4
_PLAIN = (bool, int, float, complex, type(None))
_BRIEF = 60
_TYPES = 4


def user_variables(
    namespace: Mapping[str, Json], hidden: Mapping[str, Json] | None = None
) -> dict[str, Json]:
    """Return the user's variables, excluding IPython's names, private names, modules and imports.

    `hidden` is the shell's `user_ns_hidden`; a name in it counts only once the user has rebound it.
    """
    hidden = hidden or {}
    missing = object()
    return {
        name: value
        for name, value in list(namespace.items())
        if not name.startswith("_")
        and hidden.get(name, missing) is not value
        and not _imported(value)
    }


def summaries(
    namespace: Mapping[str, Json], hidden: Mapping[str, Json] | None = None
) -> list[Variable]:
    """Return the type, shape and columns of the user's variables, in order of creation."""
    from hermes_nb.core.protocols import Variable  # imported lazily: completion does not need it

    return [
        Variable(
            name=name,
            type=type_name(value),
            shape=shape_of(value),
            columns=columns_of(value),
            values=partial(_texts, namespace, name),  # does not keep the table in memory
        )
        for name, value in user_variables(namespace, hidden).items()
    ]


def _texts(namespace: Mapping[str, Json], name: str) -> dict[str, list[str]]:
    """Return the texts in each column of a pandas table that has at most `TEXTS` different ones."""
    table: Foreign = namespace.get(name)
    if not is_table(table) or overridden(table) or library(table) != "pandas":
        return {}
    found: dict[str, list[str]] = {}
    with suppress(Exception, TimeLimit), user_code(SECONDS):  # a column may hold any objects
        for column in columns_of(table) or ():
            if column not in table.columns or str(table[column].dtype) not in _TEXT:
                continue
            texts = table[column].iloc[:TEXT_ROWS].dropna().unique()
            if len(texts) <= TEXTS and not hides_column(column, list(texts)):
                found[column] = [text for text in texts if type(text) is str]
    return found


def variables_of(shell: Shell) -> list[Variable]:
    """Return summaries of the user's variables in a kernel."""
    return summaries(shell.user_ns, shell.user_ns_hidden)


def describe(name: str, value: object, *, budget: int = BUDGET) -> str:
    """Return a description of `value` in about `budget` characters, for `inspect_variable`.

    If the user interrupts, KeyboardInterrupt is raised.
    """
    shape = shape_of(value)
    head = f"{name}: {type_name(value)}{f', {shape}' if shape else ''}"
    if names_a_secret(name, value):
        return f"{head} {HIDDEN}"
    lines = [head]
    try:
        with user_code(SECONDS):
            lines.extend(_body(value))
    except TimeLimit:
        lines.append(f"(the rest took longer than {SECONDS:g} s)")
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a value may raise anything
        lines.append(f"(the rest cannot be shown: {type(error).__name__}: {one_line(str(error))})")
    return head_tail(redact(visible("\n".join(lines), lines=True)), budget)


def brief(variable: Variable, value: object) -> str:
    """Describe a variable briefly: its value if short and plain, or its type and shape."""
    plain = type(value) in _PLAIN or (type(value) is str and len(value) <= _BRIEF)
    if plain and not names_a_secret(variable.name, value):
        return f"{variable.name} = {redact(preview(value))}"
    shape = f", {variable.shape}" if variable.shape else ""
    return f"{variable.name}: {variable.type}{shape}"


def without_hidden(text: str, shell: Shell) -> str:
    """Return an output without secrets: those of `redact`, and texts that `describe` hides.

    The latter are the values of variables and dict keys whose name suggests a secret.
    """
    found = sorted(set(_hidden(shell.user_ns)), key=len, reverse=True)
    for secret in found:
        if secret in text:
            text = re.sub(rf"(?<!\w){re.escape(secret)}(?!\w)", STUB, text)
    return redact(text)


def _hidden(namespace: Mapping[str, Foreign]) -> Iterator[str]:
    """Yield the hidden texts, down to the fourth level inside dicts and lists."""
    queue = [(str(name), value, 0) for name, value in list(namespace.items())]
    for name, value, depth in queue:
        kind = type(value)
        if kind is str and len(value) >= _SHORTEST and names_a_secret(name, value):
            yield value
        elif len(queue) < MOST_HIDDEN and depth < _DEPTH and not name.startswith("_"):
            if kind is dict:
                items = list(islice(value.items(), MOST_HIDDEN))
                queue += [(str(k), v, depth + 1) for k, v in items if type(k) is str]
            elif kind in (list, tuple):
                queue += [(name, each, depth + 1) for each in value[:MOST_HIDDEN]]


def _imported(value: object) -> bool:
    """Return whether a value is a module, or a function or class from one."""
    kind = type(value)  # a proxy's `__class__` would run its code
    if issubclass(kind, types.ModuleType):
        return True
    if not issubclass(kind, type | types.FunctionType | types.BuiltinFunctionType):
        return False
    if issubclass(kind, type):
        return own_attribute(value, "__module__") != "__main__"  # type: ignore[arg-type]
    return getattr(value, "__module__", None) != "__main__"


def _body(value: object) -> Iterator[str]:
    for applies, describe_ in _DESCRIBERS:
        if applies(value):
            yield from describe_(value)
            return
    yield from _object(value)


def _plain(value: object) -> Iterator[str]:
    yield preview(value, BUDGET)


def _mapping(value: Foreign) -> Iterator[str]:
    items = list(zip(range(ITEMS + 4), dict.items(value), strict=False))
    if items:
        yield f"values: {_types(item for _, (_, item) in items)}"
    for _, (key, item) in items:
        secret = isinstance(key, str) and names_a_secret(key, item)
        yield f"  {preview(key, 60)}: {HIDDEN if secret else preview(item, 150)}"
    if (more := dict.__len__(value) - len(items)) > 0:
        yield f"  … {more:,} more"


def _sequence(value: Foreign) -> Iterator[str]:
    items = [item for item, _ in zip(value, range(ITEMS + 4), strict=False)]
    if items:
        yield f"items: {_types(items)}"
    if all(type(item) in _PLAIN for item in items):
        yield preview(value, BUDGET)
        return
    for item in items:
        yield f"  {preview(item, 150)}"
    if (more := len(value) - len(items)) > 0:
        yield f"  … {more:,} more"


def _types(items: Foreign) -> str:
    names = list(dict.fromkeys(type_name(item) for item in items))
    return ", ".join([*names[:_TYPES], *(["…"] if len(names) > _TYPES else [])])


def _callable(value: Foreign) -> Iterator[str]:
    name = getattr(value, "__name__", "?")
    with suppress(TypeError, ValueError):
        yield one_line(f"{name}{inspect.signature(value)}", 300)
    yield from _doc(value)
    if isinstance(value, type):
        names = [n for n in vars(value) if not n.startswith("_")]
        if names:
            yield one_line(f"members: {', '.join(names)}", 400)


def _doc(value: object) -> Iterator[str]:
    doc = getattr(value, "__doc__", None)
    if isinstance(doc, str) and doc.strip():
        yield one_line(doc.strip().splitlines()[0], 200)


def _generator(value: Foreign) -> Iterator[str]:
    yield f"{one_line(value.__qualname__, 100)}, not consumed"


def _object(value: object) -> Iterator[str]:
    yield foreign(value, 600)
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:
        return
    for name, item in list(attributes.items())[: ITEMS * 2]:
        if isinstance(name, str) and not name.startswith("_"):
            yield f"  .{name}: {HIDDEN if names_a_secret(name, item) else preview(item, 120)}"


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: issubclass(type(value), kinds)


_DESCRIBERS: tuple[tuple[Callable[[object], bool], Callable[[Foreign], Iterator[str]]], ...] = (
    (is_table, describe_table),
    (is_series, describe_series),
    (is_array, describe_array),
    (is_tensor, describe_tensor),
    (_is(str, bytes, bytearray, range, *_PLAIN), _plain),
    (_is(dict), _mapping),
    (lambda v: type(v) in (list, tuple, set, frozenset), _sequence),
    (_is(list, tuple, set, frozenset), _plain),
    (_is(types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), _generator),
    (_is(types.ModuleType), _doc),
    (_is(type, types.FunctionType, types.BuiltinFunctionType, types.MethodType), _callable),
)
