"""Turn the displayed value of an expression into an answer, with numbers as people write them."""

from __future__ import annotations

import ast
import re

from hermes_nb.extras.local.prompting import plain

MOST_ITEMS = 20
"""Maximum items of a value in an answer."""
_NOTHING = frozenset({"nan", "NaN", "None", "NaT", "[]", "{}", "<NA>"})
_SCALAR = re.compile(r"\bnp\.\w+\(([^()]*)\)")


def spoken(says: str, displayed: str) -> str:
    """Return the answer for a value as the kernel displays it; "" if there is no value."""
    text = _SCALAR.sub(r"\1", displayed.strip())
    if not text or text in _NOTHING:
        return ""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        value = plain(text)
    if isinstance(value, str) and "\n" in value:
        return ""
    return says.replace("{}", _shown(value, years="year" in says.lower() or "_id" in says), 1)


def _shown(value: object, *, years: bool) -> str:
    if isinstance(value, dict):
        pairs = [f"{_key(key)} {_shown(item, years=False)}" for key, item in value.items()]
        return _join_items(pairs)
    if isinstance(value, list | tuple):
        return _join_items([_shown(item, years=years) for item in value])
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    if isinstance(value, int):
        return str(value) if years else f"{value:,}"
    if value.is_integer():
        return f"{value:,.0f}"
    return f"{value:,.2f}" if abs(value) >= 1 else f"{value:.3g}"


def _key(key: object) -> str:
    return " ".join(map(str, key)) if isinstance(key, tuple) else str(key)


def _join_items(items: list[str]) -> str:
    if len(items) > MOST_ITEMS:
        return f"{', '.join(items[:MOST_ITEMS])} and {len(items) - MOST_ITEMS:,} more"
    return " and ".join([", ".join(items[:-1]), items[-1]] if len(items) > 1 else items)
