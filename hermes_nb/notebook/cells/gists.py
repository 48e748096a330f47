"""What a notebook tool's call is about, in the few words that its user reads while it runs.

Cells are named by the number that they have in the notebook; ids are for the agent.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Arguments
from hermes_nb.safety.visible import visible

Naming = Callable[[str], str]
"""Says for a cell's id, or the beginning of one, how the user knows it, such as `cell 5`."""

WIDTH = 80
"""Characters of code that are told."""
MOST_CELLS = 6
"""Cells that are named one by one."""
_PREPARING = re.compile(r"\s*(?:#|import\s|from\s+\S+\s+import\s|%|@|\"\"\"|$)")


def telling(source: str, limit: int = WIDTH) -> str:
    """Return the line that says what code does: the first that does more than prepare."""
    lines = source[:20_000].strip().split("\n")
    line = next((each for each in lines if not _PREPARING.match(each)), lines[0])
    more = " …" if len(lines) > 1 else ""
    return one_line(visible(one_line(line, limit)), limit) + more


def reading(arguments: Arguments, name: Naming) -> str:
    """Say which cells are read."""
    wanted = []
    if ids := arguments.get("ids"):
        wanted.append(several(ids, name))
    if span := arguments.get("range"):
        wanted.append(f"cells {str(span).replace('-', '–')}")
    if section := arguments.get("section"):
        wanted.append(f"section {section}")
    told = ", ".join(wanted) or "all cells"
    return visible(told if arguments.get("outputs", True) else f"{told}, without outputs")


def editing(arguments: Arguments, name: Naming) -> str:
    """Say which cell is edited and what is new in it."""
    cell = _named(arguments.get("id", ""), name)
    new, old = (str(arguments.get(key) or "") for key in ("new", "old"))
    if new.strip() or not old:
        return f"{cell}: {_changed(old, new)}" if new.strip() else f"{cell}: emptied"
    return f"{cell}: without {telling(old, WIDTH - 20)}"


def moving(arguments: Arguments, name: Naming) -> str:
    """Say which cell goes where."""
    cell, after = (arguments.get(key) or "" for key in ("id", "after"))
    moved = _named(cell, name)
    return f"{moved} behind {_named(after, name)}" if after else f"{moved} to the top"


def several(ids: object, name: Naming) -> str:
    """Name some cells: `cells 1, 2 and 5`, or `cell 5` for a single one."""
    known = [_named(each, name) for each in (ids if isinstance(ids, list | tuple) else [ids])]
    if len(known) < 2:  # noqa: PLR2004
        return "".join(known)
    names = [each.removeprefix("cell ") for each in known]
    if len(names) > MOST_CELLS:
        names[MOST_CELLS - 1 :] = [f"{len(names) - MOST_CELLS + 1} more"]
    return f"cells {', '.join(names[:-1])} and {names[-1]}"


def _named(cell: object, name: Naming) -> str:
    return one_line(visible(name(str(cell))), WIDTH)


def _changed(old: str, new: str) -> str:
    """Return the first line of the new text that the old one does not have."""
    before = {line.strip() for line in old.split("\n")}
    lines = [line for line in new.split("\n") if line.strip()]
    fresh = next((line for line in lines if line.strip() not in before), lines[0])
    more = " …" if len(lines) > 1 else ""
    return one_line(visible(one_line(fresh, WIDTH - 20)), WIDTH - 20) + more
