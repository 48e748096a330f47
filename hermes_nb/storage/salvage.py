"""Read the rows that are left in a damaged database file, page by page, without SQLite.

Nothing outside a single page is trusted: no header, tree or schema. Every page that looks like a
table's leaf is read, and every consistent cell in it is a record. Committed frames in the
write-ahead log override the file, as in SQLite. The format is described at
sqlite.org/fileformat2.html. Memory use doesn't grow with the size of the file.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

MAGIC = b"SQLite format 3\0"
DEFAULT_PAGE = 4_096
"""SQLite's default page size since 2016, used if the header is lost."""
FILE_HEADER = 100
LEAF = 0x0D
"""First byte of a page with rows. Overflow pages start with a page number, whose first byte is zero
in files of less than 64 GB."""
FIXED = {0: 0, 1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8, 7: 8, 8: 0, 9: 0}
"""Size in bytes of a value, by serial type. Types 10 and 11 don't occur; larger types encode their
own size."""
HEADER, FRAME = 32, 24
"""Sizes in bytes of the log's header and of each frame's header."""
MAGICS = {0x377F0682: "<", 0x377F0683: ">"}
"""The log's magic number and the byte order of its checksums."""

Value = int | float | str | bytes | None
"""A column's value."""


class Broken(Exception):
    """A cell is inconsistent."""


@dataclass(frozen=True, slots=True)
class Record:
    """A row as stored in the file."""

    rowid: int
    """The row id."""
    values: tuple[Value, ...]
    """The columns' values; an INTEGER PRIMARY KEY is None, since it is the row id."""


def records(path: Path, *, columns: int) -> Iterator[Record]:
    """Yield every readable record with at least `columns` values, in page order.

    The file may be missing if its log exists. A row occurs twice if the file still contains an old
    copy. Raises OSError if the files can't be read.
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
    """The latest committed content of each page, from the file or its log."""

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
        """Return page `number`, counted from 1; the result is shorter if the file ends early."""
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
    """Return the record of the cell at an offset, or None if it has fewer columns."""
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
    """Return how many bytes of a payload are in the leaf page; the rest is in overflow pages."""
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
    """Return the serial types in a record's header, or None if the header is incomplete."""
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
    """Return the unsigned number at an offset, and the offset after it."""
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
    """Return a log's page size, and the offset of the latest committed content by page number.

    Returns `(0, {})` if the file isn't a valid log.
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
    """Continue the log's checksum with `data`, whose length is a multiple of eight."""
    first, second = sums
    words = struct.unpack(f"{order}{len(data) // 4}I", data)
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    return first, second
