"""Decide which paths contain secrets or run as code, and are therefore protected.

There are three lists. Secrets must not be read (keys, tokens, password files). The file tools must
not write secrets or files that programs execute or read as configuration (git hooks, startup files,
the Hermes directory). Writing files that run later or instruct an agent needs approval. The check
compares the names in both the given and the resolved path, and never opens a file. A hard link to a
secret is recognised by its inode, which `survey` finds.

`survey` walks through a workspace and lists the secrets that a sandbox has to hide. It only reads
directories, not files, and skips unchanged ones. The names and their meanings are in `names.toml`,
in lower case.
"""

from __future__ import annotations

import functools
import importlib.machinery
import os
import re
import stat
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase, translate
from functools import cache
from importlib.metadata import distributions
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Literal

from hermes_nb.safety import table

_HARMLESS = re.compile(
    r"\.env(?:\..+)?[._-](?:example|sample|template|dist|defaults)|(?:example|sample)\.env|cacert\.pem"
    r"|(?:credentials|secrets?)\.(?:py|pyi|md|rst|ipynb|html|css|js|ts|c|h|go|rs|java|r)"
)
"""Matches names that only look secret: shareable templates, and code or text about secrets."""
_COPY = re.compile(r"(?<=.)(?:~|\.(?:bak|backup|copy|old|orig|save|sw[a-p]|tmp))+$")
"""Matches suffixes that editors and users add to the names of copies."""
NOT_IMPORTED = frozenset({"test", "tests", "this", "antigravity", "docs", "examples", "__main__"})
"""Names that are allowed although modules use them: rarely imported ones, and common folders."""
OF_GIT = frozenset({".git", ".github", ".gitignore", ".gitattributes", ".gitmodules", ".gitconfig"})
"""Hidden entries that are checked by name, even in the home directory."""
NOT_WALKED = frozenset({"node_modules", "site-packages", "dist-packages", "__pycache__"})
"""Large folders of third-party files. Files with secret-looking names there are harmless."""


@dataclass(frozen=True, slots=True)
class Names:
    """A list of protected names, each with the reason. A *component* is one name in a path."""

    folders: Mapping[str, str]
    """Reasons by folder name. Everything in the folder is protected."""
    pairs: Mapping[tuple[str, str], str]
    """Reasons by folder name and by pattern for names in that folder."""
    files: Mapping[str, str]
    """Reasons by pattern for file names."""
    file: re.Pattern[str]
    """Matches names in `files`, except `.pth`: outside installed code, it means model weights."""

    def above(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """Return a component that protects everything under it, with the reason, or `("", "")`."""
        for part in parts:
            if part in self.folders:
                return part, self.folders[part]
        return self.paired(parts)

    def paired(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """Return a component that is protected in its folder, with the reason, or `("", "")`."""
        for first, second in pairwise(parts):
            for (one, two), reason in self.pairs.items():
                if first == one and fnmatchcase(second, two):
                    return second, reason
        return "", ""

    def named(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """Return the protected component with the reason, or `("", "")`."""
        component, reason = self.above(parts)
        if reason or not parts:
            return component, reason
        matches = (why for pattern, why in self.files.items() if fnmatchcase(parts[-1], pattern))
        reason = next(matches, "")
        return parts[-1] if reason else "", reason


@cache
def known_names(kind: Literal["secret", "run", "later"]) -> Names:
    """Return the names of a kind.

    `run` lists files that programs execute or read as settings. `later` includes them.
    """
    parts = [table("names")[each] for each in (("run", "later") if kind == "later" else (kind,))]
    folders, pairs, files = (
        {name: why for part in parts for why, listed in part[sort].items() for name in listed}
        for sort in ("folders", "pairs", "files")
    )
    split = {
        (first, second): why for pair, why in pairs.items() for first, second in [pair.split("/")]
    }
    file = re.compile("|".join(translate(name) for name in files if name != "*.pth"))
    return Names(folders, split, files, file)


def secret(parts: tuple[str, ...]) -> tuple[str, str]:
    """Return the secret component of a path and what it contains, or `("", "")`."""
    found = known_names("secret").above(parts)
    if found[1] or not parts or not secret_file(parts[-1]):
        return found
    return known_names("secret").named((_COPY.sub("", parts[-1]),))


def secret_file(name: str) -> bool:
    """Return whether a file with this name probably contains secrets."""
    name = _COPY.sub("", name)
    return bool(known_names("secret").file.match(name)) and not _HARMLESS.fullmatch(name)


SETTLED = 2_000_000_000
"""Nanoseconds after which a directory's change time is reliable, even on coarse file systems."""
_MOST_KEPT = 50_000
"""Maximum directories in the cache."""
_REQUIRED = re.compile(r"[\w.-]+")


def why_protected(path: Path, root: Path, *, write: bool) -> str:
    """Return the reason `path` must not be read (with `write`: written), or "" if there is none.

    A relative path is resolved in `root`. The text completes "... is protected: ".
    """
    given = root / path
    for candidate in dict.fromkeys((given, Path(os.path.realpath(given)))):
        if reason := _reason(candidate, write=write):
            return reason
    return second_name(given, root)


def second_name(path: Path, root: Path) -> str:
    """Return a reason if `path` may be a hard link to a secret in `root` or the home, or ""."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ""
    if found.st_nlink <= 1 or not stat.S_ISREG(found.st_mode):
        return ""
    seen = survey(root, home=Path.home())
    if (found.st_dev, found.st_ino) in seen.linked:
        return "a hard link to a secret file"
    return "" if seen.complete else "a hard link to a file that could not be identified"


def secret_name(parts: tuple[str, ...]) -> str:
    """Return a path's secret component, or "" if there is none."""
    return secret(tuple(part.casefold() for part in parts))[0]


def why_secret(path: PurePath, linked: frozenset[tuple[int, int]] = frozenset()) -> str:
    """Return the secret that a path would reveal, or "" if the path looks harmless.

    A `PurePath` is checked by name only. A `Path` is also resolved and inspected for process
    internals, devices and sockets. `linked` are inodes of hard-linked secrets.
    """
    reason = secret(tuple(part.casefold() for part in path.parts))[1]
    if reason or not isinstance(path, Path):
        return reason
    try:
        real = Path(os.path.realpath(path))
        reason = secret(tuple(part.casefold() for part in real.parts))[1] or _special(real)
        found = None if reason else real.stat()
    except (OSError, ValueError):
        return reason
    if found is None or str(real) == os.devnull:
        return reason
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode)):
        return "not a regular file"
    return "a hard link to a secret file" if (found.st_dev, found.st_ino) in linked else ""


def why_later(path: Path, root: Path) -> str:
    """Describe a file at `path` if it would run later or be read as configuration.

    Return "" for any other file. A relative path is resolved in `root`. The file need not exist.
    """
    given = Path(os.path.abspath(root / path))
    home, real = hermes_home(), Path(os.path.realpath(given))
    if home in (real, *real.parents):
        return known_names("run").folders[".hermes"]
    for candidate in dict.fromkeys((given, real)):
        below = candidate.relative_to(root) if candidate.is_relative_to(root) else candidate
        parts = tuple(part.casefold() for part in below.parts)
        found = known_names("later").named(parts)[1] or shadows(candidate, root)
        if found := found or _hides(candidate, root):
            return found
    return ""


def _hides(path: Path, root: Path) -> str:
    """Return a reason if a file is hidden in the home directory, or newly hidden in the workspace.

    Programs read settings from hidden files.
    """
    home = Path(os.path.realpath(Path.home()))
    if home.is_relative_to(os.path.realpath(root)) and path.is_relative_to(home):
        first = path.relative_to(home).parts[:1]
        if first and obeyed_at_home(first[0]):
            return "a file in your home directory that programs run or obey"
    below = path.relative_to(root).parts if path.is_relative_to(root) else ()
    for number, name in enumerate(below, 1):
        if hides(name) and not os.path.lexists(root.joinpath(*below[:number])):
            return "a new hidden file or folder, which programs may run or obey"
    return ""


def hides_at_home(name: str) -> bool:
    """Return whether an entry in the home is hidden, so probably private or a settings file."""
    return name.startswith(".") and name.casefold() not in OF_GIT


def obeyed_at_home(name: str) -> bool:
    """Return whether an entry in the home is hidden, or a folder with programs or settings."""
    return hides_at_home(name) or name.casefold() in ("bin", "library", "appdata")


def hides(name: str) -> bool:
    """Return whether an entry in a workspace is hidden and not known to be harmless."""
    return name.startswith(".") and not (
        _harmless_names().match(name) or _HARMLESS.fullmatch(name) or name.casefold() in OF_GIT
    )


@cache
def _harmless_names() -> re.Pattern[str]:
    names = table("names")["hidden"]["harmless"]
    return re.compile("|".join(map(translate, names)), re.IGNORECASE)


def shadows(path: Path, root: Path) -> str:
    """Return a reason if a file would be imported instead of an installed module."""
    name, dot, ending = path.name.partition(".")
    if dot + ending not in importlib.machinery.all_suffixes():
        return ""
    folder, name = (
        (path.parent.parent, path.parent.name) if name == "__init__" else (path.parent, name)
    )
    if name in NOT_IMPORTED:
        return ""
    places = (place for place in sys.path if PurePath(place).name in NOT_WALKED)
    there = [(place, os.stat(place).st_mtime_ns) for place in places if os.path.isdir(place)]
    if name not in _installed(tuple(there)):
        return ""
    inside = (folder / "__init__.py").exists() and folder != root and str(folder) not in sys.path
    if inside and not any(folder.glob("*.ipynb")):
        return ""
    return f"imported in place of the installed module {name!r}"


@functools.lru_cache(maxsize=4)
def _installed(folders: tuple[tuple[str, int], ...]) -> frozenset[str]:
    """Return the top-level modules of the standard library and of `folders`, and Python's hooks.

    Includes the requirements of the packages in `folders`, also optional ones that are not
    installed: pandas imports `bottleneck` if it exists.
    """
    names = {"hermes_nb", "sitecustomize", "usercustomize", *sys.stdlib_module_names}
    for folder, _ in folders:
        names |= {name.partition(".")[0] for name in os.listdir(folder) if "-" not in name}
        for found in distributions(path=[folder]):
            wanted = (_REQUIRED.match(each) for each in found.requires or ())
            names |= {each[0].replace("-", "_").casefold() for each in wanted if each}
    return frozenset(names)


def _reason(path: Path, *, write: bool) -> str:
    parts = tuple(part.casefold() for part in path.parts)
    if reason := secret(parts)[1]:
        return reason
    home = hermes_home()
    if path == home / "config.yaml":
        return "the configuration of Hermes, which may contain keys"
    if not write:
        return ""
    if path.is_relative_to(home):
        return known_names("run").folders[".hermes"]
    return known_names("run").named(parts)[1]


def _special(real: Path) -> str:
    parts = real.parts
    if parts[1:2] == ("proc",) and parts[2:] and not parts[2][:1].isalpha():
        return "internal data of a process"
    if parts[1:3] in (("proc", "self"), ("proc", "thread-self"), ("proc", "kcore")):
        return "internal data of a process"
    outside = parts[1:2] in (("sys",), ("run",)) or parts[1:2] == ("dev",)
    return "not a regular file" if outside and str(real) != os.devnull else ""


def hermes_home() -> Path:
    """Return the Hermes directory with links resolved."""
    given = os.environ.get("HERMES_HOME", "")
    return Path(os.path.realpath(Path(given).expanduser() if given else Path.home() / ".hermes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """The secrets in a workspace that a sandbox has to hide."""

    files: tuple[str, ...] = ()
    """Secret files."""
    directories: tuple[str, ...] = ()
    """Secret directories, and those that could not be listed."""
    specials: tuple[str, ...] = ()
    """Sockets, pipes and devices, which could connect to processes outside the sandbox."""
    linked: frozenset[tuple[int, int]] = frozenset()
    """Device and inode of secrets with several hard links, here or in the home."""
    closed: tuple[str, ...] = ()
    """Directories that this process may not list."""
    complete: bool = True
    """Whether the walk was finished."""

    @property
    def secrets(self) -> tuple[str, ...]:
        """All paths to hide."""
        return (*self.files, *self.directories, *self.specials)


class Deadline:
    """A time limit in CPU seconds and in wall-clock seconds.

    `seconds` is the CPU limit. `waiting` is the wall-clock limit, by default three times as long.
    """

    def __init__(self, seconds: float, *, waiting: float = 0.0) -> None:
        """Start now."""
        self._work = time.thread_time() + seconds
        self._clock = time.monotonic() + (waiting or 3 * seconds)

    def left(self) -> float:
        """Return the remaining wall-clock seconds."""
        return self._clock - time.monotonic()

    def over(self) -> bool:
        """Return whether a limit is exceeded."""
        return time.thread_time() > self._work or time.monotonic() > self._clock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """A directory's entries by kind."""

    seen: tuple[int, int] = (0, 0)
    """The directory's inode and change time. Unlike `mtime`, the change time cannot be forged."""
    below: tuple[str, ...] = ()
    """Directories to walk."""
    files: tuple[str, ...] = ()
    """Secret files."""
    links: tuple[str, ...] = ()
    """Links with secret names."""
    directories: tuple[str, ...] = ()
    """Secret directories.

    If the directory may not be listed, this contains the directory itself, so that it is hidden.
    """
    specials: tuple[str, ...] = ()
    """Sockets, pipes and devices."""
    ordinary: tuple[tuple[int, str], ...] = ()
    """Inode and path of all other files."""
    closed: bool = False
    """Whether this process may not list the directory."""
    read: bool = True
    """Whether the directory could be read reliably."""


_LISTED: dict[tuple[str, bool], _Listing] = {}
_WALKS = 3
"""Maximum number of walks. The walk is repeated if directories change in the meantime."""


def survey(root: Path, *, home: Path, seconds: float = 0.15) -> Survey:
    """Find the secrets under `root`, and all hard links to secrets there or in `home`.

    If `root` contains the home, all hidden entries in the home count as secret, because programs
    store private data there under any name. A directory that cannot be listed is hidden completely.
    In that case, every file with several hard links is also hidden. Unchanged directories are not
    read again, so if a walk reaches its time limit, the next call continues it.
    """
    deadline = Deadline(seconds)
    table = known_names("secret")
    unseen: list[object] = []
    folders = [home / name for name in table.folders]
    folders += [home.joinpath(*pair) for pair in table.pairs]
    secret = [entry for folder in folders for entry in _files_below(str(folder), deadline, unseen)]
    if not home.is_relative_to(root) and os.path.isdir(home):
        own = _listing(str(home), at_home=True)
        secret += own.files
        unseen += [] if own.read and not own.closed else [home]
    complete = False
    for _ in range(_WALKS):
        listings, complete = _walk(str(root), str(home), deadline)
        if complete or deadline.over():
            break
    files = [path for each in listings for path in each.files]
    for link in (path for each in listings for path in each.links):
        target = Path(os.path.realpath(link))
        if target.is_relative_to(root) and target.is_file():
            files.append(str(target))
    directories = [path for each in listings for path in each.directories]
    closed = [path for each in listings if each.closed for path in each.directories]
    for folder in directories:
        if os.path.basename(folder).casefold() in table.folders:
            secret += _files_below(folder, deadline, unseen)
    linked = _with_second_name([*secret, *files])
    if unseen or closed:
        linked |= _with_second_name(path for each in listings for _, path in each.ordinary)
    known = {inode for _, inode in linked}
    ordinary = (entry for each in listings for entry in each.ordinary) if known else ()
    files += [path for inode, path in ordinary if inode in known]
    return Survey(
        files=tuple(dict.fromkeys(files)),
        directories=tuple(directories),
        specials=tuple(path for each in listings for path in each.specials),
        linked=linked,
        closed=tuple(closed),
        complete=complete and not deadline.over() and str(root) not in closed,
    )


def _walk(root: str, home: str, deadline: Deadline) -> tuple[list[_Listing], bool]:
    waiting: list[str] = [root]
    out: list[_Listing] = []
    read = True
    while waiting:
        if deadline.over():
            return out, False
        place = waiting.pop()
        out.append(_listing(place, at_home=place == home, follow=place == root))
        read &= out[-1].read
        waiting += out[-1].below
    return out, read


def _listing(place: str, *, at_home: bool = False, follow: bool = True) -> _Listing:
    """Return a directory's entries. It may be a link only with `follow`."""
    key = (place, at_home)
    try:
        found = os.stat(place, follow_symlinks=follow)
        if not stat.S_ISDIR(found.st_mode):
            return _Listing(read=False)
        seen = found.st_ino, found.st_ctime_ns
        kept = _LISTED.get(key)
        if kept is not None and kept.seen == seen:
            return kept
        listing = _list(place, seen, at_home=at_home)
        after = os.stat(place, follow_symlinks=follow)
    except OSError:
        return _Listing(read=False)
    if seen != (after.st_ino, after.st_ctime_ns):
        return replace(listing, read=False)  # the directory was replaced or changed in the meantime
    if len(_LISTED) > _MOST_KEPT:
        _LISTED.clear()
    if time.time_ns() - seen[1] > SETTLED and not listing.closed:
        _LISTED[key] = listing
    return listing


def _list(place: str, seen: tuple[int, int], *, at_home: bool) -> _Listing:
    below, files, links, directories, specials = [], [], [], [], []
    ordinary: list[tuple[int, str]] = []
    table = known_names("secret")
    own, agent = os.path.basename(place).casefold(), str(hermes_home())
    try:
        entries = [*os.scandir(place)]
    except PermissionError:
        entries = None
    if entries is None or not os.access(place, os.X_OK):
        return _Listing(directories=(place,), closed=True)
    for entry in entries:
        name = entry.name.casefold()
        hidden = at_home and hides_at_home(name)
        if entry.is_dir(follow_symlinks=False):
            if hidden or name == ".hermes" or entry.path == agent or table.above((own, name))[1]:
                directories.append(entry.path)
            elif name not in NOT_WALKED and (own, name) != (".git", "objects"):
                below.append(entry.path)
        elif entry.is_symlink():
            links += [entry.path] if hidden or secret_file(name) else []
        elif not entry.is_file(follow_symlinks=False):
            specials.append(entry.path)
        elif hidden or secret_file(name) or table.paired((own, name))[1]:
            files.append(entry.path)
        else:
            ordinary.append((entry.inode(), entry.path))
    return _Listing(
        seen=seen,
        below=tuple(below),
        files=tuple(files),
        links=tuple(links),
        directories=tuple(directories),
        specials=tuple(specials),
        ordinary=tuple(ordinary),
    )


def _files_below(folder: str, deadline: Deadline, unseen: list[object]) -> list[str]:
    """Return the files under a folder. Add errors to `unseen`."""
    out: list[str] = []
    if not os.path.isdir(folder):
        return [folder] if os.path.isfile(folder) else []
    for place, _, names in os.walk(folder, onerror=unseen.append):
        out += [os.path.join(place, name) for name in names]
        if deadline.over():
            break
    return out


def _with_second_name(paths: Iterable[str]) -> frozenset[tuple[int, int]]:
    out = set()
    for path in paths:
        try:
            found = os.stat(path)
        except OSError:
            continue
        if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
            out.add((found.st_dev, found.st_ino))
    return frozenset(out)
