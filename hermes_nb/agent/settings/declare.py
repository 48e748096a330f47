'''Setting declarations: the annotated fields of a dataclass.

```python
@dataclass(frozen=True, slots=True, kw_only=True)
class CallTimes:
    shown: Annotated[int, Setting("call_times.shown", least=1)] = 5
    """Number of calls in the table."""
```

Loading, error messages, `%hermes config`, completion and the documentation tables are all derived
from the declaration. The type is `bool`, `int`, `float`, `str`, a `Literal` of words,
`tuple[str, ...]`, `Mapping[str, …]`, or one of these with `| None`. The string below the field
describes the setting.
'''

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields, replace
from functools import cache
from itertools import pairwise
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Literal, cast, get_args, get_origin, get_type_hints

from hermes_nb.core.messages import Json

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

MOST = 1e12
"""Upper bound for every numeric setting."""
ON, OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


@dataclass(frozen=True, slots=True)
class Setting:
    """A setting's declaration, in the annotation of its field."""

    key: str
    """The name for users. In config.yaml, a dot separates the group from the name within it."""
    foreign: str = ""
    """Hermes Agent's own key for it, if it has a different name there."""
    least: float = 0
    """The smallest valid number."""
    most: float = MOST
    """The largest valid number."""
    valid: str = ""
    """The valid values in words, or "" to derive the words from the type and the bounds."""
    read: Callable[[Json], object] | None = None
    """Converts a value, in place of the type; raises ValueError if the value is invalid."""
    theirs: Callable[[Json], Json] | None = None
    """Translates the value of Hermes Agent's own key."""
    file_only: bool = False
    """Whether only `hermes_nb:` in config.yaml counts, so that code in a kernel cannot set it."""
    secret: bool = False
    """Whether the value is never displayed."""
    kind: object = str
    """The field's type, without `| None`."""
    optional: bool = False
    """Whether the field's type includes None."""
    default: object = ""
    """The field's default."""
    place: tuple[type, str] | None = None
    """The dataclass and the name of the field."""

    @property
    def path(self) -> tuple[str, ...]:
        """The keys that lead to the value in config.yaml."""
        return tuple(self.key.split("."))

    @property
    def variable(self) -> str:
        """The environment variable."""
        return f"HERMES_NB_{'_'.join(self.path)}".upper()

    @property
    def foreign_path(self) -> tuple[str, ...]:
        """The path of Hermes Agent's key, which for grouped settings is the same by default."""
        grouped = "." in self.key and not self.file_only
        return tuple(self.foreign.split(".")) if self.foreign else self.path if grouped else ()

    @property
    def description(self) -> str:
        """The text below the field, on one line."""
        return _texts(self.place[0]).get(self.place[1], "") if self.place else ""

    @property
    def words(self) -> tuple[str, ...]:
        """The valid values, or () if they cannot be listed."""
        if self.kind is bool:
            return ("auto", "true", "false") if self.optional else ("true", "false")
        return tuple(filter(None, get_args(self.kind)))

    @property
    def expected(self) -> str:
        """The valid values in words."""
        if self.valid:
            return self.valid
        if self.words:
            *first, last = self.words
            return f"{', '.join(first)} or {last}"
        if self.kind in (int, float):
            if self.most < MOST:
                return f"{self.least:g} to {self.most:g}"
            return f"{'a whole' if self.kind is int else 'a'} number, {self.least:,g} or more"
        return "text" if self.kind is str else "a list" if self.kind is tuple else "a group of keys"

    def text(self, value: object) -> str:
        """Return a value as text for users."""
        if value is None:
            return "auto" if self.kind is bool else ""
        if isinstance(value, Mapping | tuple | list):
            return ", ".join(map(str, value))
        return str(value).lower() if isinstance(value, bool) else str(value)

    def converted(self, value: Json) -> object:
        """Convert a value from a source to the field's type; raise ValueError if it is invalid."""
        if self.read is not None:
            return self.read(value)
        if self.kind in (int, float):
            return self._number(value)
        if self.kind is tuple:
            return names(value)
        if self.kind is Mapping and isinstance(value, Mapping):
            return {str(key): each for key, each in value.items()}
        if isinstance(value, str | int | float):
            word = str(value).strip().lower()
            if self.kind is str and not isinstance(value, bool):
                return str(value)
            if self.kind is bool and self.optional and word == "auto":
                return None
            if self.kind is bool and word in (*ON, *OFF):
                return word in ON
            word = "off" if word in OFF else word  # YAML reads a bare `off` as false
            if word in get_args(self.kind):
                return word
        raise ValueError(self.expected)

    def _number(self, value: Json) -> float:
        try:
            number = float("nan") if isinstance(value, bool) else float(value)
        except OverflowError:
            number = float("inf")
        except (TypeError, ValueError):
            number = float("nan")
        if number > MOST == self.most:
            raise ValueError("a trillion or less")
        if not self.least <= number <= self.most or (self.kind is int and number % 1):
            raise ValueError(self.expected)
        return int(number) if self.kind is int else number


@cache
def declared(group: type[DataclassInstance]) -> Mapping[str, Setting]:
    """Return the settings that a dataclass declares, by field.

    Raises:
        TypeError: a setting has a type that is not supported
    """
    found = {}
    hints = get_type_hints(group, include_extras=True)
    for each in fields(group):
        if get_origin(hint := hints[each.name]) is not Annotated:
            continue
        written, setting = get_args(hint)
        members = get_args(written) if NoneType in get_args(written) else (written,)
        kind = next(member for member in members if member is not NoneType)
        if (origin := get_origin(kind)) not in (None, Literal):
            kind = origin
        if kind not in (bool, int, float, str, tuple, Mapping) and origin is not Literal:
            raise TypeError(
                f"{group.__name__}.{each.name}: {written} is not a type that a setting can have"
            )
        make = each.default_factory
        found[each.name] = replace(
            setting,
            kind=kind,
            optional=len(members) > 1,
            default=each.default if make is MISSING else make(),
            place=(group, each.name),
        )
    return found


def names(value: Json) -> tuple[str, ...]:
    """Return names from a list or comma-separated text; raise ValueError for anything else."""
    given = value.split(",") if isinstance(value, str) else value
    if not isinstance(given, list | tuple) or any(isinstance(each, dict | list) for each in given):
        raise ValueError("a list")
    return tuple(name for each in given if (name := str(each).strip()))


@cache
def _texts(group: type) -> Mapping[str, str]:
    """Return the text below each field of a class, or {} if its source is not installed."""
    try:
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(group))).body
    except (OSError, TypeError):
        return {}
    return {
        ast.unparse(each.target): " ".join(str(below.value.value).split())
        for each, below in pairwise(cast("ast.ClassDef", node).body)
        if isinstance(each, ast.AnnAssign)
        and isinstance(below, ast.Expr)
        and isinstance(below.value, ast.Constant)
    }
