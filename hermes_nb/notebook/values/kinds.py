"""What can be said of a value for next to nothing: its type, its shape, its columns.

No function here runs code of the value's own: nothing is imported, no `__repr__` called, no
`__len__` of an unknown type, no lazy or remote object made to compute. Libraries are looked up in
`sys.modules`: what is not loaded has no values.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import Any

from hermes_nb.core.text import one_line
from hermes_nb.safety.visible import visible

Foreign = Any
"""A value of a library that is not ours to import: the shell, a table, a stream."""

COLUMNS = 40
"""Columns that a summary names; a table may have thousands."""

_TABLES = (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table"))
_SERIES = (("pandas", "Series"), ("pandas", "Index"), ("polars", "Series"))
_ARRAYS = (("numpy", "ndarray"),)
_LIBRARIES = frozenset({"pandas", "polars", "pyarrow", "numpy"})
_TENSOR_LIBRARIES = frozenset({"torch", "tensorflow", "jax", "jaxlib", "cupy", "mlx", "scipy"})
_ASKED = frozenset(
    "shape columns dtypes dtype index axes schema ndim size __len__ __iter__ __getattr__"
    " __getattribute__".split()
)
"""What is asked of a table, a column or an array; a class of the user's may have its own."""
_SIZED: tuple[type, ...] = (list, dict, tuple, set, frozenset, deque, bytearray, range)


def library(value: object) -> str:
    """Return the name of the package that the value's type comes from."""
    return str(told(type(value), "__module__")).partition(".")[0]


def told(kind: type, name: str) -> object:
    """Return what a class says of itself, not what its metaclass would make of the question."""
    return type.__getattribute__(kind, name)


def type_name(value: object) -> str:
    """Return the type's name, with its package unless it is built in or the user's own."""
    kind = type(value)
    if issubclass(kind, type):
        return "class"
    package = library(value)
    name = one_line(str(told(kind, "__qualname__")), 80)
    return name if package in ("builtins", "__main__") else f"{package} {name}"


def overridden(value: object) -> str:
    """Return what a subclass of a table, column or array made its own of what would be asked."""
    for kind in told(type(value), "__mro__"):  # type: ignore[attr-defined]
        own = _ASKED & set(told(kind, "__dict__"))  # type: ignore[call-overload]
        if str(told(kind, "__module__")).partition(".")[0] in _LIBRARIES:
            return ""
        if own:
            return str(min(own))
    return ""


def is_table(value: object) -> bool:
    """Say whether the value is a table that is held in memory."""
    return _is_a(value, _TABLES)


def is_series(value: object) -> bool:
    """Say whether the value is one column of a table."""
    return _is_a(value, _SERIES)


def is_array(value: object) -> bool:
    """Say whether the value is a numpy array."""
    return _is_a(value, _ARRAYS)


def is_tensor(value: object) -> bool:
    """Say whether the value is an array of a library that may keep it on a device."""
    if issubclass(type(value), type) or library(value) not in _TENSOR_LIBRARIES:
        return False
    return _dimensions(value) is not None


def shape_of(value: object) -> str:
    """Return e.g. `344 x 7`, `12 items` or `51 characters`; nothing where it cannot be known."""
    kind = type(value)
    if issubclass(kind, str):
        return f"{str.__len__(value):,} characters"  # type: ignore[arg-type]
    if issubclass(kind, bytes):
        return f"{bytes.__len__(value):,} bytes"  # type: ignore[arg-type]
    for base in _SIZED:
        if issubclass(kind, base):  # the base's own length: a subclass may compute its
            return _items(base.__len__(value))  # type: ignore[attr-defined]
    if is_tensor(value) or (_is_a(value, _TABLES + _SERIES + _ARRAYS) and not overridden(value)):
        dimensions = _dimensions(value)
        if dimensions is not None:
            return _product(dimensions)
    return ""


def columns_of(value: object) -> Mapping[str, str] | None:
    """Return a table's column names and dtypes, the first `COLUMNS` of them; None for the rest."""
    if not is_table(value) or overridden(value):
        return None
    table: Foreign = value
    try:
        if library(value) == "pyarrow":
            names, dtypes = table.schema.names, table.schema.types
        else:
            names, dtypes = table.columns, table.dtypes
        pairs = islice(zip(names, dtypes, strict=False), COLUMNS)
        return {visible(one_line(str(name), 60)): str(dtype) for name, dtype in pairs}
    except Exception:  # noqa: BLE001 - a subclass may have its own idea of a column
        return None


def _is_a(value: object, classes: tuple[tuple[str, str], ...]) -> bool:
    # The type is asked, not the value: a proxy's `__class__` would run its code.
    kind = type(value)
    for module, name in classes:
        known = getattr(sys.modules.get(module), name, None)
        if isinstance(known, type) and issubclass(kind, known):
            return True
    return False


def _dimensions(value: object) -> tuple[int, ...] | None:
    try:
        shape = getattr(value, "shape", None)
        return None if shape is None else tuple(int(n) for n in shape)
    except Exception:  # noqa: BLE001 - lazy shapes raise all sorts of things
        return None


def _product(dimensions: tuple[int, ...]) -> str:
    if len(dimensions) == 1:
        return _items(dimensions[0])
    return " x ".join(map(str, dimensions)) or "scalar"


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count:,} items"
