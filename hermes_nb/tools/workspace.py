"""The working directory of the tools: resolve paths in it and display them.

Every path from a model goes through `Workspace.resolve`, which follows links and `..` before it
checks the result. A path outside is refused unless `allowed` permits it, for example after an
approval.
"""

from __future__ import annotations

import difflib
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from hermes_nb.core.errors import ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.safety.protected import why_protected

_NAMES_LOOKED_AT = 2_000
_THOUSAND = 1_000
_REASONS = {
    errno.ENOSPC: "the disk is full; free some space and try again",
    errno.EDQUOT: "the disk quota is used up; free some space and try again",
    errno.EROFS: "it is on a read-only file system; choose another location",
    errno.EACCES: "permission denied; choose another location or ask the user",
    errno.EPERM: "permission denied; choose another location or ask the user",
    errno.EMFILE: "too many files are open in this process; close some in the kernel",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ENOTDIR: "a part of the path is a file, not a directory",
    errno.EEXIST: "a part of the path is a file, not a directory",
    errno.ELOOP: "its symbolic links form a loop; choose another location",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """A working directory, and the other paths that tools may use."""

    root: Path
    """The working directory."""
    also_readable: tuple[Path, ...] = ()
    """Other directories that may be read but not written."""
    allowed: Callable[[Path], bool] = lambda _: False
    """Returns whether a single path outside is permitted, by its real absolute path."""

    def resolve(self, path: str, *, write: bool = False) -> Path:
        """Return the absolute path without links; raise ToolError if it is not permitted."""
        root = self.real_root()
        shown = visible(path)
        if not path.strip() or "\0" in path:
            raise ToolError(f"{shown!r} is not a path; give one inside the working directory")
        # `~$report.xlsx` is a file name; only `~` and `~/` mean the home directory.
        given = Path(path).expanduser() if path == "~" or path[:2] == "~/" else Path(path)
        try:
            real = Path(os.path.realpath(root / given))
        except ValueError as error:  # a lone surrogate cannot occur in a file name
            message = f"{shown!r} is not a path; give one inside the working directory"
            raise ToolError(message) from error
        if not self._inside(real, write=write):
            leads = "" if str(given) == str(real) else f" (it leads to {visible(str(real))})"
            raise ToolError(
                f"{shown!r} is outside the working directory {visible(str(root))}{leads}; "
                "use a path inside it, or ask the user"
            )
        if reason := why_protected(root / given, root, write=write):
            action = "written" if write else "read"
            message = f"{shown!r} is protected and cannot be {action}: {reason}; ask the user"
            raise ToolError(message)
        return real

    def real_root(self) -> Path:
        """Return the working directory without links; raise ToolError if it no longer exists."""
        if not self.root.is_dir():
            raise ToolError(
                f"the working directory {visible(str(self.root))} no longer exists; "
                "ask the user to restore it or to change to another one (%cd)"
            )
        return Path(os.path.realpath(self.root))

    def shown(self, path: Path) -> str:
        """Return a path for display, relative if inside, with invisible characters escaped."""
        root = Path(os.path.realpath(self.root))
        inside = path.is_relative_to(root)
        return visible((path.relative_to(root) if inside else path).as_posix())

    def missing(self, path: Path) -> ToolError:
        """Return the error for a missing path, with the closest existing names."""
        parent = path.parent
        while not os.path.isdir(parent) and parent != parent.parent:  # noqa: PTH112 - never raises
            parent = parent.parent
        wanted = path.relative_to(parent).parts[0]
        names = sorted(entry.name for entry in islice(_entries(parent), _NAMES_LOOKED_AT))
        near = difflib.get_close_matches(wanted, names, n=3, cutoff=0.5)
        hint = f"nearest: {', '.join(map(visible, near))}; " if near else ""
        where = self.shown(parent)
        message = f"no file {visible(wanted)!r} in {where}/; {hint}list_files shows what is there"
        return ToolError(message)

    @contextmanager
    def explained(self, path: Path) -> Iterator[None]:
        """Convert an OSError about `path` in the block to a ToolError that says what to do."""
        try:
            yield
        except FileNotFoundError as error:
            raise self.missing(path) from error
        except OSError as error:
            reason = _REASONS.get(error.errno or 0) or error.strerror or str(error)
            raise ToolError(f"{self.shown(path)!r}: {reason}") from error

    def _inside(self, real: Path, *, write: bool) -> bool:
        roots = [self.real_root()]
        if not write:
            roots += [Path(os.path.realpath(each)) for each in self.also_readable]
        return any(real.is_relative_to(each) for each in roots) or self.allowed(real)


def _entries(directory: Path) -> Iterator[os.DirEntry[str]]:
    try:
        with os.scandir(directory) as entries:
            yield from entries
    except OSError:
        return


def size_text(size: int) -> str:
    """Format a number of bytes: 512 B, 12.3 kB, 4.0 MB (decimal units)."""
    if size < _THOUSAND:
        return f"{size} B"
    value = float(size)
    for unit in ("kB", "MB", "GB"):
        value /= _THOUSAND
        if value < _THOUSAND:
            return f"{value:.1f} {unit}"
    return f"{value / _THOUSAND:.1f} TB"


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading; raise ToolError if it is anything else.

    The file is opened without blocking, because a FIFO without a writer would block forever.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    mode = os.fstat(handle).st_mode
    if stat.S_ISREG(mode):
        return os.fdopen(handle, "rb")
    os.close(handle)
    raise ToolError(f"{path.name!r} is {_not_regular(mode)}")


def _not_regular(mode: int) -> str:
    if stat.S_ISDIR(mode):
        return "a directory; use list_files"
    kinds = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device"}
    kind = kinds.get(stat.S_IFMT(mode), "a device")
    return f"{kind}, not a regular file; only regular files can be read"
