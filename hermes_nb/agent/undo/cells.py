"""A notebook's cells as blobs: one for the sheet of all cells, one for each cell's larger outputs.

Cells are plain JSON objects (`id, type, source, metadata, outputs, execution_count`). Larger
outputs are the same from edit to edit.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.messages import Json

CellJson = Mapping[str, Json]
Cells = Sequence[CellJson]
INLINE = 2_000
"""Bytes of outputs that stay in the sheet."""
_BLOB = "blob"


class NoRoom(Exception):
    """A blob could not be kept."""


def keep_cells(
    states: Sequence[Cells], put: Callable[[bytes], str], *, limit: int
) -> tuple[list[str], tuple[str, ...]]:
    """Keep states of a notebook; return their sheets' digests, and of the outputs referred to.

    `put` keeps a blob and returns its digest, "" when there is no room, which raises `NoRoom`.
    Outputs of more than `limit` bytes are left out: their cell has None.
    """
    references: dict[str, None] = {}
    known: dict[int, object] = {}  # by identity: outputs that two states share are read once

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
    """Return the cells of a sheet; what `get` raises for a lost blob passes through."""

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
