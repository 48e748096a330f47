"""Find the files in a workspace that run later or instruct an agent.

"Later" means after the current command, without another approval: git hooks, startup files,
configuration that contains programs, notebooks that start an agent. The walk enters every folder.
In installed packages, it only lists what Python runs at startup. It can temporarily change the mode
of folders that their owner cannot read. A folder that still cannot be read is reported.
"""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.safety.protected import hides, known_names, obeyed_at_home, secret_file, shadows

if TYPE_CHECKING:
    from hermes_nb.core.messages import Json

_WALKS = 3
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_ENVIRONMENTS = frozenset({".venv", "venv"})
_IN_GIT = frozenset({"config", "config.worktree", "attributes", "commondir"})
_SEQUENCES = frozenset({"rebase-merge", "rebase-apply", "sequencer"})
_GIT_FOLDERS = _SEQUENCES | {"hooks", "info", "modules", "worktrees"}
_TODO = frozenset({"git-rebase-todo", "todo"})
_MODULE = re.compile(r"\.(?:py|so|pyd)$")
_AGENT = re.compile(
    r"%hermes\b|magic\(\s{0,9}['\"]hermes|\w\(\s{0,9}['\"]hermes['\"]\s{0,9},"
    r"|%alias_magic\b[^\n]{0,99}\bhermes\b|\bhermes_nb\b|\bjupyter\W{1,9}hermes\b"
    r"|(?m:^)[ \t]{0,99}[,;/][ \t]{0,9}hermes\b"
    r"|\A[^\w'\"#]{0,99}(?:(?:ins|nav)\W{1,9})?(?:In \[\d{0,9}\]:\s{0,9})?"
    r"hermes\b(?!\s{0,9}[=.,]|\s{0,99};?\s{0,99}\Z)[^\n]*\s*\Z"
    r"|(?m:^)[^\n%]*%[^\n]*[ \t]hermes[ \t]+[^\s=.,]"
    r"|\A\s*(?:%%[^\n]*\n\s*)+hermes[ \t]+[^\s=.,]"
)
"""Matches a magic or its alias, the package, the program, IPython's shorthand for calls, or a magic
without its `%`, which IPython accepts as the only line, even after a prompt (`>>>`) or another
magic (`%time`, `%%capture`)."""


def starts_agent(source: str) -> bool:
    """Return whether a cell with this source would start an agent."""
    return bool(_AGENT.search(source))


def agent_cells(notebook: str) -> frozenset[str]:
    """Return the sources of cells in a notebook that would start an agent.

    `notebook` is the text of an .ipynb file (nbformat 1 to 4). Returns an empty set for invalid
    JSON.
    """
    try:
        cells = list(_code_cells(json.loads(notebook)))
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(filter(starts_agent, cells))


_SOURCES = frozenset({"source", "input", "code"})
"""Keys for a cell's source: `source` in nbformat 4, `input` in 2 and 3, `code` in 1."""


def _code_cells(value: Json) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _code_cells(each)
    elif isinstance(value, dict):
        if value.get("cell_type") == "code":
            for name in _SOURCES & value.keys():  # which one counts depends on the format
                source = value[name]
                yield "".join(map(str, source)) if isinstance(source, list) else str(source)
        else:
            for each in value.values():
                yield from _code_cells(each)


Mark = tuple[int, int, int, int]
"""A file's inode, size, modification time and change time. The change time cannot be forged."""


class TemporaryAccess:
    """Makes inaccessible files and folders accessible, and later restores their modes."""

    def __init__(self) -> None:
        """Start with no opened paths."""
        self._modes: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> TemporaryAccess:
        """Return this object. Paths remain accessible until the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the modes of files that still exist with the same inode."""
        for path, (mode, inode) in reversed(self._modes.items()):
            with suppress(OSError):
                if os.lstat(path).st_ino == inode:
                    os.chmod(path, mode)

    def open(self, path: str) -> bool:
        """Let the owner read and write a file, or list and modify a folder.

        Return whether it worked. Symbolic links are left alone.
        """
        with suppress(OSError):
            found = os.lstat(path)
            if path not in self._modes and not stat.S_ISLNK(found.st_mode):
                owner = 0o700 if stat.S_ISDIR(found.st_mode) else 0o600
                os.chmod(path, stat.S_IMODE(found.st_mode) | owner)
                self._modes[path] = stat.S_IMODE(found.st_mode), found.st_ino
                return True
        return False


Entries = dict[str, os.DirEntry[str]]


@dataclass(slots=True)
class LaterPlaces:
    """The result of a walk: paths whose content runs later."""

    files: list[str] = field(default_factory=list)
    """Files that run later."""
    folders: list[str] = field(default_factory=list)
    """Folders in which everything runs later."""
    hidden: dict[str, int] = field(default_factory=dict)
    """Inodes of the hidden entries, by path."""
    caches: dict[str, Mark] = field(default_factory=dict)
    """State of compiled files, by path."""
    notebooks: dict[str, Mark] = field(default_factory=dict)
    """State of notebooks, by path."""
    new: list[str] = field(default_factory=list)
    """Hidden entries that are missing from `Look.known`."""
    closed: dict[str, OSError] = field(default_factory=dict)
    """Errors for folders that could not be read, by path."""


@dataclass(slots=True)
class WorkspaceWalk:
    """A walk through a workspace."""

    root: Path
    """Where the walk starts."""
    environment: bool = False
    """Whether to omit files from installed packages."""
    fixed: frozenset[str] = frozenset()
    """Folders to skip."""
    known: Mapping[str, int] | None = None
    """Inodes of the hidden entries before the command, by path. If None, no entry counts as new."""
    opened: TemporaryAccess | None = None
    """Makes unreadable folders accessible. If None, they are reported in `places.closed`."""
    places: LaterPlaces = field(default_factory=LaterPlaces)
    """The result so far."""
    home: str = field(default_factory=lambda: os.path.realpath(Path.home()))
    """The user's home directory without links."""

    def walk(self) -> LaterPlaces:
        """Walk through all folders. Retry if folders disappear during the walk."""
        for _ in range(_WALKS):
            self.places = LaterPlaces()
            for place, folders, entries in self.below(str(self.root)):
                self._folder(place, folders, entries)
            gone = (FileNotFoundError, NotADirectoryError)
            if not any(isinstance(error, gone) for error in self.places.closed.values()):
                break
        return self.places

    def below(self, top: str) -> Iterator[tuple[str, list[str], Entries]]:
        """Walk like `os.walk`. Folders that cannot be read are added to `closed`."""
        waiting = [top]
        while waiting:
            place = waiting.pop()
            try:
                entries = {entry.name: entry for entry in _entries(place, self.opened)}
                folders = [name for name, entry in entries.items() if _is_folder(entry)]
            except OSError as error:
                self.places.closed[place] = error
                continue
            links = {name for name in folders if entries[name].is_symlink()}
            yield place, folders, entries
            paths = (os.path.join(place, name) for name in folders if name not in links)
            waiting += [path for path in paths if path not in self.fixed]

    def _folder(self, place: str, folders: list[str], entries: Entries) -> None:
        below = place[len(str(self.root)) :].strip(os.sep).casefold()
        parts = tuple(below.split(os.sep)) if below else ()
        packages = not _ENVIRONMENTS.isdisjoint(parts) or not _PACKAGES.isdisjoint(parts)
        if parts and parts[-1] == ".git":
            self.places.folders.append(place)
            self._in_git(place)
            folders[:] = []
            return
        if {"HEAD", "config", "objects"} <= entries.keys():  # a bare repository
            self._in_git(place)
        whole = all_later(parts)
        if not (packages or whole):
            self._hidden(place, folders, entries)
            self._marks(place, entries)
        if not (packages and self.environment):
            self.places.files += (
                os.path.join(place, name)
                for name in files_in(folders, entries)
                if (whole and not packages) or self._later(place, parts, name)
            )
            if whole and not all_later(parts[:-1]):
                self.places.folders.append(place)
        folders[:] = _walked(parts, folders)

    def _later(self, place: str, parts: tuple[str, ...], name: str) -> bool:
        low, path = name.casefold(), os.path.join(place, name)
        if place == self.home and obeyed_at_home(name) and not secret_file(name):
            return True
        if parts and parts[-1] in _PACKAGES:
            return low.endswith((".pth", ".py"))
        if not _ENVIRONMENTS.isdisjoint(parts):
            return low == "pyvenv.cfg" or low.startswith(("activate", "python"))
        later = known_names("later")
        if later.file.match(low) or low == ".git":
            return True
        above = any(low == first for first, _ in later.pairs)
        if (above or all_later((*parts, low))) and os.path.islink(path):
            return True
        return bool(_MODULE.search(name)) and bool(shadows(Path(path), self.root))

    def _hidden(self, place: str, folders: list[str], entries: Entries) -> None:
        """Record hidden entries. The walk skips new ones, because they are removed completely."""
        for name, entry in list(entries.items()):
            if not (obeyed_at_home(name) if place == self.home else hides(name)):
                continue
            path = os.path.join(place, name)
            self.places.hidden[path] = entry.inode()
            if self.known is not None and not _had(self.known, path, entry.inode()):
                self.places.new.append(path)
                del entries[name]
                folders[:] = [each for each in folders if each != name]

    def _marks(self, place: str, entries: Entries) -> None:
        """Record the state of compiled files and notebooks."""
        cache = os.path.basename(place) == "__pycache__"
        for name, entry in entries.items():
            low = name.casefold()
            compiled = cache or name == "__pycache__" or low.endswith((".pyc", ".pyo"))
            notebook = low.endswith(".ipynb")
            if (compiled or notebook) and not entry.is_dir(follow_symlinks=False):
                marks = self.places.caches if compiled else self.places.notebooks
                path = os.path.join(place, name)
                marks[path] = mark_of(os.path.realpath(path) if notebook else path)

    def _in_git(self, git: str) -> None:
        """Record the files in a git directory that git executes or reads as configuration.

        This includes the files of submodules and worktrees.
        """
        for place, folders, entries in self.below(git):
            below = Path(os.path.relpath(place, git)).parts
            own, hooks = os.path.basename(place), "hooks" in below
            for name in files_in(folders, entries):
                listed = name in _IN_GIT and (name != "attributes" or own == "info")
                listed |= name in _TODO and own in _SEQUENCES
                if listed or name in _GIT_FOLDERS or (hooks and not name.endswith(".sample")):
                    self.places.files.append(os.path.join(place, name))
            if not hooks:
                inside = "modules" in below or "worktrees" in below
                folders[:] = [
                    name
                    for name in folders
                    if name in _GIT_FOLDERS or (inside and name not in ("objects", "refs", "logs"))
                ]


def _had(known: Mapping[str, int], path: str, inode: int) -> bool:
    """Return whether a hidden entry existed before, or was moved together with its folder."""
    if path in known:
        return True
    name = os.path.basename(path)
    return any(inode == own and os.path.basename(old) == name for old, own in known.items())


def files_in(folders: Sequence[str], entries: Entries) -> list[str]:
    """Return the names of all entries that are not folders. A link to a folder counts as a file."""
    inside = set(folders)
    return [name for name, entry in entries.items() if name not in inside or entry.is_symlink()]


def _entries(place: str, opened: TemporaryAccess | None) -> list[os.DirEntry[str]]:
    """List a folder. Raise OSError if it or its entries cannot be read."""
    if opened is not None and not os.access(place, os.R_OK | os.X_OK):
        opened.open(place)
    with os.scandir(place) as found:
        entries = list(found)
    if not os.access(place, os.X_OK):
        raise PermissionError(errno.EACCES, "permission denied", place)
    return entries


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder or a link to one. A broken link is not."""
    try:
        return entry.is_dir()
    except OSError:
        if entry.is_symlink():  # a loop, or an inaccessible target
            return False
        raise


def mark_of(path: str) -> Mark:
    """Return a file's state, or zeros if it does not exist."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return 0, 0, 0, 0
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _walked(parts: tuple[str, ...], folders: list[str]) -> list[str]:
    """Return the subfolders to enter. In an environment, these are the ones with startup files."""
    if parts and parts[-1] in _PACKAGES:
        return []
    kept = [name for name in folders if name != "node_modules"]
    if parts and parts[-1] in _ENVIRONMENTS:
        return [name for name in kept if name.casefold() in ("bin", "scripts", "lib", "lib64")]
    return kept


def all_later(parts: tuple[str, ...]) -> bool:
    """Return whether everything in a folder runs later."""
    later = known_names("later")
    return not later.folders.keys().isdisjoint(parts) or any(
        pair in later.pairs for pair in pairwise(parts)
    )


def is_todo(path: Path) -> bool:
    """Return whether a file is git's to-do list for an ongoing rebase, cherry-pick or revert."""
    return path.name in _TODO and path.parent.name in _SEQUENCES and "hooks" not in path.parts
