"""Describe a value cheaply: its type, shape and columns, and a preview of limited length.

Types, shapes and columns are read without running the value's own code: nothing is imported, no
`__repr__` is called, no `__len__` of an unknown type, and no lazy or remote object computes
anything. Libraries are looked up in `sys.modules`: a library that is not loaded has no values.
Containers are read item by item, never printed as a whole. A potentially harmful `__repr__` is only
called with a time limit. The descriptions of tables, columns, arrays and tensors call their
methods, which may be slow or raise, so `variables.describe` limits their time.
"""

from __future__ import annotations

import base64
import re
import sys
import unicodedata
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

from hermes_nb.core.escapes import visible
from hermes_nb.core.json_values import clean
from hermes_nb.core.messages import Json
from hermes_nb.core.text import one_line
from hermes_nb.notebook.interrupt import has_time_limit
from hermes_nb.notebook.shell import Foreign

COLUMNS = 40
"""Maximum columns in a summary; a table may have thousands."""

_TABLES = (("pandas", "DataFrame"), ("polars", "DataFrame"), ("pyarrow", "Table"))
_SERIES = (("pandas", "Series"), ("pandas", "Index"), ("polars", "Series"))
_ARRAYS = (("numpy", "ndarray"),)
_LIBRARIES = frozenset({"pandas", "polars", "pyarrow", "numpy"})
_TENSOR_LIBRARIES = frozenset({"torch", "tensorflow", "jax", "jaxlib", "cupy", "mlx", "scipy"})
_ASKED = frozenset(
    "shape columns dtypes dtype index axes schema ndim size __len__ __iter__ __getattr__"
    " __getattribute__".split()
)
"""Attributes read from a table, column or array; a subclass may redefine them."""
_SIZED: tuple[type, ...] = (list, dict, tuple, set, frozenset, deque, bytearray, range)


def library(value: object) -> str:
    """Return the name of the package that defines the value's type."""
    return str(own_attribute(type(value), "__module__")).partition(".")[0]


def own_attribute(kind: type, name: str) -> object:
    """Return an attribute that a class itself defines, bypassing its metaclass."""
    return type.__getattribute__(kind, name)


def type_name(value: object) -> str:
    """Return the type's name, with its package unless it is built in or the user's own."""
    kind = type(value)
    if issubclass(kind, type):
        return "class"
    package = library(value)
    name = one_line(str(own_attribute(kind, "__qualname__")), 80)
    return name if package in ("builtins", "__main__") else f"{package} {name}"


def overridden(value: object) -> str:
    """Return an attribute in `_ASKED` that a subclass redefines, or ""."""
    for kind in own_attribute(type(value), "__mro__"):  # type: ignore[attr-defined]
        if str(own_attribute(kind, "__module__")).partition(".")[0] in _LIBRARIES:
            return ""
        if own := _ASKED & set(own_attribute(kind, "__dict__")):  # type: ignore[call-overload]
            return str(min(own))
    return ""


def is_table(value: object) -> bool:
    """Return whether the value is an in-memory table."""
    return _is_a(value, _TABLES)


def is_series(value: object) -> bool:
    """Return whether the value is one column of a table."""
    return _is_a(value, _SERIES)


def is_array(value: object) -> bool:
    """Return whether the value is a numpy array."""
    return _is_a(value, _ARRAYS)


def is_tensor(value: object) -> bool:
    """Return whether the value is an array from a library that may store it on a device."""
    if issubclass(type(value), type) or library(value) not in _TENSOR_LIBRARIES:
        return False
    return _dimensions(value) is not None


def shape_of(value: object) -> str:
    """Return, for example, `344 x 7`, `12 items` or `51 characters`, or "" if unknown."""
    kind = type(value)
    if issubclass(kind, str):
        return f"{str.__len__(value):,} characters"  # type: ignore[arg-type]
    if issubclass(kind, bytes):
        return f"{bytes.__len__(value):,} bytes"  # type: ignore[arg-type]
    for base in _SIZED:
        if issubclass(kind, base):  # use the base's `__len__`: a subclass's own may run code
            return _items(base.__len__(value))  # type: ignore[attr-defined]
    if is_tensor(value) or (_is_a(value, _TABLES + _SERIES + _ARRAYS) and not overridden(value)):
        dimensions = _dimensions(value)
        if dimensions is not None:
            return _product(dimensions)
    return ""


def columns_of(value: object) -> Mapping[str, str] | None:
    """Return the first `COLUMNS` column names and dtypes of a table, or None for other values."""
    if not is_table(value) or overridden(value):
        return None
    table: Foreign = value
    try:
        if library(value) == "pyarrow":
            names, dtypes = table.schema.names, table.schema.types
        else:
            names, dtypes = table.columns, table.dtypes
        pairs = list(islice(zip(names, dtypes, strict=False), COLUMNS))
        # A table's columns share a few dtype objects, and calling `str` on one is slow.
        shown = {id(dtype): dtype for _, dtype in pairs}
        texts = {number: str(dtype) for number, dtype in shown.items()}
        return {visible(one_line(str(name), 60)): texts[id(dtype)] for name, dtype in pairs}
    except Exception:  # noqa: BLE001 - a subclass may redefine columns
        return None


def _is_a(value: object, classes: tuple[tuple[str, str], ...]) -> bool:
    # Check the type, not the value: a proxy's `__class__` would run its code.
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
    except Exception:  # noqa: BLE001 - lazy shapes may raise anything
        return None


def _product(dimensions: tuple[int, ...]) -> str:
    if len(dimensions) == 1:
        return _items(dimensions[0])
    return " x ".join(map(str, dimensions)) or "scalar"


def _items(count: int) -> str:
    return "1 item" if count == 1 else f"{count:,} items"


ITEMS = 8
"""Maximum container items in a preview."""
HIDDEN = "(not shown: the name says it is a secret)"
"""Shown instead of a secret."""

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
_PASSWORDS = (
    "password|passwd|pass_?phrase|pwd|pass_?code|passwort|kennwort|mot_de_passe|motdepasse|mdp"
    "|contraseña|contrasena|senha|palavra_passe|wachtwoord|lösenord|adgangskode|salasana|hasło"
    "|haslo|heslo|jelszó|şifre|sifre|пароль|κωδικός|密码|密碼|パスワード|비밀번호|암호"
)
_STRONG = re.compile(
    rf"(?:^|_)(?:{_PASSWORDS}|secret|credentials?|api_?key|access_?key|private_?key"
    r"|(?:auth|access|bearer|refresh|api)_?token|pin_?(?:code|number|hash))s?(?:$|_)"
    r"|^(?:(?:user|card|sim|bank|account|customer)_?)?pins?$"
)
_WEAK = re.compile(r"(?:^|_)(?:key|token|auth)s?$")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_APART = re.compile(r"[\W_]+")
_SECRET_LENGTH = 12
_SPACE = re.compile(r"\s")


def names_a_secret(name: str, value: object) -> bool:
    """Return whether the name of a variable or key suggests that its value is a secret.

    A string or bytes called `db_password` always is; one called `key` only if it is long and has no
    spaces.
    """
    text = value if issubclass(type(value), str | bytes) else None
    if not isinstance(text, str | bytes):
        return False
    name = _plain(name)
    if _STRONG.search(name):
        return True
    if _WEAK.search(name) is None or len(text) < _SECRET_LENGTH:
        return False
    return not (isinstance(text, str) and _SPACE.search(text))


def _plain(name: str) -> str:
    """Return a name in lower case, its words joined by `_`."""
    words = _HUMP.sub("_", unicodedata.normalize("NFC", name[:200]))
    return _APART.sub("_", words).strip("_").lower()


def hides_column(name: object, values: Iterable[object]) -> bool:
    """Return whether a column is secret, by its name or by its name and values."""
    parts = name if isinstance(name, tuple) else (name,)
    text = _plain("_".join(str(part) for part in parts))
    return _STRONG.search(text) is not None or any(names_a_secret(text, item) for item in values)


def preview(value: object, limit: int = 200, *, depth: int = _DEPTH) -> str:
    """Return a one-line description of at most about `limit` characters."""
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
        return f"<class {own_attribute(value, '__qualname__')}>"  # type: ignore[arg-type]
    return foreign(value, limit)


def foreign(value: object, limit: int = 200) -> str:
    """Return the value's own `repr` on one line, or a note explaining why there is none."""
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
    base: Foreign = str if issubclass(type(value), str) else bytes  # bypasses a subclass's methods
    text = repr(base.__getitem__(value, slice(limit)))
    return text if base.__len__(value) <= limit else f"{text}…"


def _sequence(value: Foreign, base: type, brackets: tuple[str, str], limit: int, depth: int) -> str:
    size: int = base.__len__(value)  # type: ignore[attr-defined]
    if depth <= 0 and size:
        return f"{brackets[0]}…{brackets[1]}"
    fields = getattr(type(value), "_fields", None) if base is tuple else None
    items: Iterator[Foreign] = base.__iter__(value)  # type: ignore[attr-defined]
    texts = (preview(item, limit // 4 + 20, depth=depth - 1) for item in items)
    if isinstance(fields, tuple):
        texts = (f"{field}={text}" for field, text in zip(fields, texts, strict=False))
        brackets = (f"{type(value).__name__}(", ")")
    elif base is tuple and size == 1:
        brackets = ("(", ",)")
    return brackets[0] + _joined(texts, size, limit) + brackets[1]


def _dict(value: dict[Foreign, Foreign], limit: int, depth: int) -> str:
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


ROWS = 5
"""Rows shown for a table or column."""
SHOWN_COLUMNS = 30
"""Columns listed with dtype and missing values."""
_WIDTH = 12
_FACT = 60
_THOUSAND = 1000
_COUNTED = 50_000_000
"""Maximum cells for counting missing values and extremes: 50 million take about 0.5 s."""


def describe_table(table: Foreign) -> Iterator[str]:
    """Yield the size, the columns with dtype and missing values, and the first rows."""
    if own := overridden(table):
        yield _of_its_own(own)
        return
    if library(table) == "pyarrow":
        yield f"{_size(table.nbytes)}, columns: {one_line(str(table.schema), 600)}"
        return
    pandas = hasattr(table, "iloc")
    yield _size(table.memory_usage().sum() if pandas else table.estimated_size()) + " in memory"
    rows, width = table.shape
    yield "columns:"
    for i, (name, dtype) in enumerate(
        islice(zip(table.columns, table.dtypes, strict=False), SHOWN_COLUMNS)
    ):
        column = table.iloc[:, i] if pandas else table[name]
        yield f"  {one_line(str(name), 60)}  {dtype}{_missing(column, rows, width)}"
    if width > SHOWN_COLUMNS:
        yield f"  … {width - SHOWN_COLUMNS:,} more"
    if rows:
        yield f"first {min(ROWS, rows)} rows:"
        head = _masked(table.head(ROWS), pandas=pandas)
        text = head.to_string(max_cols=_WIDTH, max_colwidth=40) if pandas else str(head)
        yield from text.splitlines()


def describe_series(series: Foreign) -> Iterator[str]:
    """Yield the dtype, missing values, extremes and first values."""
    if own := overridden(series):
        yield _of_its_own(own)
        return
    rows = len(series)
    name = getattr(series, "name", None)
    if name is not None and hides_column(name, list(series[:ROWS])):
        yield f"{one_line(str(name), 60)}, dtype {series.dtype} {HIDDEN}"
        return
    title = f"{one_line(str(name), 60)}, " if name is not None else ""
    yield f"{title}dtype {series.dtype}{_missing(series, rows, 1)}{_extremes(series, rows)}"
    head = series[:ROWS]
    if hasattr(head, "to_string"):
        yield from head.to_string().splitlines()
    else:
        yield from (f"  {one_line(str(item), 80)}" for item in head)


def describe_array(array: Foreign) -> Iterator[str]:
    """Yield the dtype, size, extremes and corners."""
    if own := overridden(array):
        yield _of_its_own(own)
        return
    yield f"dtype {array.dtype}, {_size(array.nbytes)}{_extremes(array, array.size)}"
    numpy: Foreign = sys.modules["numpy"]
    yield from numpy.array2string(array, threshold=24, edgeitems=3, max_line_width=100).splitlines()


def describe_tensor(tensor: Foreign) -> Iterator[str]:
    """Yield the tensor's attributes; values on a device are not read."""
    names = ("dtype", "device", "requires_grad", "layout", "format", "nnz")
    facts = ((name, getattr(tensor, name, None)) for name in names)
    yield ", ".join(f"{n} {v}" for n, v in facts if isinstance(v, bool | int | str) or _is_fact(v))


def _of_its_own(name: str) -> str:
    return f"(its class has a `{name}` of its own, which is not run; run_python shows the value)"


def _masked(head: Foreign, *, pandas: bool) -> Foreign:
    """Return the first rows with the values of secret columns replaced."""
    masked = "(not shown)"
    if not pandas:
        literal: Foreign = sys.modules["polars"].lit(masked)
        names = [name for name in head.columns if hides_column(name, head[name])]
        return head.with_columns([literal.alias(name) for name in names]) if names else head
    numbers = [i for i, name in enumerate(head.columns) if hides_column(name, head.iloc[:, i])]
    if numbers:
        head = head.copy()
        for number in numbers:
            head.isetitem(number, [masked] * len(head))
    named = [name for name in head.index.names if name is not None]
    if any(hides_column(name, head.index.get_level_values(name)) for name in named):
        head = head.reset_index(drop=True)
    return head


def _is_fact(value: object) -> bool:
    return value is not None and not callable(value) and len(str(value)) < _FACT


def _missing(column: Foreign, rows: int, width: int) -> str:
    if rows * min(width, SHOWN_COLUMNS) > _COUNTED:
        return ""
    count = int(column.isna().sum() if hasattr(column, "isna") else column.null_count())
    return f", {count:,} missing" if count else ""


def _extremes(values: Foreign, count: int) -> str:
    kind = str(values.dtype).lower()
    if not 0 < count <= _COUNTED or not kind.startswith(("int", "uint", "float", "datetime")):
        return ""
    return f", min {_number(values.min())}, max {_number(values.max())}"


def _number(value: Foreign) -> str:
    return f"{value:g}" if isinstance(value, int | float) else one_line(str(value), 40)


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < _THOUSAND:
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= _THOUSAND
    return f"{count:.1f} GB"


_SURROGATES = re.compile("[\ud800-\udfff]")


def bundle(data: Mapping[str, Json], metadata: object) -> dict[str, Json]:
    """Return an output's `data` and `metadata`: bytes as base64, other non-JSON values as text."""
    shown = {str(mime): _content(str(mime), value) for mime, value in data.items()}
    return {"data": shown, "metadata": clean(metadata or {})}


def well_formed(text: str) -> str:
    """Replace lone surrogates so that UTF-8 can encode the text."""
    return _SURROGATES.sub("\ufffd", text)


def _content(mime: str, value: object) -> Json:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, str):
        return well_formed(value)
    if mime == "application/json" or mime.endswith("+json"):
        return clean(value)
    return well_formed(str(value))
