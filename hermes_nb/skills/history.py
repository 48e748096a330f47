"""What was changed, kept so that it can be undone, bounded in number and size.

A record is written before its change and says what the skill was and shall be. After a crash in
between, it describes a change that never was, which shows in the files; such a record is dropped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from hermes_nb.core.files import make_private, write_atomic

RECORDS = 200
BYTES = 33_554_432
Kind = Literal["made", "file", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A change of one skill. `place` is its folder and `file` the file, both relative.

    `before` and `after` are the SHA-256 of the file's bytes, "" for no file; `at` is in seconds
    since the epoch.
    """

    id: str
    kind: Kind
    action: str
    name: str
    place: str
    file: str = ""
    before: str = ""
    after: str = ""
    at: float = 0.0
    session: str = ""
    turn: int = 0
    proposal: str = ""


class History:
    """The records in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def add(self, record: Record, before: bytes | None = None) -> None:
        """Keep a record, and the bytes that its change replaces; durable when this returns."""
        make_private(self._directory)
        self._prune()
        if before is not None:
            write_atomic(self.blob(record), before, mode=0o600)
        data = json.dumps(asdict(record), ensure_ascii=False).encode()
        try:
            write_atomic(self._file(record.id), data, mode=0o600)
        except OSError:
            with suppress(OSError):
                self.blob(record).unlink()
            raise

    def records(self, name: str = "") -> Iterator[Record]:
        """Yield the records, of one skill if named, the newest first; damaged ones are left out."""
        for path in sorted(self._listed(), reverse=True):
            record = _read(path)
            if record is not None and (not name or record.name == name):
                yield record

    def drop(self, record: Record) -> None:
        """Forget a record and what it kept."""
        self._forget(record.id)

    def blob(self, record: Record) -> Path:
        """Return where the bytes lie that a change replaced."""
        return self._directory / f"{record.id}.before"

    def folder(self, record: Record) -> Path:
        """Return where a removed skill lies."""
        return self._directory / f"{record.id}.folder"

    def _file(self, record_id: str) -> Path:
        return self._directory / f"{record_id}.json"

    def _listed(self) -> list[Path]:
        return list(self._directory.glob("*.json")) if self._directory.is_dir() else []

    def _prune(self) -> None:
        """Drop the oldest records while there are too many or they hold too much."""
        sizes: dict[str, int] = {}
        for path in self._directory.iterdir():
            record_id = path.name.partition(".")[0]
            if record_id:
                sizes[record_id] = sizes.get(record_id, 0) + _size(path)
        total = 0
        for number, record_id in enumerate(sorted(sizes, reverse=True), 1):
            total += sizes[record_id]
            if number >= RECORDS or total >= BYTES:
                self._forget(record_id)

    def _forget(self, record_id: str) -> None:
        self._file(record_id).unlink(missing_ok=True)
        (self._directory / f"{record_id}.before").unlink(missing_ok=True)
        # Another process may be dropping the same one.
        shutil.rmtree(self._directory / f"{record_id}.folder", ignore_errors=True)


def new_id() -> str:
    """Return an id that sorts by time."""
    return f"{time.time_ns():020}-{os.getpid()}"


def digest_of(data: bytes | None) -> str:
    """Return the SHA-256 of a file's bytes, "" where there is none."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _read(path: Path) -> Record | None:
    try:
        data: Any = json.loads(path.read_bytes())
        record = Record(**data)
    except (OSError, ValueError, TypeError):
        return None
    return record if record.id == path.stem else None


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(_size(each) for each in path.iterdir())
        return path.stat().st_size
    except OSError:
        return 0
