"""The history of memory writes, and safe reading and writing of the memory files.

The history is an append-only journal with one line per write. The line is added before the memory
file is changed, so no write is missing. If the process dies in between, the next writer *strikes
the line out*: it appends a line that cancels it. The journal is in a hidden directory that Hermes
Agent ignores. Only its owner can read it. Old records are dropped.

No function in this module follows a link out of the Hermes directory, blocks on a pipe, or reads
without a limit.
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
"""Maximum bytes read from a memory file, about thirty times its limit. A larger file is never
rewritten."""
COPIES = 5
"""Number of backup copies to keep for a file. A copy is made before an external edit is merged."""
NAME = "history.jsonl"
"""The journal's file name."""
MOST_BYTES = 256_000
"""Size in bytes above which the older half of the journal is dropped; a record takes about 600."""
LOCK_SECONDS = 5.0
"""Seconds to wait for the journal's lock."""


class Unusable(Exception):
    """A file cannot be used; the message says why and what to do."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """The bytes read from a file."""

    data: bytes = b""  # at most the requested number
    size: int = 0  # of the whole file

    @property
    def whole(self) -> bool:
        """Whether `data` is the whole file."""
        return self.size <= len(self.data)


def read_regular(path: Path, most: int) -> Bytes:
    """Return the first `most` bytes of a regular file, or no bytes if it is missing.

    Raises Unusable if it is not a regular file, without blocking on it, and OSError.
    """
    try:
        return Bytes(*regular_files.read_regular(path, most))
    except FileNotFoundError:
        return Bytes()
    except (regular_files.Refused, IsADirectoryError) as error:
        raise Unusable(f"{path.name} is not a regular file; move it away") from error


def orphans(path: Path) -> list[Path]:
    """Return the temporary files left by current or killed writers of `path`."""
    start = f".{path.name}."
    with suppress(OSError):
        names = os.listdir(path.parent)  # noqa: PTH208 - only names, faster at each start
        return [
            path.with_name(name)
            for name in names
            if name.startswith(start) and name.endswith(TEMPORARY)
        ]
    return []


def sweep_locked(path: Path) -> None:
    """Remove the temporary files of `path`. The caller must hold its lock, so none is in use."""
    for orphan in orphans(path):
        orphan.unlink(missing_ok=True)


class NoteFile:
    """The file `name` in the `memories` directory of `home`."""

    def __init__(self, home: Path, name: str) -> None:
        self.home = home
        self.path = home / "memories" / name

    def read(self) -> Bytes:
        """Return the file's bytes, or b"" if it is missing; raise Unusable, OSError."""
        self.stay_inside(self.path)
        raw = read_regular(self.path, MOST_READ)
        if raw.whole:
            return raw
        # Drop a partial character at the end: it would look like damage.
        text = raw.data.decode("utf-8", "ignore")
        return Bytes(text.encode("utf-8"), raw.size)

    def prepare(self) -> None:
        """Create the directories, readable only by their owner; raise Unusable, OSError."""
        make_private(self.home)
        self.path.parent.mkdir(mode=0o700, exist_ok=True)
        self.stay_inside(self.path.with_name(self.path.name + ".lock"))

    def write(self, data: bytes) -> None:
        """Replace the file, whose lock the caller must hold.

        Raises OSError if that fails; the file is then unchanged.
        """
        write_atomic(self.path, data, mode=0o600)

    def keep_copy(self, data: bytes) -> Path:
        """Save `data` as `NAME.bak.<time>` next to the file and return the path.

        The oldest copies made this way are removed.
        """
        copy = files.beside(self.path, "bak.")
        write_atomic(copy, data, mode=0o600)
        ours = re.compile(re.escape(self.path.name) + r"\.bak\.\d{8}-\d{6}(-\d+)?")
        copies = [each for each in self.path.parent.iterdir() if ours.fullmatch(each.name)]
        for old in sorted(copies, key=lambda each: each.stat().st_mtime_ns)[:-COPIES]:
            old.unlink(missing_ok=True)
        return copy

    def sweep(self) -> None:
        """Remove temporary files of killed writers, unless another writer holds the lock."""
        if not orphans(self.path):
            return
        with suppress(OSError), locked(self.path, timeout=0):
            sweep_locked(self.path)

    def stay_inside(self, path: Path) -> None:
        """Raise Unusable if `path` points outside the Hermes directory."""
        real, home = Path(os.path.realpath(path)), Path(os.path.realpath(self.home))
        if not real.is_relative_to(home):
            raise Unusable(
                f"{path.relative_to(self.home)} is a link out of the Hermes directory, to "
                f"{str(real)!r}; replace it with a file"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOrigin:
    """The origin of a write."""

    session: str = ""
    """The session's id, or "" if unknown."""
    turn: int = 0
    """The turn's number in its session from 1, or 0 if unknown."""
    cell: str = ""
    """The id of the running cell, or "" if there is none."""
    notebook: str = ""
    """The notebook's path, or "" for none."""
    source: str = "agent"
    """The writer: `agent` in a turn, `review` in the background, `user` by hand."""


BY_HAND = WriteOrigin(source="user")


@dataclass(frozen=True, slots=True, kw_only=True)
class EntryChange:
    """A change to one entry."""

    action: str
    """`add`, `replace` or `remove`."""
    before: str = ""
    """The entry before, or "" if it is new."""
    after: str = ""
    """The entry after, or "" if it was removed."""
    place: int = 0
    """The entry's index from 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRecord:
    """One write, whose changes were applied together."""

    id: str
    """An id that sorts by time."""
    target: str
    """The memory: `memory` or `user`."""
    at: float
    """When it was written, in seconds since the epoch."""
    origin: WriteOrigin = field(default_factory=WriteOrigin)
    """The origin of the write."""
    changes: tuple[EntryChange, ...] = ()
    """The changes, in order."""
    was: str = ""
    """Digest of the file's bytes before."""
    became: str = ""
    """Digest of the file's bytes after."""
    undoes: str = ""
    """The id of the record that this one undid, or "" for none."""


class History:
    """The journal in `directory`, which is created with the first record."""

    def __init__(self, directory: Path) -> None:
        self.path = directory / NAME

    def records(self) -> list[MemoryRecord]:
        """Return the valid records that are not struck out, oldest first.

        Raises OSError or Unusable if the journal exists but cannot be read.
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
        """Strike out the record of a write that did not happen."""
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
    """Return the ids of the records that are currently undone; an undo can itself be undone."""
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
