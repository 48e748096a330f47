"""Where every memory entry came from, and how the files beside it are read and written.

The journal is append-only. A line is written before the file it is about, so that no write goes
unrecorded; if the process dies in between, the next writer strikes the line out. It lies in a
hidden directory that Hermes Agent does not look at, is readable by its owner only, and keeps the
newest records.

Nothing here follows a link out of the home directory, waits on a pipe, or reads without end.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hermes_nb.core import files, regular_files
from hermes_nb.core.files import TEMPORARY, locked, make_private, write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.core.records import restored

MOST_READ = 64_000
"""What is read of a file: about thirty times the larger limit. A larger one is never rewritten."""
COPIES = 5
"""Copies kept of what a file was before an outside edit was merged."""
NAME = "history.jsonl"
MOST_BYTES = 256_000
"""When the journal passes this, its older half goes; a record takes about 600 bytes."""
LOCK_SECONDS = 5.0


class Unusable(Exception):
    """The file cannot be used as it is; the text says what to do."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """What was read; `size` is the whole file's, in bytes."""

    data: bytes = b""
    size: int = 0

    @property
    def whole(self) -> bool:
        """Whether `data` is all there is."""
        return self.size <= len(self.data)


def read_regular(path: Path, most: int) -> Bytes:
    """Return the first `most` bytes of a regular file, none where there is no file.

    Raises Unusable for anything else that has that name, without waiting on it, and OSError.
    """
    try:
        return Bytes(*regular_files.read_regular(path, most))
    except FileNotFoundError:
        return Bytes()
    except (regular_files.Refused, IsADirectoryError) as error:
        raise Unusable(f"{path.name} is not a regular file; move it away") from error


def orphans(path: Path) -> list[Path]:
    """Return the temporary files that writers of `path` left or are writing."""
    start = f".{path.name}."
    with suppress(OSError):
        names = os.listdir(path.parent)  # noqa: PTH208 - names alone, at every start
        return [
            path.with_name(name)
            for name in names
            if name.startswith(start) and name.endswith(TEMPORARY)
        ]
    return []


def sweep_locked(path: Path) -> None:
    """Remove the temporary files of `path`; the caller holds its lock, so that none is in use."""
    for orphan in orphans(path):
        orphan.unlink(missing_ok=True)


class NoteFile:
    """The file `name` in the `memories` directory of `home`."""

    def __init__(self, home: Path, name: str) -> None:
        self.home = home
        self.path = home / "memories" / name

    def read(self) -> Bytes:
        """Return the file's bytes, none where there is no file; raise Unusable, OSError."""
        self.stay_inside(self.path)
        raw = read_regular(self.path, MOST_READ)
        if raw.whole:
            return raw
        # A character must not be cut in two: that would look like damage.
        text = raw.data.decode("utf-8", "ignore")
        return Bytes(text.encode("utf-8"), raw.size)

    def prepare(self) -> None:
        """Make the directories, readable by their owner only; raise Unusable, OSError."""
        make_private(self.home)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.stay_inside(self.path.with_name(self.path.name + ".lock"))

    def write(self, data: bytes) -> None:
        """Replace the file; the caller holds its lock. Raises OSError and changes nothing then."""
        write_atomic(self.path, data, mode=0o600)

    def keep_copy(self, data: bytes) -> Path:
        """Save `data` as `NAME.bak.<time>` beside the file and return the path.

        Of the copies made here, the oldest go.
        """
        copy = files.beside(self.path, "bak.")
        write_atomic(copy, data, mode=0o600)
        ours = re.compile(re.escape(self.path.name) + r"\.bak\.\d{8}-\d{6}(-\d+)?")
        copies = [each for each in self.path.parent.iterdir() if ours.fullmatch(each.name)]
        for old in sorted(copies, key=lambda each: each.stat().st_mtime_ns)[:-COPIES]:
            old.unlink(missing_ok=True)
        return copy

    def sweep(self) -> None:
        """Remove the temporary files that killed writers left, unless somebody is writing now."""
        if not orphans(self.path):
            return
        with suppress(OSError), locked(self.path, timeout=0):
            sweep_locked(self.path)

    def stay_inside(self, path: Path) -> None:
        """Raise Unusable when `path` leads out of the home directory."""
        real, home = Path(os.path.realpath(path)), Path(os.path.realpath(self.home))
        if not real.is_relative_to(home):
            raise Unusable(
                f"{path.relative_to(self.home)} leads out of the home directory, to "
                f"{str(real)!r}; put a file there instead of a link"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOrigin:
    """Where a write came from. `cell` is a cell's id, `turn` counts from 1 in its session.

    `source` says who wrote: `agent` in a turn, `review` in the background, `user` by hand.
    """

    session: str = ""
    turn: int = 0
    cell: str = ""
    notebook: str = ""
    source: str = "agent"


BY_HAND = WriteOrigin(source="user")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """One entry before and after; an empty one did not exist. `place` is its index."""

    action: str
    before: str = ""
    after: str = ""
    place: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """One write: its changes happened together or not at all.

    `at` is in seconds since the epoch. `was` and `became` are digests of the file's bytes. `undoes`
    is the id of the record that this one took back.
    """

    id: str
    target: str
    at: float
    origin: WriteOrigin = field(default_factory=WriteOrigin)
    changes: tuple[EntryChange, ...] = ()
    was: str = ""
    became: str = ""
    undoes: str = ""


class History:
    """The journal in `directory`, which is made when the first record is."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME

    def records(self) -> list[MemoryRecord]:
        """Return the records that are not struck out, oldest first; what is no record is skipped.

        Raises OSError and Unusable when there is a journal that cannot be read.
        """
        found: dict[str, MemoryRecord] = {}
        for line in read_regular(self.path, 4 * MOST_BYTES).data.splitlines():
            with suppress(ValueError, TypeError, RecursionError):
                match json.loads(line):
                    case {"struck": str(struck)}:
                        found.pop(struck, None)
                    case item:
                        record = restored(MemoryRecord, item)
                        found[record.id] = record
        return list(found.values())

    def add(self, record: MemoryRecord) -> None:
        """Append a record; it is durable when this returns. Raises OSError, TimeoutError."""
        self._append(asdict(record))

    def strike(self, record_id: str) -> None:
        """Take back a record of a write that never happened."""
        self._append({"struck": record_id})

    def _append(self, item: Mapping[str, Json]) -> None:
        line = json.dumps(item, separators=(",", ":")).encode("ascii") + b"\n"
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        with locked(self.path, LOCK_SECONDS):
            size = files.append_line(self.path, line, durable=True)
            if size > MOST_BYTES:
                sweep_locked(self.path)
                data = self.path.read_bytes()
                cut = data.find(b"\n", len(data) // 2) + 1
                write_atomic(self.path, data[cut:], mode=0o600)


def undone(records: Sequence[MemoryRecord]) -> frozenset[str]:
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
