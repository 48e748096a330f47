"""Files written whole or not at all, locks between processes, and opening without following.

`write_atomic` leaves no half-written file behind: the data goes to a temporary file in the same
directory, to the disk, and takes the old name in one step. Where the file system knows files
without a name (Linux, most local ones), the temporary file has none until it is whole. Elsewhere a
killed process may leave it; its name begins with a dot and ends with `.hermes-tmp`.

`open_inside` is for repositories that may be hostile: regular files inside of a directory. Each
directory on the way is opened from the one above it, so that nothing exchanged meanwhile leads
elsewhere; a pipe or a device is never opened, not even to look.
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
from typing import BinaryIO

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
    """A file that is there and is not loaded; the text says why."""


def read_regular(path: str | Path, most: int) -> tuple[bytes, int]:
    """Return the first `most` bytes of a regular file, and its size; wait on no pipe.

    Raises OSError, as for a directory, and `Refused` for what else is no regular file.
    """
    handle = os.open(path, _READ)
    try:
        status = os.fstat(handle)
        if not stat.S_ISDIR(status.st_mode):  # of which `open` says what it is
            _require_regular(status)
        data, piece = b"", max(status.st_size + 1, 1 << 16)
        while len(data) < most and (more := os.read(handle, min(piece, most - len(data)))):
            data += more
    finally:
        os.close(handle)
    return data, max(status.st_size, len(data))


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


def repository(directory: Path) -> Path | None:
    """Return the root of the git repository around a directory without links, or None.

    Like git itself this neither crosses into another file system nor trusts a repository that
    belongs to somebody else: on a shared machine anyone can put a `.git` into `/tmp`. The search
    ends with the user's home.
    """
    try:
        home = Path(os.path.realpath(Path.home()))
    except RuntimeError:  # there is none
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
    except OSError:  # a directory that is gone has no repository
        return None
    return None


def _is_ours(mark: Path, owner: int) -> bool:
    """Say whether `mark` makes a repository: a directory, or a file as in worktrees."""
    try:
        status = mark.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    trusted = {owner, 0, os.getuid()} if hasattr(os, "getuid") else {status.st_uid}
    kind = stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode)
    return kind and status.st_uid in trusted


def real_inside(path: Path, root: Path) -> Path:
    """Return where `path` leads, without links; `root` has none.

    Raises FileNotFoundError where there is nothing, `Refused` where it leads out of `root` or
    cannot be followed.
    """
    try:
        path.lstat()
        real = Path(os.path.realpath(path, strict=True))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(path) from error
    except OSError as error:
        raise Refused(_reason(error)) from error
    if not real.is_relative_to(root):
        raise Refused("it is a link that leaves the repository")
    return real


def open_inside(real: Path, root: Path) -> BinaryIO:
    """Open the regular file `real` (from `real_inside`); raise `Refused` if it is none."""
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
        raise Refused(_KINDS.get(stat.S_IFMT(status.st_mode), "it is no regular file"))


def _reason(error: OSError) -> str:
    return f"it cannot be read: {(error.strerror or str(error)).lower()}"
