"""Open and read regular files in directories that may be hostile.

`open_inside` opens each directory relative to its parent, so that a concurrently swapped symbolic
link cannot point outside the root. It checks the file type first, so it never opens a pipe or
device.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO

_STEP = getattr(os, "O_PATH", os.O_RDONLY) | getattr(os, "O_DIRECTORY", 0)
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
_STAY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0)
_KINDS = {
    stat.S_IFDIR: "it is a directory",
    stat.S_IFIFO: "it is a pipe",
    stat.S_IFSOCK: "it is a socket",
    stat.S_IFCHR: "it is a device",
    stat.S_IFBLK: "it is a device",
}


class Refused(Exception):
    """A file exists but was not loaded; the message gives the reason."""


def read_regular(path: str | Path, most: int) -> tuple[bytes, int]:
    """Return the first `most` bytes of a regular file and its size, without blocking on a pipe.

    Raises:
        OSError: The file cannot be read, or is a directory.
        Refused: It is a pipe, device or other special file.
    """
    handle = os.open(path, _READ)
    try:
        status = os.fstat(handle)
        if not stat.S_ISDIR(status.st_mode):  # reading a directory raises a clear OSError
            _require_regular(status)
        data, piece = b"", max(status.st_size + 1, 1 << 16)
        while len(data) < most and (more := os.read(handle, min(piece, most - len(data)))):
            data += more
    finally:
        os.close(handle)
    return data, max(status.st_size, len(data))


def repository(directory: Path) -> Path | None:
    """Return the root of the git repository around a directory without symlinks, or None.

    Like git, this neither crosses file systems nor trusts a repository owned by another user: on a
    shared machine anyone can create a `.git` in `/tmp`. The search ends at the user's home
    directory.
    """
    try:
        home = Path(os.path.realpath(Path.home()))
    except RuntimeError:  # the user has no home directory
        home = None
    try:
        here = directory.stat()
        for each in (directory, *directory.parents):
            if each.stat().st_dev != here.st_dev:
                return None
            if _is_ours(each / ".git", here.st_uid):
                return each
            if each == home:
                return None
    except OSError:  # the directory was deleted
        return None
    return None


def _is_ours(mark: Path, owner: int) -> bool:
    """Return whether `mark` is a trusted `.git`: a directory, or a file as in worktrees."""
    try:
        status = mark.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    trusted = {owner, 0, os.getuid()} if hasattr(os, "getuid") else {status.st_uid}
    kind = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    return kind and status.st_uid in trusted


def real_inside(path: Path, root: Path) -> Path:
    """Return `path` with symlinks resolved; `root` must already be resolved.

    Raises:
        FileNotFoundError: `path` doesn't exist.
        Refused: The target is outside `root` or cannot be resolved.
    """
    try:
        path.lstat()
        real = Path(os.path.realpath(path, strict=True))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(path) from error
    except OSError as error:
        raise Refused(_reason(error)) from error
    if not real.is_relative_to(root):
        raise Refused("it is a link that points outside the repository")
    return real


def open_inside(real: Path, root: Path) -> BinaryIO:
    """Open the regular file `real` (from `real_inside`); raise `Refused` for any other kind."""
    try:
        _require_regular(real.lstat())
        handle = _open(real, root)
    except OSError as error:
        raise Refused(_reason(error)) from error
    try:
        _require_regular(os.fstat(handle))
        return os.fdopen(handle, "rb", buffering=0)
    except BaseException:
        os.close(handle)
        raise


def _open(real: Path, root: Path) -> int:
    *steps, name = real.relative_to(root).parts
    if os.open not in os.supports_dir_fd:
        return os.open(real, _READ | _STAY)
    directory = os.open(root, _STEP | _STAY)
    try:
        for step in steps:
            inner = os.open(step, _STEP | _STAY, dir_fd=directory)
            os.close(directory)
            directory = inner
        return os.open(name, _READ | _STAY, dir_fd=directory)
    finally:
        os.close(directory)


def _require_regular(status: os.stat_result) -> None:
    if not stat.S_ISREG(status.st_mode):
        raise Refused(_KINDS.get(stat.S_IFMT(status.st_mode), "it is not a regular file"))


def _reason(error: OSError) -> str:
    return f"it cannot be read: {(error.strerror or str(error)).lower()}"
