"""Save files that run later before a command that may write, and restore them afterwards.

The module `later` explains "run later". A sandbox cannot protect a file that does not exist yet
without creating it. Therefore the workspace is inspected before and after the command. New files
are moved elsewhere, changed files are restored, and the caller asks for approval with a diff. Paths
that could not be inspected or restored are reported.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import re
import shutil
import stat
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from hermes_nb.safety.later import (
    Mark,
    TemporaryAccess,
    WorkspaceWalk,
    agent_cells,
    all_later,
    files_in,
    is_todo,
    mark_of,
)

MOST_KEPT = 1 << 22
"""Maximum bytes of a file whose content is saved. Larger files are only checked for changes."""
MOST_OF_NOTEBOOKS = 32 << 20
"""Maximum total size in bytes of the notebooks whose content is saved."""
LONGEST_NOTEBOOK = 256 << 20
"""Maximum size in bytes of a notebook to search after a command. Larger ones count as unsafe."""
MOST_SHOWN = 100
"""Maximum number of a folder's files in a diff."""
_EXECUTES = re.compile(rb"(?m)^[ \t]*(?:exec|x)(?![^\s]).*")
_HARMLESS_CONFIG = re.compile(
    r"\s*(?:[#;].*|\[(?:core|user|init|(?:remote|branch|submodule) \"[\w./-]+\")\]"
    r"|(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode"
    r"|symlinks|fetch|remote|merge|rebase|active|name|email|defaultbranch|path|branch)\s*=[^\\]*"
    r"|url\s*=\s*(?!ext::|-)[^\\]*)?"
)


@dataclass(frozen=True, slots=True)
class SavedFile:
    """The saved state of a file or link."""

    content: bytes | None = None
    """The content. None if the file was too long or could not be read."""
    digest: str = ""
    """SHA-256 of the content. If not saved: size, inode and change time, which cannot be forged."""
    mode: int = 0o644
    """Permission bits."""
    link: str = ""
    """Target of a symbolic link. Empty for a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RestoreSnapshot:
    """The state, before a command, of the files under `root` that run later."""

    root: Path
    """The workspace."""
    files: Mapping[str, SavedFile]
    """State of the files, by path."""
    hidden: Mapping[str, int] = field(default_factory=dict)
    """Inodes of the hidden entries, by path."""
    caches: Mapping[str, Mark] = field(default_factory=dict)
    """State of compiled files, by path."""
    notebooks: Mapping[str, tuple[Mark, SavedFile]] = field(default_factory=dict)
    """State and saved content of notebooks, by path."""
    fixed: frozenset[str] = frozenset()
    """Paths that the command cannot change."""
    environment: bool = False
    """Whether files from installed packages were omitted."""


@dataclass(frozen=True, slots=True)
class RevertedChange:
    """A command's change to a file that runs later, reverted until the user approves it."""

    path: Path
    """The changed file, link or folder."""
    before: SavedFile | None
    """Its state before the command. None if it did not exist."""
    after: Path | None = None
    """Path of the new version until it is approved. None if the command removed it."""
    stays: bool = False
    """Whether the change remains, because the path could not be inspected or restored."""
    holder: Holder | None = None
    """The object that keeps the temporary folder with `after` alive."""

    def diff(self) -> str:
        """Return the command's change as a unified diff."""
        before, lines = _lines(self.before), list[str]()
        with TemporaryAccess() as opened:
            held = [*islice(_moved_files(self.path, self.after, opened), MOST_SHOWN + 1)]
            for name, file in held[:MOST_SHOWN]:
                after = _lines(_keep(str(file), opened) if file else None)
                lines += difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        more = f"(more than {MOST_SHOWN} files in {self.path})\n" if len(held) > MOST_SHOWN else ""
        return "".join(lines) + more


class Holder:
    """A temporary folder for files moved out of a workspace; deleted along with this object."""

    def __init__(self, root: Path) -> None:
        """Create the folder in `root` to avoid copying, or otherwise in the temp folder."""
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=".hermes-held-", dir=root))
        except OSError:
            self.folder = Path(tempfile.mkdtemp(prefix="hermes-held-"))
        weakref.finalize(self, _remove, self.folder)

    def take(self, path: Path) -> Path:
        """Move a file, link or folder into this folder. Return its new path."""
        target = self.folder / str(len(os.listdir(self.folder)))
        _move(path, target)
        return target


def _move(source: Path, target: Path) -> None:
    """Move a file, link or folder, even a read-only folder."""
    mode = stat.S_IMODE(os.lstat(source).st_mode)
    closed = source.is_dir() and not source.is_symlink() and not os.access(source, os.W_OK)
    if closed:
        source.chmod(mode | 0o700)
    shutil.move(source, target)
    if closed:
        target.chmod(mode)


def look_before(root: Path, *, environment: bool, fixed: frozenset[str]) -> RestoreSnapshot:
    """Before a command, return the state of the files under `root` that run later."""
    with TemporaryAccess() as opened:
        places = WorkspaceWalk(root, environment=environment, fixed=fixed, opened=opened).walk()
        files = {path: kept for path in places.files if (kept := _keep(path, opened))}
        left, notebooks = MOST_OF_NOTEBOOKS, {}
        for path, mark in places.notebooks.items():
            kept = (_keep(path, opened, left) if mark[1] <= left else None) or SavedFile()
            left -= len(kept.content or b"")
            notebooks[path] = (mark, kept)
    return RestoreSnapshot(
        root=root,
        files=files,
        hidden=places.hidden,
        caches=places.caches,
        notebooks=notebooks,
        fixed=fixed,
        environment=environment,
    )


def _keep(path: str, opened: TemporaryAccess, most: int = MOST_KEPT) -> SavedFile | None:
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            return SavedFile(link=os.readlink(path))
        if not os.access(path, os.R_OK):
            opened.open(path)
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            content = file.read(most + 1)
    except FileNotFoundError:
        return None
    except OSError:  # not readable, but a change by its owner would change its times
        return SavedFile(digest=f"unreadable {mark_of(path)}")
    mode = stat.S_IMODE(found.st_mode)
    if len(content) > most:  # a sparse file may be too long to be read completely
        size, changed = f"{found.st_size:,} bytes", f"{found.st_ino} {found.st_ctime_ns}"
        return SavedFile(digest=f"{size} ({changed})", mode=mode)
    return SavedFile(content=content, digest=hashlib.sha256(content).hexdigest(), mode=mode)


def take_back(snapshot: RestoreSnapshot) -> list[RevertedChange]:
    """Restore the files that run later. Return the changes, including new and removed files.

    Sample hooks and harmless settings of a new or cloned repository are kept. New or changed
    compiled files are removed and not returned, because Python recreates them.
    """
    with TemporaryAccess() as opened:
        back = _Back(snapshot, opened)
        back.drop_caches()
        back.put_back_files()
        back.put_back_notebooks()
        for path in back.places.new:
            back.take(Path(path), None)
        for path, error in back.places.closed.items():
            if os.access(path, os.X_OK) or not isinstance(error, PermissionError):
                back.out.append(RevertedChange(Path(path), None, stays=True))
        for parent in {taken.path.parent for taken in back.out}:
            with suppress(OSError):  # a remaining empty folder is harmless
                _remove_empty(parent, snapshot.root)
        return back.out


class _Back:
    """Reverts a command's changes."""

    def __init__(self, snapshot: RestoreSnapshot, opened: TemporaryAccess) -> None:
        self.snapshot, self.opened = snapshot, opened
        self.out: list[RevertedChange] = []
        self.places = WorkspaceWalk(
            snapshot.root, snapshot.environment, snapshot.fixed, snapshot.hidden, opened
        ).walk()
        self._holder: Holder | None = None

    def take(self, path: Path, before: SavedFile | None) -> None:
        """Move the file at `path` elsewhere and restore its earlier state."""
        if before is not None and not before.link and before.content is None:
            self.out.append(RevertedChange(path, before, stays=True))
            return
        after = None
        try:
            _writable(path.parent, self.opened)
            self._holder = self._holder or Holder(self.snapshot.root)
            after = self._holder.take(path) if os.path.lexists(path) else None
            _put(path, before)
        except OSError:
            if after is not None and not path.exists():
                _move(after, path)
            self.out.append(RevertedChange(path, before, stays=True))
        else:
            self.out.append(RevertedChange(path, before, after, holder=self._holder))

    def drop_caches(self) -> None:
        for path, mark in self.places.caches.items():
            if self.snapshot.caches.get(path) == mark:
                continue
            try:
                _writable(Path(path).parent, self.opened)
                os.unlink(path)
            except OSError:
                self.out.append(RevertedChange(Path(path), None, stays=True))
            if os.path.basename(folder := os.path.dirname(path)) == "__pycache__":
                with suppress(OSError):  # not empty
                    os.rmdir(folder)

    def put_back_files(self) -> None:
        files, fixed = self.snapshot.files, self.snapshot.fixed
        after = {path: kept for path in self.places.files if (kept := _keep(path, self.opened))}
        for name in sorted(
            files.keys() | after.keys(), key=lambda n: (".git" not in Path(n).parts, n)
        ):
            before, now, path = files.get(name), after.get(name), Path(name)
            is_fixed = before and any(str(place) in fixed for place in (path, *path.parents))
            if before == now or is_fixed or _may_stay(path, before, now, self.opened):
                continue
            if path.parent.exists() and path.parent.resolve() != path.parent:
                continue  # in a linked folder; the link itself is moved
            self.take(path, before)

    def put_back_notebooks(self) -> None:
        for name, mark in self.places.notebooks.items():
            known, before = self.snapshot.notebooks.get(name, (None, None))
            if known == mark:
                continue
            now = _keep(os.path.realpath(name), self.opened, LONGEST_NOTEBOOK)
            agents = _agents(now)
            if before and before.content is not None:
                agents -= _agents(before)
            if agents:
                self.take(Path(name), None if before and before.link else before)


def _agents(kept: SavedFile | None) -> frozenset[str]:
    """Return the sources of a notebook's cells that start an agent.

    A notebook that cannot be read counts as having one.
    """
    if kept is None:
        return frozenset()
    if kept.content is None:
        return frozenset({"it could not be read"})
    return agent_cells(kept.content.decode("utf-8", "replace"))


def _writable(folder: Path, opened: TemporaryAccess) -> None:
    """Make a folder writable for its owner until `opened` ends, unless it already is."""
    if folder.exists() and not os.access(folder, os.W_OK):
        opened.open(str(folder))


def give_back(taken: Sequence[RevertedChange]) -> None:
    """Apply the approved changes: move new versions into place, delete files without one."""
    with TemporaryAccess() as opened:
        for each in (each for each in taken if not each.stays):
            for folder in reversed(each.path.parents):
                if folder.exists() and not os.access(folder, os.X_OK):
                    opened.open(str(folder))
            _writable(each.path.parent, opened)
            each.path.unlink(missing_ok=True)
            if each.after is not None:
                each.path.parent.mkdir(parents=True, exist_ok=True)
                _move(each.after, each.path)


def _may_stay(
    path: Path, before: SavedFile | None, now: SavedFile | None, opened: TemporaryAccess
) -> bool:
    """Return whether a change is a normal result of git init, clone, checkout or rebase.

    `.gitattributes` selects filters, which are programs that git's configuration defines. It may
    change if the repository's configuration is harmless.
    """
    if now is not None and now.link:
        return False
    if is_todo(path):  # git removes finished steps
        return _executed(now) <= _executed(before)
    if path.name == ".gitattributes":
        git = next((each / ".git" for each in path.parents if (each / ".git").exists()), path)
        return now is None or _harmless(_keep(str(git / "config"), opened))
    if path.name == ".gitmodules":
        return now is None or _harmless(now)
    made = before is None and path.name in ("config", "HEAD")
    return made and (path.parent / "objects").is_dir() and _harmless(now)


def _executed(todo: SavedFile | None) -> set[bytes]:
    """Return the commands that git would execute from the remaining to-do list."""
    if todo is None:
        return set()
    return {b"all of it"} if todo.content is None else {*_EXECUTES.findall(todo.content)}


def _harmless(settings: SavedFile | None) -> bool:
    text = b"\0" if settings is None or settings.content is None else settings.content
    lines = text.decode("utf-8", "replace").splitlines()
    return all(_HARMLESS_CONFIG.fullmatch(line) for line in lines)


def _put(path: Path, kept: SavedFile | None) -> None:
    if kept is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    if kept.link:
        path.symlink_to(kept.link)
        return
    path.write_bytes(kept.content or b"")
    path.chmod(kept.mode)


def _remove_empty(folder: Path, root: Path) -> None:
    for place in (folder, *folder.parents):
        inside = place != root and place.is_relative_to(root)
        parts = tuple(part.casefold() for part in place.relative_to(root).parts) if inside else ()
        if not inside or not all_later(parts) or any(place.iterdir()):
            return
        place.rmdir()


def _lines(kept: SavedFile | None) -> list[str]:
    if kept is None:
        return []
    if kept.link:
        return [f"-> {kept.link}\n"]
    if kept.content is None:
        return [f"(too long to be shown: {kept.digest})\n"]
    return [f"{line}\n" for line in kept.content.decode("utf-8", "backslashreplace").splitlines()]


def _moved_files(
    path: Path, after: Path | None, opened: TemporaryAccess
) -> Iterator[tuple[Path, Path | None]]:
    """Yield the moved files with their paths in the workspace."""
    if after is None or after.is_symlink() or not after.is_dir():
        yield path, after
        return
    for place, folders, entries in WorkspaceWalk(after, opened=opened).below(str(after)):
        for name in files_in(folders, entries):
            file = Path(place, name)
            yield path / file.relative_to(after), file


def _remove(folder: Path) -> None:
    """Remove a folder, even if it contains folders without access rights."""
    for _ in WorkspaceWalk(folder, opened=TemporaryAccess()).below(str(folder)):
        pass
    shutil.rmtree(folder, ignore_errors=True)
