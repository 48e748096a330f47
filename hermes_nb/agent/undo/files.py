"""Reads files for undo, and restores them.

Paths with symbolic links are refused. Otherwise an undo could write to a different directory if a
directory in the path was replaced by a link after the turn.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from hermes_nb.agent.undo.records import FileItem, FileState
from hermes_nb.core.errors import HermesError
from hermes_nb.core.files import write_atomic

_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_NOFOLLOW", 0)
    | getattr(os, "O_NONBLOCK", 0)  # opening a pipe without a writer would block
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_LINK = "it is behind a symbolic link"


class NotRestored(HermesError):
    """A file was not restored; the message is the reason and follows the file's name."""


def read_state(path: Path, limit: int) -> tuple[FileState, bytes]:
    """Return a file's state, and its content if that is at most `limit` bytes."""
    if os.path.realpath(path) != str(path):
        return FileState(kind="odd", why=_LINK), b""
    try:
        handle = os.open(path, _FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return FileState(kind="absent"), b""
    except OSError as error:
        why = _LINK if error.errno == errno.ELOOP else error.strerror or str(error)
        return FileState(kind="odd", why=why), b""
    try:
        return _content(handle, limit)
    except OSError as error:
        return FileState(kind="odd", why=error.strerror or str(error)), b""
    finally:
        os.close(handle)


def _content(handle: int, limit: int) -> tuple[FileState, bytes]:
    status = os.fstat(handle)
    if not stat.S_ISREG(status.st_mode):
        return FileState(kind="odd", why="it is not a regular file"), b""
    mode, data = stat.S_IMODE(status.st_mode), b""
    if status.st_size <= limit:
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    if max(status.st_size, len(data)) > limit:
        mark = f"{status.st_size}:{status.st_mtime_ns}"
        why = f"it is larger than {limit / 1e6:g} MB, the limit for saved files"
        return FileState(kind="large", digest=mark, mode=mode, size=status.st_size, why=why), b""
    digest = hashlib.sha256(data).hexdigest()
    return FileState(kind="file", digest=digest, mode=mode, size=len(data)), data


def missing_folders(path: Path) -> tuple[str, ...]:
    """Return the directories above `path` that do not exist, outermost first."""
    return tuple(str(each) for each in reversed(path.parents) if not each.exists())


def put_back(
    path: Path, item: FileItem, saved: Callable[[str], bytes], *, limit: int, force: bool
) -> str:
    """Restore a file to its state before a turn; return the action taken, or "" if there was none.

    Args:
        path: the file
        item: its states before and after the turn
        saved: returns saved content by digest
        limit: the maximum size of a file that is read
        force: restore the file even if it was changed after the turn

    Raises:
        NotRestored: the file was changed after the turn, its content was not saved, or the system
            refuses the change
    """
    before, after = item.before, item.after
    if before.kind in ("large", "odd") or (before.kind == "file" and not before.saved):
        raise NotRestored(f"was not saved before it was changed: {before.why}")
    now, _ = read_state(path, limit)
    if now.same(before):
        return ""
    if now.kind == "odd":
        raise NotRestored(f"cannot be restored: {now.why}")
    if not force and (after is None or not now.same(after)):
        message = "has been changed since and was not restored"
        if after is None:
            message = "was being changed when the process ended; check it before you restore it"
        raise NotRestored(message)
    mode = before.mode
    if after is not None and now.kind != "absent" and now.mode != after.mode:
        mode = now.mode  # changed after the turn, so only the content is restored
    try:
        return _write(path, item, saved(before.digest) if before.saved else b"", mode, now)
    except OSError as error:
        raise NotRestored(f"cannot be restored: {error.strerror or error}") from error


def _write(path: Path, item: FileItem, data: bytes, mode: int, now: FileState) -> str:
    if item.before.kind == "absent":
        path.unlink()
        for folder in reversed(item.folders):
            with suppress(OSError):  # it may contain other files by now
                Path(folder).rmdir()
        return "removed"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data, mode=mode)
    return "brought back" if now.kind == "absent" else "restored"
