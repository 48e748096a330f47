"""Profile a pandas DataFrame as plain text: one line a column, then what looks wrong."""

from __future__ import annotations

import warnings

import pandas as pd

MOST_ROWS = 200_000


def profile(frame: pd.DataFrame) -> str:
    """Return what there is to know about the columns of `frame`; it is not changed."""
    rows = len(frame)
    sample = frame.sample(MOST_ROWS, random_state=0) if rows > MOST_ROWS else frame
    lines = [f"{rows:,} rows x {frame.shape[1]} columns"]
    if rows > MOST_ROWS:
        lines[0] += f" (figures from a random {MOST_ROWS:,})"
    problems: list[str] = []
    for position, name in enumerate(frame.columns):
        column = sample.iloc[:, position]
        lines.append(_line(str(name), column))
        problems += [f"{name}: {text}" for text in _problems(column)]
    repeated = _repeated(sample)
    if repeated:
        problems.append(f"{repeated:,} rows are exact copies of an earlier one")
    if problems:
        lines += ["", "Look at:", *(f"- {text}" for text in problems)]
    return "\n".join(lines)


def _line(name: str, column: pd.Series) -> str:
    missing = column.isna().mean()
    distinct = _distinct(column)
    parts = [f"{name}: {column.dtype}", f"{missing:.1%} missing", f"{distinct:,} distinct"]
    present = column.dropna()
    if present.empty:
        return ", ".join(parts)
    if pd.api.types.is_bool_dtype(column):
        parts.append(f"{present.mean():.1%} true")
    elif pd.api.types.is_numeric_dtype(column):
        low, middle, high = (present.quantile(q) for q in (0, 0.5, 1))
        parts.append(f"{low:.6g} .. {middle:.6g} .. {high:.6g}")
    elif pd.api.types.is_datetime64_any_dtype(column):
        parts.append(f"{present.min()} .. {present.max()}")
    else:
        common = present.astype(str).value_counts().head(3)
        parts.append("most frequent " + ", ".join(f"{k[:30]!r} x {n}" for k, n in common.items()))
    return ", ".join(parts)


def _problems(column: pd.Series) -> list[str]:
    present = column.dropna()
    if present.empty:
        return ["nothing but missing values"] if len(column) else []
    found = []
    distinct = _distinct(column)
    if distinct == 1 and len(present) > 1:
        found.append("constant")
    whole = not pd.api.types.is_float_dtype(column)
    if len(column) > 20 and whole and distinct == len(column):
        found.append("every value is different: probably an identifier")
    if pd.api.types.is_numeric_dtype(column) and not pd.api.types.is_bool_dtype(column):
        found += _odd_numbers(present)
    elif column.dtype == object or isinstance(column.dtype, pd.StringDtype):
        found += _odd_text(present.astype(str))
    return found


def _odd_numbers(present: pd.Series) -> list[str]:
    found = []
    for stand_in in (-1, 99, 999, -999, 9999, -9999):
        share = float((present == stand_in).mean())
        if 0.005 < share < 0.9 and stand_in in (present.min(), present.max()):
            found.append(f"{stand_in} in {share:.1%} of the rows may stand for missing")
    low, high = present.quantile(0.25), present.quantile(0.75)
    spread = high - low
    if spread > 0:
        far = int(((present < low - 4 * spread) | (present > high + 4 * spread)).sum())
        if far:
            found.append(f"{far:,} values lie more than 4 interquartile ranges outside")
    return found


def _odd_text(present: pd.Series) -> list[str]:
    found = []
    stripped = present.str.strip()
    if int((stripped != present).sum()):
        found.append("spaces around some values")
    folded = stripped.str.casefold()
    if folded.nunique() < stripped.nunique():
        found.append("values that differ only in case")
    as_number = pd.to_numeric(stripped.str.replace(",", "", regex=False), errors="coerce")
    if as_number.notna().mean() > 0.9:
        found.append("numbers stored as text")
    elif stripped.str.match(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}").mean() > 0.9:
        found.append("dates stored as text")
    return found


def _distinct(column: pd.Series) -> int:
    try:
        return int(column.nunique())
    except TypeError:  # lists and dicts cannot be hashed
        return int(column.astype(str).nunique())


def _repeated(frame: pd.DataFrame) -> int:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return int(frame.duplicated().sum())
        except TypeError:
            return int(frame.astype(str).duplicated().sum())
