"""Files as they are now, and put back as they were before a turn.

A file is taken only if no link leads to it anywhere: else a directory that was replaced by a link
between a turn and its undo would send the undo to write somewhere else.
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
    | getattr(os, "O_NONBLOCK", 0)  # a pipe without a writer would hold us for ever
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_BINARY", 0)
)
_LINK = "a link leads to it"


class NotRestored(HermesError):
    """A file stays as it is; the text says why, to be read behind its name."""


def look(path: Path, limit: int) -> tuple[FileState, bytes]:
    """Return what a file is now, and its content if that is at most `limit` bytes."""
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
        return FileState(kind="odd", why="it is no regular file"), b""
    mode, data = stat.S_IMODE(status.st_mode), b""
    if status.st_size <= limit:
        with os.fdopen(handle, "rb", closefd=False) as file:
            data = file.read(limit + 1)
    if max(status.st_size, len(data)) > limit:
        mark = f"{status.st_size}:{status.st_mtime_ns}"
        why = f"it is larger than the {limit / 1e6:g} MB up to which files are saved"
        return FileState(kind="large", digest=mark, mode=mode, size=status.st_size, why=why), b""
    digest = hashlib.sha256(data).hexdigest()
    return FileState(kind="file", digest=digest, mode=mode, size=len(data)), data


def missing_folders(path: Path) -> tuple[str, ...]:
    """Return the directories above `path` that do not exist, outermost first."""
    return tuple(str(each) for each in reversed(path.parents) if not each.exists())


def put_back(
    path: Path, item: FileItem, saved: Callable[[str], bytes], *, limit: int, force: bool
) -> str:
    """Make a file what it was before its turn and return what was done, "" if it is that already.

    Raises `NotRestored` when it is not what the turn left (unless `force`), when its content was
    not saved, or when the system refuses.
    """
    before, after = item.before, item.after
    if before.kind in ("large", "odd") or (before.kind == "file" and not before.saved):
        raise NotRestored(f"was not saved before it was changed: {before.why}")
    now, _ = look(path, limit)
    if now.same(before):
        return ""
    if now.kind == "odd":
        raise NotRestored(f"cannot be restored: {now.why}")
    if not force and (after is None or not now.same(after)):
        message = "has been changed since, so it stays as it is"
        if after is None:
            message = "was being changed when the process ended; look at it before it is restored"
        raise NotRestored(message)
    mode = before.mode
    if after is not None and now.kind != "absent" and now.mode != after.mode:
        mode = now.mode  # somebody has set it since; only the content is ours to change
    try:
        return _write(path, item, saved(before.digest) if before.saved else b"", mode, now)
    except OSError as error:
        raise NotRestored(f"cannot be restored: {error.strerror or error}") from error


def _write(path: Path, item: FileItem, data: bytes, mode: int, now: FileState) -> str:
    if item.before.kind == "absent":
        path.unlink()
        for folder in reversed(item.folders):
            with suppress(OSError):  # something else is in it by now
                Path(folder).rmdir()
        return "removed"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, data, mode=mode)
    return "brought back" if now.kind == "absent" else "restored"
