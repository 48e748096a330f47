"""Old and careless notebooks brought up to nbformat 4.5, in memory.

Missing, invalid and duplicate cell ids are put right: a generated id depends on the cell's place
and source alone, so that two reads agree.
"""

from __future__ import annotations

import hashlib
import json
import re
import warnings
from collections.abc import Callable, Collection, Mapping
from typing import Any

from hermes_nb.core.errors import ToolError
from hermes_nb.core.text import one_line

MAJOR, MINOR = 4, 5

_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def converted(
    document: Mapping[str, Any], name: str, outputs: Callable[[Any], list[Any]]
) -> dict[str, Any]:
    """Return a notebook of nbformat 1 to 3 in nbformat 4, without cell ids.

    `outputs` gives the list for what stands for one and is not JSON. Raises ToolError.
    """
    import nbformat

    text = json.dumps(document, default=outputs)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            new = nbformat.reads(text, as_version=MAJOR)
    except Exception as error:  # whatever old converters raise on odd input
        what = one_line(f"{type(error).__name__}: {error}", 200)
        message = (
            f"{name!r} is in the old nbformat {document['nbformat']} and cannot be "
            f"converted ({what}); open it in JupyterLab and save it"
        )
        raise ToolError(message) from error
    for cell in new["cells"]:
        cell.pop("id", None)  # random: ours are the same in every read
    return dict(new)


def complete(document: dict[str, Any]) -> None:
    """Add what nbformat 4.5 wants and earlier formats, or careless tools, left out."""
    minor = document.get("nbformat_minor")
    document["nbformat_minor"] = max(minor, MINOR) if isinstance(minor, int) else MINOR
    metadata = document.setdefault("metadata", {})
    for key in ("orig_nbformat", "orig_nbformat_minor"):
        metadata.pop(key, None)
    cells: list[dict[str, Any]] = document["cells"]
    used = {cell["id"] for cell in cells if _is_id(cell.get("id"))}
    taken: set[str] = set()
    for index, cell in enumerate(cells):
        cell.setdefault("source", "")
        cell.setdefault("metadata", {})
        if cell["cell_type"] == "code":
            cell.setdefault("outputs", [])
            cell.setdefault("execution_count", None)
        if not _is_id(cell.get("id")) or cell["id"] in taken:
            cell["id"] = _generated(index, source_of(cell), used)
        taken.add(cell["id"])
        used.add(cell["id"])


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def _generated(index: int, source: str, used: Collection[str]) -> str:
    attempt = 0
    while True:
        text = f"{attempt}:{index}:{source}".encode("utf-8", "surrogatepass")
        name = hashlib.sha256(text).hexdigest()[:8]
        if name not in used:
            return name
        attempt += 1


def source_of(cell: Mapping[str, Any]) -> str:
    """Return a cell's source as one string."""
    source = cell.get("source", "")
    return source if isinstance(source, str) else "".join(source)
