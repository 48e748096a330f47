"""Cells and outputs as nbformat 4.5 wants them in a file, and whether a notebook follows it."""

from __future__ import annotations

import json
import secrets
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from hermes_nb.core.errors import ToolError
from hermes_nb.core.text import one_line
from hermes_nb.notebook.cells.document import CellType
from hermes_nb.notebook.cells.ipynb import Notebook, NotebookCell
from hermes_nb.notebook.values.mime import json_ready

CHECKED = 32_000_000
"""Bytes of a notebook that is validated with its outputs; of a larger one only the rest is, since
validation needs all of it in memory."""


def new_cell(
    source: str, kind: CellType, metadata: Mapping[str, Any], used: Collection[str]
) -> NotebookCell:
    """Return a cell, its keys in nbformat's order, with an id that is not among the `used`."""
    name = secrets.token_hex(4)
    while name in used:
        name = secrets.token_hex(4)
    cell: NotebookCell = {"cell_type": kind}
    if kind == "code":
        cell["execution_count"] = None
    cell |= {"id": name, "metadata": json_ready(metadata)}
    if kind == "code":
        cell["outputs"] = []
    return cell | {"source": source.splitlines(keepends=True)}


def on_disk(outputs: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return outputs as nbformat writes them, longer texts as lists of lines."""
    import nbformat
    from nbformat.v4.rwbase import split_lines

    try:
        plain = json.loads(json.dumps(list(outputs)))
        cell = {"cell_type": "code", "source": "", "outputs": plain}
        lines = split_lines(nbformat.from_dict({"cells": [cell]}))
        nbformat.validate(
            {**cell, "id": "x", "metadata": {}, "execution_count": None}, ref="code_cell", version=4
        )
    except (TypeError, ValueError, AttributeError, nbformat.ValidationError) as error:
        message = f"these are not outputs of a notebook: {one_line(str(error), 200)}"
        raise ToolError(message) from error
    return [dict(output) for output in lines["cells"][0]["outputs"]]


def is_valid(notebook: Notebook, data: bytes) -> bool:
    """Say whether a notebook follows the schema, its outputs included unless they are too many."""
    import nbformat

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if len(data) <= CHECKED:
            document = json.loads(data)
        else:
            cells = [
                {**cell, "outputs": []} if "outputs" in cell else cell for cell in notebook.cells
            ]
            document = {**notebook.document, "cells": cells}
        try:
            nbformat.validate(document)
        except nbformat.ValidationError:
            return False
    return True
