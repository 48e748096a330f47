"""Changes in the notebook since the model's last message, as a block of text.

The first line is `[Notebook context]`. Variables follow a line `Variables:`, each as `- name: type
shape (columns)`. The embedded model looks for exactly these, so no other line starts with `- `.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hermes_nb.core.protocols import Variable
from hermes_nb.core.text import one_line
from hermes_nb.notebook.failed_cell import FailedCell
from hermes_nb.safety.redact import redact

HEADING = "[Notebook context]"
LIMIT = 6_000
"""Maximum characters of the block, about 1,700 tokens."""
SHOWN_VARIABLES = 30
"""Maximum variables to list; list_variables returns the rest."""
_COLUMNS = 20
_VARIABLE = 700
_MARK = 60
"""Characters reserved for the line that counts omitted lines."""


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
    """Return the block, "" if nothing has changed.

    Lines that do not fit are omitted: the outline's furthest from the running cell first, then
    variables.

    Args:
        notebook: name of the notebook, "" if unknown
        outline: one line for each cell above the running one, or down to the selected one
        running_cell: id of the running cell, None if the outline ends with the selected one
        variables: new and changed variables
        gone: names of deleted variables
        error: the failure of the previous cell
        limit: maximum characters, 100 or more
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
    """Return the outline's last lines, which are next to the running cell."""
    lines = _plain(redact(outline).splitlines())
    selected = ", the last one is selected"
    here = f" this one ({one_line(running_cell, 40)})" if running_cell else selected
    title = f"Cells above{here}:"
    if not lines or len(title) + _MARK > room:
        return []
    kept = _fitting(lines[::-1], room - len(title) - 1, "notebook_outline shows all")
    return [title, *kept[::-1]]


def _fitting(lines: Sequence[str], room: int, hint: str = "") -> list[str]:
    """Return the first lines that fit, and a line that counts the omitted ones."""
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
    """Return the characters of lines in a text, each with a line end."""
    return sum(len(line) + 1 for line in lines)


def _plain(lines: Iterable[str]) -> list[str]:
    """Return foreign lines, indented if they look like a variable's."""
    return [f" {line}" if line.startswith("- ") else line for line in lines]
