"""Files written whole or not at all, and locks between processes.

`write_atomic` leaves no half-written file behind: the data goes to a temporary file in the same
directory, to the disk, and takes the old name in one step. Where the file system knows files
without a name (Linux, most local ones), the temporary file has none until it is whole. Elsewhere a
killed process may leave it; its name begins with a dot and ends with `.hermes-tmp`.
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
"""How the names of temporary files end, for whoever sweeps what a killed process left."""
NO_LOCKS = frozenset({errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL})
"""What file systems without locks answer, such as NFS whose server has no lock manager."""
_POLL = 0.02


def write_atomic(path: Path, data: bytes, *, mode: int | None = None) -> None:
    """Write `data` to `path`, durable when this returns; raise OSError and change nothing else.

    An existing file keeps its permissions and, where the process may give files away, its owner;
    a new one gets `mode`, by default what the umask leaves of 0666. A symbolic link stays, and
    the file it leads to is replaced. The directory has to exist.
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
    """Return a free name beside `path`: its own, a mark, the time, and a number if need be."""
    base = path.with_name(f"{path.name}.{mark}{time.strftime('%Y%m%d-%H%M%S')}")
    found, number = base, 1
    while found.exists():
        number += 1
        found = base.with_name(f"{base.name}-{number}")
    return found


def make_private(directory: Path) -> None:
    """Make a directory and those above it that are missing, for their owner only; raise OSError.

    `Path.mkdir` would give its mode to the last one alone.
    """
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        each.mkdir(mode=0o700, exist_ok=True)


@contextmanager
def locked(path: Path, timeout: float = 10.0, *, required: bool = False) -> Iterator[int]:
    """Hold the lock that guards `path` among processes and threads, waiting up to `timeout` s.

    The lock is on `NAME.lock` beside the file, never on the file itself, which `write_atomic`
    replaces. The lock file stays: removing it would let two holders lock two different files.
    Raises TimeoutError. A file system that has no locks is used without, as by one process alone;
    where a lock is `required`, that raises OSError. The system frees the lock when its holder dies;
    a process that was given the handle, which this yields, holds it too. On Windows the lock is
    `msvcrt`'s on the first byte, with the same effect for its holder.
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
    """Return the handle of a new file that goes when it is closed, -1 where there are none."""
    if not _OPEN_FILES.is_dir():
        return -1
    try:
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except (OSError, AttributeError):  # what is wrong with the directory, if that is it, follows
        return -1


def _named(handle: int, target: Path) -> str:
    """Give a file that has no name one beside `target`."""
    name = target.with_name(f".{target.name[:40]}.{secrets.token_hex(4)}{TEMPORARY}")
    os.link(_OPEN_FILES / str(handle), name, src_dir_fd=handle)  # else Python does not follow it
    return str(name)


_OPEN_FILES = Path("/proc/self/fd")
"""Where a file without a name can be linked from."""


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None


def _inherit(handle: int, before: os.stat_result | None, mode: int | None) -> None:
    """Give the new file the old one's owner and mode, as far as this process may."""
    if sys.platform == "win32":
        return
    if before is None:
        os.fchmod(handle, 0o666 & ~_umask() if mode is None else mode)
        return
    status = os.fstat(handle)
    if (status.st_uid, status.st_gid) != (before.st_uid, before.st_gid):
        with suppress(PermissionError):
            os.fchown(handle, before.st_uid, before.st_gid)
    # After the owner: changing that clears set-user-id bits.
    os.fchmod(handle, stat.S_IMODE(before.st_mode) if mode is None else mode)


def _umask() -> int:
    """Return the process's umask; reading it by setting it would race with other threads."""
    with suppress(OSError, ValueError, StopIteration):
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
        return int(next(x for x in status.splitlines() if x.startswith("Umask:")).split()[1], 8)
    return 0o022


def _sync_directory(directory: Path) -> None:
    """Make the new name durable; not every file system lets a directory be synced."""
    with suppress(OSError):
        handle = os.open(directory, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def append_line(path: Path, line: bytes, *, durable: bool) -> int:
    """Append a line to a file, made for its owner alone, and return the file's size.

    A line before it that a full disk or a kill cut short ends there. Raises OSError.
    """
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        if size := os.fstat(handle).st_size:
            os.lseek(handle, size - 1, os.SEEK_SET)
            line = line if os.read(handle, 1) == b"\n" else b"\n" + line
        if os.write(handle, line) != len(line):
            raise OSError(f"{path.name} could not be written in full")
        if durable:
            os.fsync(handle)
    finally:
        os.close(handle)
    return size + len(line)
