"""A map's results as a table: a DataFrame where pandas is in use, else rows that show as one."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from hermes_nb.app.maps.items import Item
from hermes_nb.core.text import both_ends, one_line
from hermes_nb.safety.markup import escape
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

COLUMNS = ("input", "status", "answer", "error", "tokens", "cost", "seconds")
SHOWN = 50
"""Rows that a display has; the table has all of them."""
ANSWER = 160
NAME = 60


class Rows(list[dict[str, Any]]):
    """Rows as dicts; in a notebook they show as a table."""

    def _repr_markdown_(self) -> str:
        return table_markdown(self)


def rows_of(items: Sequence[Item]) -> Rows:
    """Return a row for each item; what is not known is None."""
    return Rows(
        {
            "input": item.name,
            "status": item.status,
            "answer": item.answer if item.status == "done" else None,
            "error": item.error or None,
            "tokens": item.usage.input + item.usage.output,
            "cost": item.usage.cost,
            "seconds": round(item.seconds, 2),
        }
        for item in items
    )


def table_of(items: Sequence[Item]) -> Any:  # noqa: ANN401 - pandas is not a dependency
    """Return the rows as a DataFrame if pandas has been imported already, else as they are."""
    rows = rows_of(items)
    pandas = sys.modules.get("pandas")
    if pandas is None:
        return rows
    return pandas.DataFrame(list(rows), columns=list(COLUMNS))


def table_markdown(rows: Sequence[dict[str, Any]]) -> str:
    """Return what is seen of a table: names, states and the beginnings of answers."""
    lines = ["| input | status | answer |", "|---|---|---|"]
    for row in rows[:SHOWN]:
        said = row["answer"] if row["status"] == "done" else row["error"]
        name = escape(visible(both_ends(redact(row["input"]), NAME)))
        answer = escape(visible(one_line(redact(said or ""), ANSWER)))
        lines.append(f"| {name} | {row['status']} | {answer} |")
    if len(rows) > SHOWN:
        lines.append(f"| … {len(rows) - SHOWN:,} more | | |")
    return "\n".join(lines)
