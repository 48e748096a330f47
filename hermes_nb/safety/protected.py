"""Which paths hold secrets, or run as code behind the user's back, and so are not the model's.

Three lists: what must not be read (keys, tokens, password files), what the file tools must not
write (the same, and what a program obeys without asking: git hooks, start-up files, the home of
Hermes), and what runs later or instructs an agent, which is asked about. The check is by name, on
the path as given and on where it really leads; it never opens a file. A second name of a secret (a
hard link) is known by its inode, which `survey` finds.

That is the walk that a sandbox needs before it hides secrets: it lists names, and does not read
directories again whose time has not changed. What names mean is data, `names.toml`, in lower case.
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
"""Made to be shared, or code and text about the thing."""
_COPY = re.compile(r"(?<=.)(?:~|\.(?:bak|backup|copy|old|orig|save|sw[a-p]|tmp))+$")
"""What editors and people add to the name of a file that they keep."""
NOT_IMPORTED = frozenset({"test", "tests", "this", "antigravity", "docs", "examples", "__main__"})
"""Modules that nobody imports by accident, or folders that every project has."""
OF_GIT = frozenset({".git", ".github", ".gitignore", ".gitattributes", ".gitmodules", ".gitconfig"})
"""What hides itself and is judged by what it is, in the home too."""
NOT_WALKED = frozenset({"node_modules", "site-packages", "dist-packages", "__pycache__"})
"""Large, and full of other people's files: what is secret there is no secret."""


@dataclass(frozen=True, slots=True)
class Names:
    """Names and what is said of each; a pair is a name in a folder of another."""

    folders: Mapping[str, str]
    pairs: Mapping[tuple[str, str], str]
    files: Mapping[str, str]
    file: re.Pattern[str]
    """Any of the files, but `.pth`: elsewhere than in installed code it is a model's weights."""

    def above(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """Return the component whose whole content is meant and why, both "" if there is none."""
        for part in parts:
            if part in self.folders:
                return part, self.folders[part]
        return self.paired(parts)

    def paired(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """Return the component that is meant because of the one before it, and why."""
        for first, second in pairwise(parts):
            for (one, two), reason in self.pairs.items():
                if first == one and fnmatchcase(second, two):
                    return second, reason
        return "", ""

    def named(self, parts: tuple[str, ...]) -> tuple[str, str]:
        """Return the component that is meant and what is said of it, both "" if none is."""
        component, reason = self.above(parts)
        if reason or not parts:
            return component, reason
        matches = (why for pattern, why in self.files.items() if fnmatchcase(parts[-1], pattern))
        reason = next(matches, "")
        return parts[-1] if reason else "", reason


@cache
def known_names(kind: Literal["secret", "run", "later"]) -> Names:
    """Return a table; what programs obey (`run`) also runs `later`."""
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
    """Return the component that is secret and what it holds, both "" if none is."""
    found = known_names("secret").above(parts)
    if found[1] or not parts or not secret_file(parts[-1]):
        return found
    return known_names("secret").named((_COPY.sub("", parts[-1]),))


def secret_file(name: str) -> bool:
    """Return whether a file of this name holds secrets."""
    name = _COPY.sub("", name)
    return bool(known_names("secret").file.match(name)) and not _HARMLESS.fullmatch(name)


SETTLED = 2_000_000_000
"""Nanoseconds after which a directory's time tells of every change, on coarse file systems too."""
_MOST_KEPT = 50_000
_REQUIRED = re.compile(r"[\w.-]+")


def why_protected(path: Path, root: Path, *, write: bool) -> str:
    """Return what makes `path` off limits for reading, or for writing if `write`; "" if nothing.

    A relative path is taken from `root`. The text completes "... is protected: ".
    """
    given = root / path
    for candidate in dict.fromkeys((given, Path(os.path.realpath(given)))):
        if reason := _reason(candidate, write=write):
            return reason
    return second_name(given, root)


def second_name(path: Path, root: Path) -> str:
    """Say that `path` is a hard link to a secret of `root` or the home; "" if it is not."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return ""
    if found.st_nlink <= 1 or not stat.S_ISREG(found.st_mode):
        return ""
    seen = survey(root, home=Path.home())
    if (found.st_dev, found.st_ino) in seen.linked:
        return "a second name of a secret file"
    return "" if seen.complete else "a second name of a file that could not be looked for"


def secret_name(parts: tuple[str, ...]) -> str:
    """Return the component of a path that holds secrets, "" if none does."""
    return secret(tuple(part.casefold() for part in parts))[0]


def why_secret(path: PurePath, linked: frozenset[tuple[int, int]] = frozenset()) -> str:
    """Return what a path would reveal; "" if it looks harmless.

    A `PurePath` is judged by its name alone, a `Path` also by where it leads and what is there:
    insides of processes, devices, sockets; `linked` are inodes of secrets with a second name.
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
        return "no ordinary file"
    return "a second name of a secret file" if (found.st_dev, found.st_ino) in linked else ""


def why_later(path: Path, root: Path) -> str:
    """Return what would run or obey a file at `path` later, or be instructed by it; "" if nothing.

    A relative path is taken from `root`; the file need not exist.
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
    """Say that a file would hide itself where programs look for what they obey."""
    home = Path(os.path.realpath(Path.home()))
    if home.is_relative_to(os.path.realpath(root)) and path.is_relative_to(home):
        first = path.relative_to(home).parts[:1]
        if first and obeyed_at_home(first[0]):
            return "a file of the home, where programs look for what they obey"
    below = path.relative_to(root).parts if path.is_relative_to(root) else ()
    for number, name in enumerate(below, 1):
        if hides(name) and not os.path.lexists(root.joinpath(*below[:number])):
            return "a new hidden file or folder, where programs look for what they obey"
    return ""


def hides_at_home(name: str) -> bool:
    """Return whether an entry of the home hides itself: then programs obey it, or it is private."""
    return name.startswith(".") and name.casefold() not in OF_GIT


def obeyed_at_home(name: str) -> bool:
    """Return whether programs look into an entry of the home: a hidden one, or a system's own."""
    return hides_at_home(name) or name.casefold() in ("bin", "library", "appdata")


def hides(name: str) -> bool:
    """Return whether a new entry of a workspace hides itself and is not known to be harmless."""
    return name.startswith(".") and not (
        _harmless_names().match(name) or _HARMLESS.fullmatch(name) or name.casefold() in OF_GIT
    )


@cache
def _harmless_names() -> re.Pattern[str]:
    names = table("names")["hidden"]["harmless"]
    return re.compile("|".join(map(translate, names)), re.IGNORECASE)


def shadows(path: Path, root: Path) -> str:
    """Say that a file would be imported in place of a module that is installed."""
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
    """Return the names that `import` finds in the standard library and in `folders`.

    And those that what is installed there imports where they are, as pandas does `bottleneck`.
    """
    names = {"hermes_nb", *sys.stdlib_module_names}
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
        return "the configuration of Hermes, which may hold keys"
    if not write:
        return ""
    if path.is_relative_to(home):
        return known_names("run").folders[".hermes"]
    return known_names("run").named(parts)[1]


def _special(real: Path) -> str:
    parts = real.parts
    if parts[1:2] == ("proc",) and parts[2:] and not parts[2][:1].isalpha():
        return "the inside of a process"
    if parts[1:3] in (("proc", "self"), ("proc", "thread-self"), ("proc", "kcore")):
        return "the inside of a process"
    outside = parts[1:2] in (("sys",), ("run",)) or parts[1:2] == ("dev",)
    return "no ordinary file" if outside and str(real) != os.devnull else ""


def hermes_home() -> Path:
    """Return the home of Hermes without links."""
    given = os.environ.get("HERMES_HOME", "")
    return Path(os.path.realpath(Path(given).expanduser() if given else Path.home() / ".hermes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What must be hidden of a workspace; not all of it if the walk was not `complete`.

    `specials` are sockets, pipes and devices: reading or connecting reaches a process outside.
    `linked` are the inodes of secrets that have a second name, here or in the home; `closed` are
    those of the directories that could not be listed, by the rights that this process has.
    """

    files: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    specials: tuple[str, ...] = ()
    linked: frozenset[tuple[int, int]] = frozenset()
    closed: tuple[str, ...] = ()
    complete: bool = True

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every path to hide."""
        return (*self.files, *self.directories, *self.specials)


class Deadline:
    """So many seconds of work, or on the clock `waiting`, else three times as many."""

    def __init__(self, seconds: float, *, waiting: float = 0.0) -> None:
        """Begin now."""
        self._work = time.thread_time() + seconds
        self._clock = time.monotonic() + (waiting or 3 * seconds)

    def left(self) -> float:
        """Return the seconds that are left on the clock."""
        return self._clock - time.monotonic()

    def over(self) -> bool:
        """Return whether it has passed."""
        return time.thread_time() > self._work or time.monotonic() > self._clock


@dataclass(frozen=True, slots=True, kw_only=True)
class _Listing:
    """One directory's entries by what they are; `links` are secret names that lead elsewhere.

    `seen` is its inode and the time of its last change, which nobody can choose, unlike `mtime`.
    `read` says whether it could be looked at; one that is `closed` is its own directory to hide.
    """

    seen: tuple[int, int] = (0, 0)
    below: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()
    specials: tuple[str, ...] = ()
    ordinary: tuple[tuple[int, str], ...] = ()
    closed: bool = False
    read: bool = True


_LISTED: dict[tuple[str, bool], _Listing] = {}
_WALKS = 3
"""How often a walk is tried where directories come and go meanwhile."""


def survey(root: Path, *, home: Path, seconds: float = 0.15) -> Survey:
    """Find the secrets below `root`, and every other name of a secret file there or in `home`.

    When `root` holds the home, all of the home's hidden entries count as secret: nobody can list
    what is in them. A directory that cannot be listed is hidden as a whole, and then every file
    with a second name is. Directories whose time has not changed are not read again, so that a walk
    that was too long goes on where it stopped.
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
    """Return what is in a directory, which may be a link only where it is to `follow`."""
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
        return replace(listing, read=False)  # what was read may be another's
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
    """Return the files below a folder, and in `unseen` why some may be missing."""
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
