"""What is new in the notebook since the model was told last, as a block of text.

Its first line is `[Notebook context]` and variables follow a line `Variables:`, each as
`- name: type shape (columns)`; the embedded model looks for exactly these, so no other line begins
with `- `.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hermes_nb.core.protocols import Variable
from hermes_nb.core.text import one_line
from hermes_nb.notebook.failed_cell import FailedCell
from hermes_nb.safety.redact import redact

HEADING = "[Notebook context]"
LIMIT = 6_000
"""Characters in all: about 1,700 tokens."""
SHOWN_VARIABLES = 30
"""At most this many variables are listed; list_variables has the rest."""
_COLUMNS = 20
_VARIABLE = 700
_MARK = 60
"""Characters kept free for the line that says how much was left out."""


def turn_context(
    *,
    notebook: str = "",
    outline: str = "",
    running_cell: str | None = None,
    variables: Sequence[Variable] = (),
    gone: Iterable[str] = (),
    error: FailedCell | None = None,
    limit: int = LIMIT,
) -> str:
    """Return the block, of at most `limit` characters (100 or more), "" when there is no news.

    `outline` has a line a cell, of the cells above the running one; `running_cell` is its id, None
    where no cell is, and the outline ends with the selected one.
    `variables` are those that are new or different, `gone` the names that went. What does not fit
    is left out from the far end of the outline, then from the variables.
    """
    head = [HEADING]
    if notebook:
        head.append(one_line(f"Notebook: {notebook}", min(300, limit // 3)))
    room = limit - _size(head)
    middle = _fitting(_error_lines(error), room // 3)
    room -= _size(middle)
    named = _fitting(_variable_lines(variables, gone), room * 2 // 3 if outline else room)
    room -= _size(named)
    cells = _cell_lines(outline, running_cell, room)
    lines = [*head, *named, *middle, *cells]
    return "\n".join(lines) if len(lines) > 1 else ""


def variable_line(variable: Variable) -> str:
    """Return a variable in one line: `- name: type shape (column dtype, …)`."""
    shape = f" {variable.shape}" if variable.shape else ""
    columns = list((variable.columns or {}).items())
    listed = ", ".join(f"{name} {dtype}" for name, dtype in columns[:_COLUMNS])
    more = ", …" if len(columns) > _COLUMNS else ""
    described = f" ({listed}{more})" if listed else ""
    return one_line(f"- {variable.name}: {variable.type}{shape}{described}", _VARIABLE)


def _variable_lines(variables: Sequence[Variable], gone: Iterable[str]) -> list[str]:
    lines = [variable_line(variable) for variable in variables[:SHOWN_VARIABLES]]
    if (more := len(variables) - SHOWN_VARIABLES) > 0:
        lines.append(f"… and {more} more; list_variables shows them")
    if names := list(gone)[:SHOWN_VARIABLES]:
        lines.append(one_line(f"deleted: {', '.join(names)}", _VARIABLE))
    return ["Variables:", *lines] if lines else []


def _error_lines(error: FailedCell | None) -> list[str]:
    if error is None:
        return []
    where = f" (cell {error.cell_id})" if error.cell_id else ""
    title = _plain(error.title.splitlines())
    return [f"The last cell failed{where}:", *title, *_plain(error.lines)]


def _cell_lines(outline: str, running_cell: str | None, room: int) -> list[str]:
    """Return the outline's last lines, the ones next to the running cell."""
    lines = _plain(redact(outline).splitlines())
    selected = ", the last one is selected"
    here = f" this one ({one_line(running_cell, 40)})" if running_cell else selected
    title = f"Cells above{here}:"
    if not lines or len(title) + _MARK > room:
        return []
    kept = _fitting(lines[::-1], room - len(title) - 1, "notebook_outline shows all")
    return [title, *kept[::-1]]


def _fitting(lines: Sequence[str], room: int, hint: str = "") -> list[str]:
    """Return the lines that fit from the first one on, and how many were left out."""
    if _size(lines) <= room:
        return list(lines)
    kept: list[str] = []
    left = room - _MARK
    for line in lines:
        left -= len(line) + 1
        if left < 0:
            break
        kept.append(line)
    if room < _MARK:
        return []
    more = f"… {len(lines) - len(kept)} lines left out"
    return [*kept, f"{more}; {hint}" if hint else more]


def _size(lines: Sequence[str]) -> int:
    """Return the characters that lines take in a text, each with a line end."""
    return sum(len(line) + 1 for line in lines)


def _plain(lines: Iterable[str]) -> list[str]:
    """Return lines of somebody else's, none of which looks like a variable's."""
    return [f" {line}" if line.startswith("- ") else line for line in lines]
