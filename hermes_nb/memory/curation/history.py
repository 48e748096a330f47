"""Where every memory entry came from: an append-only journal beside the memory files.

A line is written before the file it is about, so that no write goes unrecorded; if the process
dies in between, the next writer strikes the line out. The journal lies in a hidden directory that
Hermes Agent does not look at, is readable by its owner only, and keeps the newest records.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hermes_nb.core.files import locked, write_atomic
from hermes_nb.memory.curation.notefile import read_regular, sweep_locked

NAME = "history.jsonl"
MOST_BYTES = 256_000
"""When the journal passes this, its older half goes; a record takes about 600 bytes."""
LOCK_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a write came from. `cell` is a cell's id, `turn` counts from 1 in its session.

    `source` says who wrote: `agent` in a turn, `review` in the background, `user` by hand.
    """

    session: str = ""
    turn: int = 0
    cell: str = ""
    notebook: str = ""
    source: str = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One entry before and after; an empty one did not exist. `place` is its index."""

    action: str
    before: str = ""
    after: str = ""
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One write: its changes happened together or not at all.

    `at` is in seconds since the epoch. `was` and `became` are digests of the file's bytes. `undoes`
    is the id of the record that this one took back.
    """

    id: str
    target: str
    at: float
    origin: Origin = field(default_factory=Origin)
    changes: tuple[Change, ...] = ()
    was: str = ""
    became: str = ""
    undoes: str = ""


class History:
    """The journal in `directory`, which is made when the first record is."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME

    def records(self) -> list[Record]:
        """Return the records that are not struck out, oldest first; what is no record is skipped.

        Raises OSError and Unusable when there is a journal that cannot be read.
        """
        found: dict[str, Record] = {}
        for line in read_regular(self.path, 4 * MOST_BYTES).data.splitlines():
            item = _object(line)
            struck = item.get("struck")
            if isinstance(struck, str):
                found.pop(struck, None)
            elif (record := _record(item)) is not None:
                found[record.id] = record
        return list(found.values())

    def add(self, record: Record) -> None:
        """Append a record; it is durable when this returns. Raises OSError, TimeoutError."""
        self._append(asdict(record))

    def strike(self, record_id: str) -> None:
        """Take back a record of a write that never happened."""
        self._append({"struck": record_id})

    def _append(self, item: Mapping[str, Any]) -> None:
        line = json.dumps(item, separators=(",", ":")).encode("ascii") + b"\n"
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        with locked(self.path, LOCK_SECONDS):
            handle = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":
                    line = b"\n" + line  # a line that a full disk or a kill cut short
                if os.write(handle, line) != len(line):
                    message = "the journal of memory writes could not be written in full"
                    raise OSError(message)
                os.fsync(handle)
            finally:
                os.close(handle)
            if size > MOST_BYTES:
                self._halve()

    def _halve(self) -> None:
        sweep_locked(self.path)
        data = self.path.read_bytes()
        cut = data.find(b"\n", len(data) // 2) + 1
        write_atomic(self.path, data[cut:], mode=0o600)


def undone(records: Sequence[Record]) -> frozenset[str]:
    """Return the ids of the records that are taken back as things are; an undo may be undone."""
    by_id = {record.id: record for record in records}
    gone: set[str] = set()
    for record in records:
        if record.undoes:
            gone.add(record.undoes)
            target = by_id.get(record.undoes)
            if target is not None and target.undoes:
                gone.discard(target.undoes)
    return frozenset(gone)


def new_id(now: float | None = None) -> str:
    """Return an id for a record that sorts by time, such as `20261121-220751-3f9a1c`."""
    stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(now))
    return f"{stamp}-{os.urandom(3).hex()}"


def _object(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _record(item: Mapping[str, Any]) -> Record | None:
    """Return the record in a line, None where a hand or a newer version left something else."""
    try:
        record = Record(
            id=item["id"],
            target=item["target"],
            at=float(item["at"]),
            origin=Origin(**item["origin"]),
            changes=tuple(Change(**change) for change in item["changes"]),
            was=item["was"],
            became=item["became"],
            undoes=item["undoes"],
        )
        texts = [record.id, record.target, record.was, record.became, record.undoes]
        texts += [text for c in record.changes for text in (c.action, c.before, c.after)]
        places = [change.place for change in record.changes]
    except (KeyError, TypeError, ValueError):
        return None
    sound = all(isinstance(t, str) for t in texts) and all(isinstance(p, int) for p in places)
    return record if sound else None
