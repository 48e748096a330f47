"""Damaged files: what can still be read of one, and putting another in its place.

The exchange can be killed at any moment: until the salvaged file is whole the damaged one stays
where it is, and from then on `finish` only moves files, which the next process does over if need
be. All of it happens under the exclusive lock.

Rows are read page by page, without SQLite. Nothing is believed beyond the single page: no header,
no tree, no schema. Every page that looks like a leaf of a table is taken for one, and every cell in
it that holds together is a record. Of the write-ahead log the committed frames count, as they would
for SQLite. The format is the one at sqlite.org/fileformat2.html. Memory does not grow with the
file.
"""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hermes_nb.core.files import beside
from hermes_nb.storage.locks import primary
from hermes_nb.storage.opening import READY, Schema, connect, lost_its_head

BUSY_SECONDS = 5.0
"""How long a check waits for those who read the file; nobody writes it."""
DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
"""What SQLite answers when the file itself is at fault."""
LOGS = ("-wal", "-journal", "-shm")
"""What SQLite keeps beside the file while it is in use."""
_UNREADY = ".salvaged.hermes-tmp"

MAGIC = b"SQLite format 3\0"
DEFAULT_PAGE = 4_096
"""What SQLite has made since 2016, and what is assumed where the header is lost."""
FILE_HEADER = 100
LEAF = 0x0D
"""The first byte of a page with rows. An overflow page begins with a page number, whose first byte
is zero in a file of less than 64 GB."""
FIXED = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8, 8: 0, 9: 0}
"""The bytes that a value of a serial type takes; 10 and 11 do not occur, longer ones are computed
from the type."""
HEADER, FRAME = 32, 24
"""The sizes in bytes of the log's header and of the one before each page in it."""
MAGICS = {0x377F0682: "<", 0x377F0683: ">"}
"""The log's first word, and the byte order that its checksums are computed in."""

Value = int | float | str | bytes | None


def is_sound(path: Path, schema: Schema) -> bool:
    """Say whether the file is intact, or an empty one that can become so.

    Raises sqlite3.Error when it cannot be told: locked, not allowed to be opened.
    """
    if lost_its_head(str(path)):
        return False
    try:
        with closing(connect(str(path), timeout=BUSY_SECONDS)) as connection:
            if connection.execute("PRAGMA integrity_check(1)").fetchone()[0] != "ok":
                return False
            if connection.execute("PRAGMA user_version").fetchone()[0]:
                for table in schema.first:
                    connection.execute(f"SELECT 1 FROM {table} LIMIT 1")  # noqa: S608 - ours
    except sqlite3.DatabaseError as error:
        if primary(error) in DAMAGE or "no such table" in str(error):
            return False
        raise
    return True


def check(connection: sqlite3.Connection, schema: Schema) -> None:
    """Raise the error of a damaged file if one of its tables is damaged, or an index of one.

    The search index is left out, which takes the longest and is mended when a search meets the
    damage. A quick check would not see rows that an index misses, and takes as long (0.2 s of CPU
    for 60,000 messages).
    """
    for table in schema.tables:
        (verdict,) = connection.execute(f"PRAGMA integrity_check({table})").fetchone()
        if verdict != "ok":
            error = sqlite3.DatabaseError(verdict)
            error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
            raise error


def with_new_index(path: Path, schema: Schema) -> bool:
    """Make the index anew; say whether that could be done."""
    try:
        with closing(connect(str(path), timeout=BUSY_SECONDS)) as connection:
            connection.execute("BEGIN IMMEDIATE")
            schema.rebuild(connection)
            connection.execute("COMMIT")
    except sqlite3.DatabaseError as error:
        if primary(error) in DAMAGE:
            return False
        raise
    return True


def is_newer(path: Path, schema: Schema) -> bool:
    """Say whether the header, if there is one, tells of a schema that this code does not know."""
    if not path.exists():
        return False
    with path.open("rb") as file:
        head = file.read(64)
    return head.startswith(MAGIC) and int.from_bytes(head[60:64], "big") > schema.version


def replace_damaged(path: Path, schema: Schema) -> str:
    """Exchange the damaged file for one with what could be salvaged; return what happened."""
    unready = path.with_name(path.name + _UNREADY)
    unready.unlink(missing_ok=True)
    try:
        saved = schema.salvage(path, unready)
        unready.chmod(0o600)
        _sync(unready)
        unready.replace(path.with_name(path.name + READY))
    finally:
        unready.unlink(missing_ok=True)
    aside = finish(path)
    return f"{path.name} was damaged: {saved}. The damaged file is kept as {aside.name}"


def finish(path: Path) -> Path:
    """Put the damaged file aside and the salvaged one in its place; return the former's new name.

    The log goes first: beside the new file it would be taken for the new file's own.
    """
    aside = put_aside(path, (*LOGS, ""))
    path.with_name(path.name + READY).replace(path)
    _sync(path.parent)
    return aside


def put_aside(path: Path, parts: Sequence[str]) -> Path:
    """Rename those parts of a database, and return its new name."""
    aside = beside(path, "damaged-")
    for suffix in parts:
        with suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    return aside


def _sync(path: Path) -> None:
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class Broken(Exception):
    """A cell does not hold together."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row as it lies in the file; its INTEGER PRIMARY KEY is None among `values`."""

    rowid: int
    values: tuple[Value, ...]


def records(path: Path, *, columns: int) -> Iterator[Record]:
    """Yield every readable record of at least `columns` values, in the order of the pages.

    The file may be missing if its log is there. A row of which an old copy lies about comes twice.
    Raises OSError if the files cannot be read at all.
    """
    with ExitStack() as stack:
        file, log = (
            stack.enter_context(each.open("rb")) if each.exists() else None
            for each in (path, path.with_name(path.name + "-wal"))
        )
        pages = _Pages(file, log)
        for number in range(1, pages.count + 1):
            page = pages.read(number)
            start = FILE_HEADER if number == 1 else 0
            if len(page) >= start + 8 and page[start] == LEAF:
                yield from _leaf(pages, page, start, columns)


class _Pages:
    """The newest committed content of each page, from the file or from its log."""

    def __init__(self, file: BinaryIO | None, log: BinaryIO | None) -> None:
        self._file = file
        self._log = log
        logged, self._newer = committed(log) if log is not None else (0, {})
        head = file.read(FILE_HEADER).ljust(FILE_HEADER, b"\0") if file is not None else b""
        whole = head.startswith(MAGIC)
        told = int.from_bytes(head[16:18], "big") if whole else 0
        self.size = next(
            (size for size in (65_536 if told == 1 else told, logged) if _plausible(size)),
            DEFAULT_PAGE,
        )
        self.usable = self.size - (head[20] if whole else 0)
        length = file.seek(0, 2) if file is not None else 0
        self.count = max([-(-length // self.size), *self._newer])

    def read(self, number: int) -> bytes:
        """Return a page, counted from 1; less than a page where the file ends early."""
        file, offset = self._file, (number - 1) * self.size
        if number in self._newer:
            file, offset = self._log, self._newer[number]
        if file is None or number < 1:
            return b""
        file.seek(offset)
        return file.read(self.size)


def _plausible(size: int) -> bool:
    return 512 <= size <= 65_536 and size & (size - 1) == 0


def _leaf(pages: _Pages, page: bytes, start: int, columns: int) -> Iterator[Record]:
    cells = int.from_bytes(page[start + 3 : start + 5], "big")
    pointers = page[start + 8 : start + 8 + 2 * cells]
    pairs = zip(pointers[::2], pointers[1::2], strict=False)
    for offset in dict.fromkeys(high << 8 | low for high, low in pairs):
        try:
            record = _cell(pages, page, offset, columns)
        except (Broken, IndexError):
            continue
        if record is not None:
            yield record


def _cell(pages: _Pages, page: bytes, at: int, columns: int) -> Record | None:
    """Return the record of the cell at an offset, None if it has fewer columns."""
    size, at = _varint(page, at)
    rowid, at = _varint(page, at)
    if size > pages.count * pages.size:
        raise Broken
    local = _local(size, pages.usable)
    types = _types(page[at : at + local])
    if types is not None and len(types) < columns:
        return None
    payload = page[at : at + local]
    if local < size:
        payload += _overflow(
            pages, int.from_bytes(page[at + local : at + local + 4], "big"), size - local
        )
    types = _types(payload)
    if len(payload) < size or types is None or len(types) < columns:
        raise Broken
    return Record(_signed(rowid), _values(payload, types))


def _local(size: int, usable: int) -> int:
    """Return how much of a payload lies in the leaf itself; the rest is in overflow pages."""
    most = usable - 35
    if size <= most:
        return size
    least = (usable - 12) * 32 // 255 - 23
    kept = least + (size - least) % (usable - 4)
    return kept if kept <= most else least


def _overflow(pages: _Pages, number: int, missing: int) -> bytes:
    parts = []
    while missing > 0:
        page = pages.read(number)
        if len(page) < 5:
            raise Broken
        part = page[4 : min(pages.usable, 4 + missing)]
        parts.append(part)
        missing -= len(part)
        number = int.from_bytes(page[:4], "big")
    return b"".join(parts)


def _types(payload: bytes) -> list[int] | None:
    """Return the serial types in a record's header, None if the header is not all there."""
    length, at = _varint(payload, 0)
    if length > len(payload):
        return None
    types = []
    while at < length:
        kind, at = _varint(payload, at)
        types.append(kind)
    return types


def _values(payload: bytes, types: list[int]) -> tuple[Value, ...]:
    at, _ = _varint(payload, 0)
    out: list[Value] = []
    for kind in types:
        size = FIXED[kind] if kind in FIXED else (kind - 12) // 2
        if size < 0 or at + size > len(payload):
            raise Broken
        out.append(_value(kind, payload[at : at + size]))
        at += size
    return tuple(out)


def _value(kind: int, data: bytes) -> Value:
    if kind >= 12:
        return data.decode("utf-8", "replace") if kind % 2 else data
    match kind:
        case 0:
            return None
        case 7:
            return float(struct.unpack(">d", data)[0])
        case 8 | 9:
            return kind - 8
        case _:
            return int.from_bytes(data, "big", signed=True)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the unsigned number at an offset, and the offset behind it."""
    value = 0
    for index in range(8):
        byte = data[at + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, at + index + 1
    return value << 8 | data[at + 8], at + 9


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


def committed(log: BinaryIO) -> tuple[int, dict[int, int]]:
    """Return the page size and, by page number, the offset of the newest committed content.

    A log that is none gives `(0, {})`.
    """
    log.seek(0)
    head = log.read(HEADER)
    order = MAGICS.get(int.from_bytes(head[:4], "big"), "")
    if len(head) < HEADER or not order:
        return 0, {}
    size, salt = int.from_bytes(head[8:12], "big"), head[16:24]
    sums = _checksum(head[:24], order, (0, 0))
    if not 512 <= size <= 65_536 or struct.pack(">II", *sums) != head[24:32]:
        return 0, {}
    newest: dict[int, int] = {}
    pending: dict[int, int] = {}
    offset = HEADER
    while len(frame := log.read(FRAME + size)) == FRAME + size and frame[8:16] == salt:
        sums = _checksum(frame[:8] + frame[FRAME:], order, sums)
        if struct.pack(">II", *sums) != frame[16:FRAME]:
            break
        number, commit = struct.unpack(">II", frame[:8])
        pending[number] = offset + FRAME
        if commit:
            newest.update(pending)
            pending.clear()
        offset += FRAME + size
    return size, newest


def _checksum(data: bytes, order: str, sums: tuple[int, int]) -> tuple[int, int]:
    """Continue the log's checksum over `data`, whose length is a multiple of eight."""
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
