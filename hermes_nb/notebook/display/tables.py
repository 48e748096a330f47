"""Render tables and times as text, and trusted Markdown as plain text."""

from __future__ import annotations

import datetime
import html
import re
import time
from collections.abc import Iterable, Sequence
from itertools import zip_longest
from textwrap import wrap

from hermes_nb.safety.markup import escape

NARROWEST = 12
"""Minimum width of a table column in characters."""
_COMMAND = re.compile(r"&#96;(%hermes [\w ]+)&#96;")


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Return a Markdown table of names and values (plain text, or commands in backticks)."""
    lines = ["| | |", "|---|---|"]
    shown = ((name, _COMMAND.sub(r"`\1`", escape(value))) for name, value in rows)
    return "\n".join([*lines, *(f"| **{name}** | {value} |" for name, value in shown)])


def grid(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a Markdown table; each cell has to be one line of Markdown."""
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    return "\n".join([*lines, *(f"| {' | '.join(map(str, row))} |" for row in rows)])


def aligned(text: str, width: int = 0) -> str:
    """Align the columns of Markdown tables in a text, for displays without tables.

    Only tables in the format of `facts` and `grid` are changed: a header, a rule, rows. If `width`
    is given, cells of wider tables are wrapped, but only at spaces, so that paths and commands can
    be copied.
    """
    out: list[str] = []
    table: list[list[str]] = []
    for line in [*text.split("\n"), ""]:
        if line.startswith("|") and line.endswith("|") and len(line) > 1:
            table.append([cell.strip() for cell in line[1:-1].split("|")])
            continue
        out += _columns(table, width)
        table = []
        out.append(line)
    return "\n".join(out[:-1])


def _columns(table: list[list[str]], width: int) -> list[str]:
    rows = [row for row in table if any(row) and not all(re.fullmatch(":?-+:?", c) for c in row)]
    count = max(map(len, rows), default=0)
    wide = [max((len(row[i]) for row in rows if i < len(row)), default=0) for i in range(count)]
    while width and sum(wide) + 2 * (count - 1) > width and max(wide) > NARROWEST:
        wide[wide.index(max(wide))] -= 1
    lines: list[tuple[str, ...]] = []
    for row in rows:
        cells = [
            wrap(c, w, break_long_words=False, break_on_hyphens=False) if len(c) > w else [c]
            for c, w in zip(row, wide, strict=False)
        ]
        lines += zip_longest(*cells, fillvalue="")
    return [
        "  ".join(c.ljust(w) for c, w in zip(line, wide, strict=False)).rstrip() for line in lines
    ]


def ago(seconds: float) -> str:
    """Return a time relative to now, such as `2 hours ago`."""
    passed = max(time.time() - seconds, 0)
    for unit, size in (("day", 86_400), ("hour", 3_600), ("minute", 60)):
        count = int(passed // size)
        if count:
            return f"{count} {unit}{'s' if count > 1 else ''} ago"
    return "just now"


def moment(seconds: float) -> str:
    """Return a time as a local date and time, to the minute."""
    return datetime.datetime.fromtimestamp(seconds).astimezone().strftime("%Y-%m-%d %H:%M")


_FENCED = re.compile(r"^(`{3,})\S*\n(.*?)^\1$", re.DOTALL | re.MULTILINE)


def plain_text(markdown: str, width: int = 0) -> str:
    """Return trusted Markdown as plain text, without tags and marks, with aligned tables."""
    bare = re.sub(r'</?\w+(?: title="[^"<>]*")?>|\*\*|`', "", markdown.replace("<br>", "\n"))
    bar = "\0"  # a bar written by `escape` is not a cell border
    return aligned(html.unescape(bare.replace("&#124;", bar)), width).replace(bar, "|")


def printed(markdown: str, width: int = 0) -> str:
    """Return trusted Markdown as plain text, keeping fenced code without its fences."""
    pieces, at = [], 0
    for fenced in _FENCED.finditer(markdown):
        pieces += [plain_text(markdown[at : fenced.start()], width), fenced[2]]
        at = fenced.end()
    text = "".join([*pieces, plain_text(markdown[at:], width)])
    return re.sub(r"\n{3,}", "\n\n", text)  # removed tags leave empty lines
