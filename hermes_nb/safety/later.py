"""What of a workspace runs later or instructs an agent: found, kept, put back after a command.

A sandbox cannot forbid names that are not there yet without making them. So what is there is
looked at before a command that may write, and again after it: what is new is taken away, what
changed is put back, and the caller asks with a diff. The walk looks into every folder but those of
installed code, of which it sees what Python runs at its start. A folder that its owner has closed
is opened to be looked at; one that cannot be is reported.
"""

from __future__ import annotations

import difflib
import errno
import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
import time
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from hermes_nb.safety.protected import (
    SETTLED,
    hides,
    hides_at_home,
    known_names,
    secret_file,
    shadows,
)

if TYPE_CHECKING:
    from hermes_nb.core.messages import Json

MOST_KEPT = 1 << 22
"""Bytes of a file that are kept to be put back; of a longer one only the hash."""
MOST_OF_NOTEBOOKS = 32 << 20
"""Bytes of all notebooks together that are kept to be put back."""
MOST_SHOWN = 100
"""Files of a folder whose content a question shows."""
_WALKS = 3
_PACKAGES = frozenset({"site-packages", "dist-packages"})
_ENVIRONMENTS = frozenset({".venv", "venv"})
_IN_GIT = frozenset({"config", "config.worktree", "attributes", "commondir"})
_SEQUENCES = frozenset({"rebase-merge", "rebase-apply", "sequencer"})
_GIT_FOLDERS = _SEQUENCES | {"hooks", "info", "modules", "worktrees"}
_TODO = frozenset({"git-rebase-todo", "todo"})
_EXECUTES = re.compile(rb"(?m)^[ \t]*(?:exec|x)(?![^\s]).*")
_MODULE = re.compile(r"\.(?:py|so|pyd)$")
_HARMLESS_CONFIG = re.compile(
    r"\s*(?:[#;].*|\[(?:core|user|init|(?:remote|branch|submodule) \"[\w./-]+\")\]"
    r"|(?:repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode"
    r"|symlinks|fetch|remote|merge|rebase|active|name|email|defaultbranch|path|branch)\s*=[^\\]*"
    r"|url\s*=\s*(?!ext::|-)[^\\]*)?"
)

_AGENT = re.compile(
    r"%hermes\b|magic\(\s{0,9}['\"]hermes|\bhermes_nb\b|\A\s{0,99}hermes[ \t][^=\n][^\n]*\s*\Z"
)
"""A magic, the package, or a magic without its `%`, which IPython takes if it is the only line."""


def starts_agent(source: str) -> bool:
    """Say whether a cell with this source starts an agent when it is run."""
    return bool(_AGENT.search(source))


def agent_cells(notebook: str) -> frozenset[str]:
    """Return the sources of a notebook's cells that start an agent.

    `notebook` is the text of an .ipynb file (nbformat 3 or 4). What is no JSON is no notebook.
    """
    try:
        cells = list(_code_cells(json.loads(notebook)))
    except (ValueError, RecursionError):
        return frozenset()
    return frozenset(filter(starts_agent, cells))


def _code_cells(value: Json) -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _code_cells(each)
    elif isinstance(value, dict):
        if value.get("cell_type") == "code":
            source = value.get("source", value.get("input", ""))
            yield "".join(map(str, source)) if isinstance(source, list) else str(source)
        else:
            for each in value.values():
                yield from _code_cells(each)


@dataclass(frozen=True, slots=True)
class Kept:
    """A file as it was: what is in it (None: too long), its hash and mode, or where it leads."""

    content: bytes | None = None
    digest: str = ""
    mode: int = 0o644
    link: str = ""


Mark = tuple[int, int, int, int]
"""Inode, size and times of a file: the last of them nobody can choose."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """What runs later below `root`; `fixed` cannot have been changed by the command.

    `hidden` are the entries that hide themselves, with their inodes; `caches` are marks of compiled
    code, and `notebooks` marks with what was in them (None: too long).
    """

    root: Path
    files: Mapping[str, Kept]
    hidden: Mapping[str, int] = field(default_factory=dict)
    caches: Mapping[str, Mark] = field(default_factory=dict)
    notebooks: Mapping[str, tuple[Mark, Kept]] = field(default_factory=dict)
    fixed: frozenset[str] = frozenset()
    environment: bool = False

    def had(self, path: str, inode: int) -> bool:
        """Say whether an entry that hides itself was there, or has moved with its folder."""
        if path in self.hidden:
            return True
        name = os.path.basename(path)
        return any(
            inode == own and os.path.basename(old) == name for old, own in self.hidden.items()
        )


@dataclass(frozen=True, slots=True)
class Taken:
    """What a command made or changed, and what runs later: not there before it is agreed.

    `after` is where it is held until then, None for what the command has removed. What `stays`
    could not be looked at or not be put back.
    """

    path: Path
    before: Kept | None
    after: Path | None = None
    stays: bool = False
    holder: Holder | None = None

    def diff(self) -> str:
        """Return what the command would have changed, as a unified diff."""
        before, lines, opened = _lines(self.before), list[str](), Opened()
        held = [*islice(_held(self.path, self.after), MOST_SHOWN + 1)]
        for name, file in held[:MOST_SHOWN]:
            after = _lines(_keep(str(file), opened) if file else None)
            lines += difflib.unified_diff(before, after, f"a/{name}", f"b/{name}")
        more = f"(more than {MOST_SHOWN} files in {self.path})\n" if len(held) > MOST_SHOWN else ""
        return "".join(lines) + more


class Holder:
    """A folder for what was taken from a workspace; it ends with whoever holds it."""

    def __init__(self, root: Path) -> None:
        """Make it in `root`, from where files are moved and not copied, else elsewhere."""
        try:
            self.folder = Path(tempfile.mkdtemp(prefix=".hermes-held-", dir=root))
        except OSError:
            self.folder = Path(tempfile.mkdtemp(prefix="hermes-held-"))
        weakref.finalize(self, _remove, self.folder)

    def take(self, path: Path) -> Path:
        """Move a file, link or folder here; return where it is."""
        target = self.folder / str(len(os.listdir(self.folder)))
        shutil.move(path, target)
        return target


class Opened:
    """Opens to this process what its owner has closed, and closes it again at the end."""

    def __init__(self) -> None:
        """Begin with nothing open."""
        self._modes: dict[str, tuple[int, int]] = {}

    def __enter__(self) -> Opened:
        """Return it; what it opens is open until the block ends."""
        return self

    def __exit__(self, *_: object) -> None:
        """Put modes back where the same file is still there."""
        for path, (mode, inode) in reversed(self._modes.items()):
            with suppress(OSError):
                if os.lstat(path).st_ino == inode:
                    os.chmod(path, mode)

    def open(self, path: str) -> bool:
        """Let the owner read a file, or list and change a folder; say whether that was done."""
        with suppress(OSError):
            found = os.lstat(path)
            if path not in self._modes and not stat.S_ISLNK(found.st_mode):
                os.chmod(path, stat.S_IMODE(found.st_mode) | 0o700)
                self._modes[path] = stat.S_IMODE(found.st_mode), found.st_ino
                return True
        return False


Entries = dict[str, os.DirEntry[str]]


@dataclass(slots=True)
class Places:
    """Where things run later: files, and folders of which everything does.

    `hidden`, `caches` and `notebooks` are as in a snapshot, `new` the entries that hide themselves
    and were not there before, `closed` the folders that could not be looked into, and why.
    """

    files: list[str] = field(default_factory=list)
    folders: list[str] = field(default_factory=list)
    hidden: dict[str, int] = field(default_factory=dict)
    caches: dict[str, Mark] = field(default_factory=dict)
    notebooks: dict[str, Mark] = field(default_factory=dict)
    new: list[str] = field(default_factory=list)
    closed: dict[str, OSError] = field(default_factory=dict)


def find_later(root: Path, *, environment: bool = False) -> Places:
    """Find what runs later below `root`; `environment` leaves folders of installed code out.

    Folders that cannot be listed are left out.
    """
    return _Look(root, environment=environment).walk()


@dataclass(slots=True)
class _Look:
    """A walk; `before` is what was there before a command, `opened` opens what is closed."""

    root: Path
    environment: bool = False
    fixed: frozenset[str] = frozenset()
    before: Snapshot | None = None
    opened: Opened | None = None
    places: Places = field(default_factory=Places)
    home: str = field(default_factory=lambda: os.path.realpath(Path.home()))

    def walk(self) -> Places:
        """Look into every folder; again where folders come and go meanwhile."""
        for _ in range(_WALKS):
            self.places = Places()
            for place, folders, entries in self.below(str(self.root)):
                self._folder(place, folders, entries)
            gone = (FileNotFoundError, NotADirectoryError)
            if not any(isinstance(error, gone) for error in self.places.closed.values()):
                break
        return self.places

    def below(self, top: str) -> Iterator[tuple[str, list[str], Entries]]:
        """Walk as `os.walk` does; what cannot be looked into is `closed`, not passed over."""
        waiting = [top]
        while waiting:
            place = waiting.pop()
            try:
                entries = {entry.name: entry for entry in _entries(place, self.opened)}
                folders = [name for name, entry in entries.items() if entry.is_dir()]
            except OSError as error:
                self.places.closed[place] = error
                continue
            links = {name for name in folders if entries[name].is_symlink()}
            yield place, folders, entries
            paths = (os.path.join(place, name) for name in folders if name not in links)
            waiting += [path for path in paths if path not in self.fixed]

    def _folder(self, place: str, folders: list[str], entries: Entries) -> None:
        below = os.path.relpath(place, self.root)
        parts = () if below == "." else tuple(part.casefold() for part in Path(below).parts)
        packages = not _ENVIRONMENTS.isdisjoint(parts) or not _PACKAGES.isdisjoint(parts)
        if parts and parts[-1] == ".git":
            self.places.folders.append(place)
            self._in_git(place)
            folders[:] = []
            return
        if {"HEAD", "config", "objects"} <= entries.keys():  # a bare repository
            self._in_git(place)
        whole = _whole(parts)
        if not (packages or whole):
            self._hidden(place, folders, entries)
            self._marks(place, entries)
        if not (packages and self.environment):
            self.places.files += (
                os.path.join(place, name)
                for name in _names(folders, entries)
                if (whole and not packages) or self._later(place, parts, name)
            )
            if whole and not _whole(parts[:-1]):
                self.places.folders.append(place)
        folders[:] = _walked(parts, folders)

    def _later(self, place: str, parts: tuple[str, ...], name: str) -> bool:
        private = place == self.home and hides_at_home(name) and not secret_file(name)
        return private or _later(place, parts, name, self.root)

    def _hidden(self, place: str, folders: list[str], entries: Entries) -> None:
        """Note what hides itself; what is new is left to be taken as a whole."""
        for name, entry in list(entries.items()):
            path = os.path.join(place, name)
            if not (hides_at_home(name) if place == self.home else hides(name)):
                continue
            self.places.hidden[path] = entry.inode()
            if self.before is not None and not self.before.had(path, entry.inode()):
                self.places.new.append(path)
                del entries[name]
                folders[:] = [each for each in folders if each != name]

    def _marks(self, place: str, entries: Entries) -> None:
        """Note the state of compiled code and of notebooks."""
        cache = os.path.basename(place) == "__pycache__"
        for name, entry in entries.items():
            path, low = os.path.join(place, name), name.casefold()
            if entry.is_dir(follow_symlinks=False):
                continue
            if cache or name == "__pycache__" or low.endswith((".pyc", ".pyo")):
                self.places.caches[path] = _mark(path)
            elif low.endswith(".ipynb"):
                self.places.notebooks[path] = _mark(path)

    def _in_git(self, git: str) -> None:
        """Note what of a repository's own files git runs or obeys, submodules' too."""
        for place, folders, entries in self.below(git):
            below = Path(os.path.relpath(place, git)).parts
            own, hooks = os.path.basename(place), "hooks" in below
            for name in _names(folders, entries):
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


def _names(folders: Sequence[str], entries: Entries) -> list[str]:
    """Return what is no folder; a link to one is none."""
    inside = set(folders)
    return [name for name, entry in entries.items() if name not in inside or entry.is_symlink()]


def _entries(place: str, opened: Opened | None) -> list[os.DirEntry[str]]:
    """List a folder; raise OSError where that cannot be, or what is in it cannot be looked at."""
    if opened is not None and not os.access(place, os.R_OK | os.X_OK):
        opened.open(place)
    with os.scandir(place) as found:
        entries = list(found)
    if not os.access(place, os.X_OK):
        raise PermissionError(errno.EACCES, "no right to enter", place)
    return entries


def _mark(path: str) -> Mark:
    found = os.lstat(path)
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def _walked(parts: tuple[str, ...], folders: list[str]) -> list[str]:
    """Return the folders to look into: of installed code only what runs at its start."""
    if parts and parts[-1] in _PACKAGES:
        return []
    kept = [name for name in folders if name != "node_modules"]
    if parts and parts[-1] in _ENVIRONMENTS:
        return [name for name in kept if name.casefold() in ("bin", "scripts", "lib", "lib64")]
    return kept


def _whole(parts: tuple[str, ...]) -> bool:
    """Say whether everything in a folder runs later."""
    later = known_names("later")
    return not later.folders.keys().isdisjoint(parts) or any(
        pair in later.pairs for pair in pairwise(parts)
    )


def _later(place: str, parts: tuple[str, ...], name: str, root: Path) -> bool:
    low, path = name.casefold(), os.path.join(place, name)
    if parts and parts[-1] in _PACKAGES:
        return low.endswith((".pth", ".py"))
    if not _ENVIRONMENTS.isdisjoint(parts):
        return low == "pyvenv.cfg" or low.startswith(("activate", "python"))
    if known_names("later").file.match(low) or low == ".git":
        return True
    above = any(low == first for first, _ in known_names("later").pairs)
    if (above or _whole((*parts, low))) and os.path.islink(path):
        return True
    return bool(_MODULE.search(name)) and bool(shadows(Path(path), root))


def look_before(root: Path, *, environment: bool, fixed: frozenset[str]) -> Snapshot:
    """Return what runs later below `root`, with what is in it, before a command."""
    with Opened() as opened:
        places = _Look(root, environment=environment, fixed=fixed, opened=opened).walk()
        files = {path: kept for path in places.files if (kept := _keep(path, opened))}
        left, notebooks = MOST_OF_NOTEBOOKS, {}
        for path, mark in places.notebooks.items():
            kept = _notebook(path, mark, opened, left)
            left -= len(kept.content or b"")
            notebooks[path] = (mark, kept)
        _NOTEBOOKS.clear()
        _NOTEBOOKS.update(notebooks)
    return Snapshot(
        root=root,
        files=files,
        hidden=places.hidden,
        caches=places.caches,
        notebooks=notebooks,
        fixed=fixed,
        environment=environment,
    )


_NOTEBOOKS: dict[str, tuple[Mark, Kept]] = {}
"""The notebooks of the last look, which are not read again while they stay as they are."""


def _notebook(path: str, mark: Mark, opened: Opened, left: int) -> Kept:
    known = _NOTEBOOKS.get(path)
    if known and known[0] == mark and time.time_ns() - mark[-1] > SETTLED:
        return known[1]
    return (_keep(path, opened, left) if mark[1] <= left else None) or Kept()


def _keep(path: str, opened: Opened, most: int = MOST_KEPT) -> Kept | None:
    try:
        found = os.lstat(path)
        if stat.S_ISLNK(found.st_mode):
            return Kept(link=os.readlink(path))
        if not os.access(path, os.R_OK):
            opened.open(path)
        number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(number, "rb") as file:
            content = file.read(most + 1)
            digest = hashlib.sha256(content)
            while chunk := file.read(1 << 20):
                digest.update(chunk)
    except FileNotFoundError:
        return None
    except OSError:  # not readable: its owner may change it, and then its times
        return Kept(digest=f"unreadable {_mark(path)}")
    kept = content if len(content) <= most else None
    return Kept(content=kept, digest=digest.hexdigest(), mode=stat.S_IMODE(found.st_mode))


def take_back(snapshot: Snapshot) -> list[Taken]:
    """Put what runs later back as it was before a command; return what was new or changed.

    Sample hooks and the harmless settings of a new or cloned repository may stay. Compiled code
    that is new or has changed is removed without a word: Python makes it again.
    """
    with Opened() as opened:
        back = _Back(snapshot, opened)
        back.drop_caches()
        back.put_back_files()
        back.put_back_notebooks()
        for path in back.places.new:
            opened.open(path)
            back.take(Path(path), None)
        for path, error in back.places.closed.items():
            if os.access(path, os.X_OK) or not isinstance(error, PermissionError):
                back.out.append(Taken(Path(path), None, stays=True))
        for parent in {taken.path.parent for taken in back.out}:
            _remove_empty(parent, snapshot.root)
        return back.out


class _Back:
    """Takes back what a command has left."""

    def __init__(self, snapshot: Snapshot, opened: Opened) -> None:
        self.snapshot, self.opened = snapshot, opened
        self.out: list[Taken] = []
        self.places = _Look(
            snapshot.root, snapshot.environment, snapshot.fixed, snapshot, opened
        ).walk()
        self._holder: Holder | None = None

    def take(self, path: Path, before: Kept | None) -> None:
        """Hold what is at `path`, and put there what was before."""
        if before is not None and not before.link and before.content is None:
            self.out.append(Taken(path, before, stays=True))
            return
        try:
            if path.parent.exists() and not os.access(path.parent, os.W_OK):
                self.opened.open(str(path.parent))
            self._holder = self._holder or Holder(self.snapshot.root)
            after = self._holder.take(path) if os.path.lexists(path) else None
            _put(path, before)
        except OSError:
            self.out.append(Taken(path, before, stays=True))
        else:
            self.out.append(Taken(path, before, after, holder=self._holder))

    def drop_caches(self) -> None:
        for path, mark in self.places.caches.items():
            if self.snapshot.caches.get(path) == mark:
                continue
            try:
                os.unlink(path)
            except OSError:
                self.out.append(Taken(Path(path), None, stays=True))
            if os.path.basename(folder := os.path.dirname(path)) == "__pycache__":
                with suppress(OSError):  # others are in it
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
                continue  # a link leads elsewhere; it is itself taken away
            self.take(path, before)

    def put_back_notebooks(self) -> None:
        for name, mark in self.places.notebooks.items():
            known, before = self.snapshot.notebooks.get(name, (None, None))
            if known == mark:
                continue
            now = agent_cells(_text(name, self.opened))
            if before and before.content is not None:
                now -= agent_cells(before.content.decode("utf-8", "replace"))
            if now:
                self.take(Path(name), before)


def _text(path: str, opened: Opened) -> str:
    """Return what a program reads at `path`, a link's target too; "" for what is no file."""
    real = os.path.realpath(path)
    kept = _keep(real, opened, MOST_OF_NOTEBOOKS)
    return (kept.content or b"").decode("utf-8", "replace") if kept else ""


def give_back(taken: Sequence[Taken]) -> None:
    """Put what was taken away where it was, now that the user has agreed."""
    with Opened() as opened:
        for each in (each for each in taken if not each.stays):
            for folder in reversed(each.path.parents):
                if folder.exists() and not os.access(folder, os.X_OK):
                    opened.open(str(folder))
            if each.path.parent.exists() and not os.access(each.path.parent, os.W_OK):
                opened.open(str(each.path.parent))
            each.path.unlink(missing_ok=True)
            if each.after is not None:
                each.path.parent.mkdir(parents=True, exist_ok=True)
                shutil.move(each.after, each.path)


def _may_stay(path: Path, before: Kept | None, now: Kept | None, opened: Opened) -> bool:
    """Say whether a change is what `git init`, `git clone`, `git checkout` and a rebase make.

    Attributes choose among filters that are set elsewhere: they may where a repository sets none.
    """
    if now is not None and now.link:
        return False
    if is_todo(path):  # what git has done since, it has struck out
        return _executed(now) <= _executed(before)
    if path.name == ".gitattributes":
        git = next((each / ".git" for each in path.parents if (each / ".git").exists()), path)
        return now is None or _harmless(_keep(str(git / "config"), opened))
    if path.name == ".gitmodules":
        return now is None or _harmless(now)
    made = before is None and path.name in ("config", "HEAD")
    return made and (path.parent / "objects").is_dir() and _harmless(now)


def is_todo(path: Path) -> bool:
    """Say whether git itself writes there what is left to do of a rebase or a sequence."""
    return path.name in _TODO and path.parent.name in _SEQUENCES and "hooks" not in path.parts


def _executed(todo: Kept | None) -> set[bytes]:
    """Return what git would execute of what is left to do."""
    if todo is None:
        return set()
    return {b"all of it"} if todo.content is None else {*_EXECUTES.findall(todo.content)}


def _harmless(settings: Kept | None) -> bool:
    text = b"\0" if settings is None or settings.content is None else settings.content
    lines = text.decode("utf-8", "replace").splitlines()
    return all(_HARMLESS_CONFIG.fullmatch(line) for line in lines)


def _put(path: Path, kept: Kept | None) -> None:
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
        if not inside or not _whole(parts) or any(place.iterdir()):
            return
        place.rmdir()


def _lines(kept: Kept | None) -> list[str]:
    if kept is None:
        return []
    if kept.link:
        return [f"-> {kept.link}\n"]
    if kept.content is None:
        return [f"(long, sha256 {kept.digest})\n"]
    return [f"{line}\n" for line in kept.content.decode("utf-8", "backslashreplace").splitlines()]


def _held(path: Path, after: Path | None) -> Iterator[tuple[Path, Path | None]]:
    """Yield the files of what is held, by their names in the workspace."""
    if after is None or after.is_symlink() or not after.is_dir():
        yield path, after
        return
    look = _Look(after, opened=Opened())
    for place, folders, entries in look.below(str(after)):
        for name in _names(folders, entries):
            file = Path(place, name)
            yield path / file.relative_to(after), file


def _remove(folder: Path) -> None:
    """Remove a folder, whatever the modes in it."""
    for _ in _Look(folder, opened=Opened()).below(str(folder)):
        pass
    shutil.rmtree(folder, ignore_errors=True)
