"""A notebook's cells as blobs: one for the sheet of all cells, one for each cell's larger outputs.

A turn saves the sheet at every edit and most cells are the same each time; their outputs, which are
most of the bytes, are then not written again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hermes_nb.core.text import canonical_json

CellJson = Mapping[str, Any]
Cells = Sequence[CellJson]

INLINE = 2_000
"""Bytes of outputs that stay in the sheet."""
_BLOB = "blob"


class NoRoom(Exception):  # noqa: N818 - what happened
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

    def row(cell: CellJson) -> dict[str, Any]:
        value = cell["outputs"]
        if id(value) not in known:
            known[id(value)] = outputs(value)
        return {**cell, "outputs": known[id(value)]}

    sheets = [kept(_bytes([row(cell) for cell in cells])) for cells in states]
    return sheets, tuple(references)


def load_cells(sheet: str, get: Callable[[str], bytes]) -> list[dict[str, Any]]:
    """Return the cells of a sheet; what `get` raises for a lost blob passes through."""

    def whole(cell: dict[str, Any]) -> dict[str, Any]:
        outputs = cell["outputs"]
        return {**cell, "outputs": _read(get(outputs[_BLOB]))} if _BLOB in (outputs or ()) else cell

    return [whole(cell) for cell in _read(get(sheet))]


def _bytes(value: object) -> bytes:
    return canonical_json(value).encode("utf-8", "surrogatepass")


def _read(data: bytes) -> Any:  # noqa: ANN401 - JSON
    return json.loads(data.decode("utf-8", "surrogatepass"))
