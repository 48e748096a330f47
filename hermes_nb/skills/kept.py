"""Remembers what the documents of skills said, so that a new process need not read a thousand.

An entry counts for the file with that very path, size, inode and both times, and for nothing else:
what a document says now is only believed from its bytes. The file is a cache: bounded, private,
void when the code changes, and void entry by entry where it is damaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from hermes_nb.core.files import write_atomic
from hermes_nb.skills.document import Document, Gates, name_problems

LIMIT = 5_000
"""Documents that are kept."""
_LARGEST = 32 * 2**20
"""Bytes of the file; a thousand skills take about 0.3 MB."""

_GATES = [each.name for each in fields(Gates)]
_OPEN = Gates()

Stamp = tuple[int, int, int, int]
"""A file's modification and change time in ns, size and inode."""
Known = tuple[Stamp, str, Document]
"""A document without its body, the SHA-256 of the file's bytes, and what the file was then."""


class Kept:
    """Documents by path; `directory` is where they outlive the process, or None."""

    def __init__(self, directory: Path | None, *, edition: str) -> None:
        """Keep what `edition` of the code understood."""
        self._path = directory / "documents.json" if directory else None
        self._edition = edition
        self._entries: dict[str, Any] | None = None

    def get(self, path: str, stamp: Stamp) -> Known | None:
        """Return what a file said when it was exactly this, or None."""
        if self._entries is None:
            self._entries = _read(self._path, self._edition) if self._path else {}
        entry = self._entries.get(path)
        known = _known(entry) if entry is not None else None
        return known if known is not None and known[0] == stamp else None

    def save(self, documents: Iterable[tuple[str, Known]]) -> None:
        """Write what is known now; a place that cannot be written is left alone."""
        if self._path is None or not self._path.parents[1].is_dir():
            return
        entries = {path: _entry(known) for path, known in list(documents)[:LIMIT]}
        data = json.dumps({"edition": self._edition, "documents": entries}, ensure_ascii=True)
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            write_atomic(self._path, data.encode(), mode=0o600)
        except OSError:  # a cache that cannot be kept costs time, nothing else
            return


def _entry(known: Known) -> list[Any]:
    stamp, digest, document = known
    gates = [list(getattr(document.gates, name)) for name in _GATES]
    return [
        *(list(stamp), digest, document.name, document.description, list(document.tags)),
        *(document.category, gates, list(document.notes)),
    ]


def _known(entry: object) -> Known | None:
    """Return an entry as what it stands for; None for what cannot have been written here."""
    match entry:
        case [
            [int(), int(), int(), int()] as stamp,
            str(digest),
            str(name),
            str(description),
            list(tags),
            str(category),
            [list(), list(), list(), list(), list()] as gates,
            list(notes),
        ]:
            texts = [*tags, *notes, *(item for gate in gates for item in gate)]
            if name_problems(name) or not description or not all(isinstance(t, str) for t in texts):
                return None
        case _:
            return None
    document = Document(
        name=name,
        description=description,
        body="",
        tags=tuple(tags),
        category=category,
        gates=_gates(gates),
        notes=tuple(notes),
    )
    first, second, third, fourth = stamp
    return (first, second, third, fourth), digest, document


def _gates(lists: Sequence[list[str]]) -> Gates:
    if not any(lists):
        return _OPEN
    return Gates(**{name: tuple(items) for name, items in zip(_GATES, lists, strict=True)})


def _read(path: Path, edition: str) -> dict[str, Any]:
    try:
        if path.stat().st_size > _LARGEST:
            return {}
        data: Any = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    if not isinstance(data, dict) or data.get("edition") != edition:
        return {}
    documents = data.get("documents")
    return documents if isinstance(documents, dict) else {}
