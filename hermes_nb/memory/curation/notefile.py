"""One memory file on the disk: read whatever it is, swept of orphans, copied before it is changed.

Nothing here follows a link out of the home directory, waits on a pipe, or reads without end.
"""

from __future__ import annotations

import os
import re
import stat
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.core.files import TEMPORARY, locked, make_private, write_atomic

MOST_BYTES = 64_000
"""What is read of a file: about thirty times the larger limit. A larger one is never rewritten."""
COPIES = 5
"""Copies kept of what a file was before an outside edit was merged."""


class Unusable(Exception):  # noqa: N818 - a state of the file
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
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(path, flags)
    except FileNotFoundError:
        return Bytes()
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            message = f"{path.name} is not a regular file; move it away"
            raise Unusable(message)
        with open(handle, "rb", closefd=False) as file:
            data = file.read(most)
    finally:
        os.close(handle)
    return Bytes(data, max(status.st_size, len(data)))


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
        raw = read_regular(self.path, MOST_BYTES)
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
        stamp = time.strftime("%Y%m%d-%H%M%S")
        copy = self.path.with_name(f"{self.path.name}.bak.{stamp}")
        number = 1
        while copy.exists():
            number += 1
            copy = self.path.with_name(f"{self.path.name}.bak.{stamp}-{number}")
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
            message = (
                f"{path.relative_to(self.home)} leads out of the home directory, to "
                f"{str(real)!r}; put a file there instead of a link"
            )
            raise Unusable(message)
