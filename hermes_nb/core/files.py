"""Atomic file writes, and locks between processes.

`write_atomic` writes to a temporary file in the same directory, syncs it to disk and renames it
over the target, so that no half-written file appears. Where unnamed files are supported (Linux,
most local file systems), the temporary file is given a name only when it is complete. Elsewhere, a
killed process can leave it behind, with a name that starts with a dot and ends in `.hermes-tmp`.
"""

from __future__ import annotations

import errno
import os
import secrets
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

TEMPORARY = ".hermes-tmp"
"""Suffix of temporary files, for cleaning up after a killed process."""
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""Errors raised by file systems without locks, such as NFS without a lock manager."""
_POLL = 0.02


def write_atomic(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Replace the file at `path` with `data` atomically and durably.

    An existing file keeps its permissions and, if the process has the right to set it, its owner. A
    new file gets `mode` (default: 0666 minus the umask). A symlink is kept and its target replaced.

    Raises:
        OSError: The write failed, for example because the directory doesn't exist. Nothing changed.
    """
    target = Path(os.path.realpath(path))
    before = _status(target)
    if before is not None and not stat.S_ISREG(before.st_mode):
        raise OSError(f"{str(path)!r} is not a regular file")
    handle, name = _nameless(target.parent), ""
    if handle < 0:
        prefix = f".{target.name[:40]}."
        handle, name = tempfile.mkstemp(prefix=prefix, suffix=TEMPORARY, dir=target.parent)
    try:
        with open(handle, "wb") as file:
            file.write(data)
            file.flush()
            _inherit(handle, before, mode)
            os.fsync(handle)
            name = name or _named(handle, target)
        os.replace(name, target)
    except BaseException:
        if name:
            with suppress(OSError):
                os.unlink(name)
        raise
    _sync_directory(target.parent)


def beside(path: Path, mark: str) -> Path:
    """Return an unused path next to `path`, named `NAME.MARK` followed by the current time."""
    base = path.with_name(f"{path.name}.{mark}{time.strftime('%Y%m%d-%H%M%S')}")
    found, number = base, 1
    while found.exists():
        number += 1
        found = base.with_name(f"{base.name}-{number}")
    return found


def make_private(directory: Path) -> None:
    """Create a directory and its missing parents with mode 0700; raise OSError.

    `Path.mkdir` would apply the mode only to the last directory.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def locked(path: Path, timeout: float = 10.0, *, required: bool = False) -> Iterator[int]:
    """Hold an exclusive lock for `path` against other processes and threads.

    The lock is on `NAME.lock` in the same directory, because `write_atomic` replaces `path` itself.
    The lock file is never removed: otherwise, two processes could lock two different files. The
    system frees the lock when its holder dies. A process that inherits the yielded handle holds the
    lock, too. Windows uses `msvcrt.locking` on the first byte.

    Args:
        path: The file to guard.
        timeout: How long to wait for the lock, in seconds.
        required: Raise OSError on a file system without locks. By default no lock is used there.

    Raises:
        TimeoutError: Another holder did not release the lock in time.
    """
    lock = path.with_name(path.name + ".lock")
    handle = os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0), 0o600)
    try:
        end = time.monotonic() + timeout
        while not _try_lock(handle, required=required):
            if time.monotonic() >= end:
                message = f"{path.name!r} is locked by another process; try again in a moment"
                raise TimeoutError(message)
            time.sleep(_POLL)
        yield handle
    finally:
        os.close(handle)  # frees the lock as well


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int, *, required: bool) -> bool:  # noqa: ARG001
        try:
            os.lseek(handle, 0, os.SEEK_SET)
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(handle: int, *, required: bool) -> bool:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError as error:
            if required or error.errno not in NO_LOCKS:
                raise
        return True


def _nameless(directory: Path) -> int:
    """Return a handle to a new unnamed file, which vanishes when closed, or -1 if unsupported."""
    if not _OPEN_FILES.is_dir():
        return -1
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):  # if the directory is at fault, `mkstemp` reports it
        return -1


def _named(handle: int, target: Path) -> str:
    """Link an unnamed file to a new temporary name next to `target`, and return that name."""
    name = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}{TEMPORARY}")
    os.link(_OPEN_FILES / str(handle), name, src_dir_fd=handle)  # makes Python follow the link
    return str(name)


_OPEN_FILES = Path("/proc/self/fd")
"""Directory in which Linux lists a process's open files; an unnamed file can be linked from
there."""


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _inherit(handle: int, before: os.stat_result | None, mode: int | None) -> None:
    """Give the new file the owner and mode of the old one, as far as permitted."""
    if sys.platform == "win32":
        return
    if before is None:
        os.fchmod(handle, 0o666 & ~_umask() if mode is None else mode)
        return
    status = os.fstat(handle)
    if (status.st_uid, status.st_gid) != (before.st_uid, before.st_gid):
        with suppress(PermissionError):
            os.fchown(handle, before.st_uid, before.st_gid)
    # Last, because changing the owner clears set-user-id bits.
    os.fchmod(handle, stat.S_IMODE(before.st_mode) if mode is None else mode)


def _umask() -> int:
    """Return the umask, read from /proc: setting it to read it would race with threads."""
    with suppress(OSError, ValueError, StopIteration):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(next(x for x in status.splitlines() if x.startswith("Umask:")).split()[1], 8)
    return 0o022


def _sync_directory(directory: Path) -> None:
    """Make a new name in a directory durable; some file systems don't support this."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def append_line(path: Path, line: bytes, *, durable: bool) -> int:
    """Append a line to a file and return the file's new size; raise OSError on failure.

    A new file is readable only by its owner. If the file doesn't end with a line break, for example
    because a process was killed while writing, one is written first. With `durable`, the file is
    synced to disk.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if size := os.fstat(handle).st_size:
            os.lseek(handle, size - 1, os.SEEK_SET)
            line = line if os.read(handle, 1) == b"\n" else b"\n" + line
        if os.write(handle, line) != len(line):
            raise OSError(f"{path.name} could not be written completely")
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)
    return size + len(line)
