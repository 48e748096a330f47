"""Tables, columns, arrays and tensors in a few lines.

Their own methods are used, so these functions may take long or raise: `variables.describe` sets
the limits.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from itertools import islice

from hermes_nb.core.text import one_line
from hermes_nb.notebook.values.kinds import Foreign, library, overridden
from hermes_nb.notebook.values.previews import HIDDEN, hides_column

ROWS = 5
"""Rows shown of a table or a column."""
COLUMNS = 30
"""Columns listed with their dtype and gaps."""
_WIDTH = 12
_COUNTED = 50_000_000
"""Cells up to which gaps and extremes are counted: 50 million take about half a second."""


def describe_table(table: Foreign) -> Iterator[str]:
    """Yield size, columns with dtype and missing values, and the first rows."""
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
        islice(zip(table.columns, table.dtypes, strict=False), COLUMNS)
    ):
        column = table.iloc[:, i] if pandas else table[name]
        yield f"  {one_line(str(name), 60)}  {dtype}{_missing(column, rows, width)}"
    if width > COLUMNS:
        yield f"  … {width - COLUMNS:,} more"
    if rows:
        yield f"first {min(ROWS, rows)} rows:"
        head = _masked(table.head(ROWS), pandas=pandas)
        text = head.to_string(max_cols=_WIDTH, max_colwidth=40) if pandas else str(head)
        yield from text.splitlines()


def describe_series(series: Foreign) -> Iterator[str]:
    """Yield dtype, missing values, extremes and the first values."""
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
    """Yield dtype, size, extremes and the corners."""
    if own := overridden(array):
        yield _of_its_own(own)
        return
    yield f"dtype {array.dtype}, {_size(array.nbytes)}{_extremes(array, array.size)}"
    numpy: Foreign = sys.modules["numpy"]
    yield from numpy.array2string(array, threshold=24, edgeitems=3, max_line_width=100).splitlines()


def describe_tensor(tensor: Foreign) -> Iterator[str]:
    """Yield what the attributes say; its values may be on a device, and stay there."""
    names = ("dtype", "device", "requires_grad", "layout", "format", "nnz")
    facts = ((name, getattr(tensor, name, None)) for name in names)
    yield ", ".join(f"{n} {v}" for n, v in facts if isinstance(v, bool | int | str) or _is_fact(v))


def _of_its_own(name: str) -> str:
    return f"(its class has a `{name}` of its own, which is not run; run_python shows the value)"


def _masked(head: Foreign, *, pandas: bool) -> Foreign:
    """Return the first rows without what stands in columns whose names say that it is secret."""
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
    return value is not None and not callable(value) and len(str(value)) < 60  # noqa: PLR2004


def _missing(column: Foreign, rows: int, width: int) -> str:
    if rows * min(width, COLUMNS) > _COUNTED:
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
        if count < 1000:  # noqa: PLR2004
            return f"{count:.0f} {unit}" if unit == "bytes" else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
