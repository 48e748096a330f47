"""Stores a notebook's cells as blobs: a "sheet" with all cells, and a blob for each larger output.

Cells are plain JSON objects (`id, type, source, metadata, outputs, execution_count`). Larger
outputs are separate because edits rarely change them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.messages import Json

CellJson = Mapping[str, Json]
Cells = Sequence[CellJson]
INLINE = 2_000
"""Maximum size, in bytes, of a cell's outputs to store in the sheet itself."""
_BLOB = "blob"


class NoRoom(Exception):
    """A blob could not be stored."""


def keep_cells(
    states: Sequence[Cells], put: Callable[[bytes], str], *, limit: int
) -> tuple[list[str], tuple[str, ...]]:
    """Store states of a notebook; return the digests of their sheets and separate outputs.

    `put` stores a blob and returns its digest, or "" if the limit is reached, which raises
    `NoRoom`. Outputs of more than `limit` bytes are dropped and replaced by None.
    """
    references: dict[str, None] = {}
    known: dict[int, object] = {}  # by identity, so that shared outputs are stored once

    def kept(data: bytes) -> str:
        digest = put(data)
        if not digest:
            raise NoRoom
        return digest

    def outputs(value: object) -> object:
        data = _bytes(value)
        if len(data) <= INLINE:
            return value
        if len(data) > limit:
            return None
        digest = kept(data)
        references[digest] = None
        return {_BLOB: digest}

    def row(cell: CellJson) -> dict[str, Json]:
        value = cell["outputs"]
        if id(value) not in known:
            known[id(value)] = outputs(value)
        return {**cell, "outputs": known[id(value)]}

    sheets = [kept(_bytes([row(cell) for cell in cells])) for cells in states]
    return sheets, tuple(references)


def load_cells(sheet: str, get: Callable[[str], bytes]) -> list[dict[str, Json]]:
    """Return the cells in a sheet; `get` raises an error for missing blobs."""

    def whole(cell: dict[str, Json]) -> dict[str, Json]:
        outputs = cell["outputs"]
        return (
            {**cell, "outputs": _value(get(outputs[_BLOB]))} if _BLOB in (outputs or ()) else cell
        )

    return [whole(cell) for cell in _value(get(sheet))]


def _bytes(value: object) -> bytes:
    return canonical_json(value).encode("utf-8", "surrogatepass")


def _value(data: bytes) -> Json:
    return json.loads(data.decode("utf-8", "surrogatepass"))
