"""A file on its way: the prefix that has arrived, hashed as it grows.

Whatever source appends to it, an interrupted download goes on where it stopped, from that source
or another one. Nothing here is trusted: whoever calls compares the digest of the whole.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from hermes_nb.core.errors import HermesError, TurnInterrupted

BLOCK = 1 << 18
STOPPED = "the download was stopped; what has arrived is kept for the next try"
DISK_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})

Progress = Callable[[int, int], None]
"""Takes the bytes that have arrived and the bytes in all; called often, in the caller's thread."""


class SourceError(HermesError):
    """A source could not give the bytes; another one may."""


class Partial:
    """A growing prefix of a file of `size` bytes, hashed as it grows.

    `folder` holds it, and whatever a source needs besides; it goes when nothing has arrived.
    Raises `TurnInterrupted` once `stop` is set, OSError when the disk is full.
    """

    def __init__(self, folder: Path, size: int, progress: Progress, stop: threading.Event) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        self.folder = folder
        self.path = folder / "bytes"
        self.size = size
        self.done = 0
        self._progress = progress
        self._stop = stop
        self._hash = hashlib.sha256()
        self._file = open(self.path, "a+b", opener=_private)  # noqa: SIM115 - see close()
        try:
            self._resume()
        except BaseException:
            self._file.close()
            raise

    def _resume(self) -> None:
        self._file.seek(0)
        while block := self._file.read(BLOCK):
            self._count(block)
        if self.done > self.size:
            self.restart()

    def write(self, block: bytes) -> None:
        """Append bytes; raise `SourceError` if that is more than the file has."""
        if self.done + len(block) > self.size:
            self.restart()
            message = f"sends more than the {self.size:,} bytes expected"
            raise SourceError(message)
        self._file.write(block)
        self._count(block)

    def _count(self, block: bytes) -> None:
        self._hash.update(block)
        self.done += len(block)
        self.announce()

    def announce(self, extra: int = 0) -> None:
        """Report progress, `extra` bytes being on their way; raise if the user stopped it."""
        if self._stop.is_set():
            raise TurnInterrupted(STOPPED)
        self._progress(min(self.done + extra, self.size), self.size)

    def restart(self) -> None:
        """Forget what has arrived."""
        self._file.truncate(0)
        self._hash, self.done = hashlib.sha256(), 0

    def digest(self) -> str:
        """Return the SHA-256 of what has arrived, once it is on the disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._hash.hexdigest()

    def close(self) -> None:
        """Close the file; what has arrived stays."""
        with suppress(OSError):  # a full disk has been reported by the write
            self._file.close()
        if not self.done:
            shutil.rmtree(self.folder, ignore_errors=True)


class Source(Protocol):
    """A place to get the file from. `spare` is the disk needed besides the file, in bytes."""

    @property
    def name(self) -> str:
        """What the user reads."""
        ...

    @property
    def spare(self) -> int:
        """Bytes of disk needed besides the file while it is fetched."""
        ...

    def pour(self, into: Partial) -> None:
        """Append what is missing.

        Raises `SourceError`, `TurnInterrupted`, or the disk's OSError.
        """
        ...


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)
