"""Reads which pages a write-ahead log holds, as SQLite would after a crash.

A frame counts if its salt and its checksum fit and a commit follows; the first that does not fit
ends the log.
"""

from __future__ import annotations

import struct
from typing import BinaryIO

HEADER, FRAME = 32, 24
"""The sizes in bytes of the log's header and of the one before each page."""
MAGICS = {0x377F0682: "<", 0x377F0683: ">"}
"""The log's first word, and the byte order that its checksums are computed in."""


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
    if not 512 <= size <= 65_536 or struct.pack(">II", *sums) != head[24:32]:  # noqa: PLR2004
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
