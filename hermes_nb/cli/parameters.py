"""Values for a notebook's variables, put into a cell of their own as papermill does it."""

from __future__ import annotations

import keyword
import math
from collections.abc import Iterable
from typing import Any

from hermes_nb.cli.ending import UsageProblem

TAG, INJECTED = "parameters", "injected-parameters"
_WORDS = {"true": True, "false": False, "none": None}
Value = str | int | float | bool | None


def value_of(text: str) -> Value:
    """Return what a word on a command line stands for: None, a truth value, a number, or itself."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        if math.isfinite(number):  # the others have no literal
            return number
    return text


def source_of(parameters: Iterable[tuple[str, str]]) -> str:
    """Return the cell's source; raise `UsageProblem` for what cannot name a variable."""
    lines = ["# Parameters"]
    for name, text in parameters:
        if not name.isidentifier() or keyword.iskeyword(name):
            message = f"{name!r} cannot name a variable"
            raise UsageProblem(message)
        lines.append(f"{name} = {value_of(text)!r}")
    return "\n".join(lines)


def inject(notebook: Any, source: str) -> None:  # noqa: ANN401 - nbformat's node
    """Put the source behind the cell tagged `parameters`, or else first; an earlier one goes."""
    import nbformat

    cells = [each for each in notebook.cells if INJECTED not in _tags(each)]
    # A random id would make every run another notebook.
    made: Any = nbformat.v4.new_code_cell(source, id=INJECTED, metadata={"tags": [INJECTED]})
    place = next((at for at, each in enumerate(cells, 1) if TAG in _tags(each)), 0)
    notebook.cells = [*cells[:place], made, *cells[place:]]


def _tags(cell: Any) -> list[str]:  # noqa: ANN401 - nbformat's node
    return list(cell.metadata.get("tags", ()))
