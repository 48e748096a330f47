"""Where skills lie and what is there: roots, and the SKILL.md files below them.

A second look costs one `stat` a skill and one listing a category: documents are kept until their
stamps differ, also on disk for the next process. A stamp that is younger than the clock of its file
system can tell apart is not believed. Links out of the root, pipes, endless depth and endless
numbers are passed over, said why.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, cast

from hermes_nb.core import regular_files
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.plugins import loaded, plugins, ships
from hermes_nb.core.text import one_line
from hermes_nb.safety.administrator import Policy
from hermes_nb.safety.redact import redact
from hermes_nb.skills.cache import Cache
from hermes_nb.skills.document import (
    Document,
    Frontmatter,
    SkillError,
    read_frontmatter,
    understood,
)

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint


DOCUMENT = "SKILL.md"
STATE = ".hermes_nb"
"""The hidden directory below the home's skills: locks, use counts, history, the cache."""
DEPTH = 3
"""Levels below a root: `category/name`, and one more for a category in a category."""
FOLDERS = 5_000
FILE_LIMIT = 1_048_576
"""Bytes of a file that is read; also what a support file may have."""
_IGNORED = frozenset({"node_modules", "__pycache__", "venv"})
_FINE = 0.1
"""Seconds; Linux stamps files with the time of its last tick, at most 10 ms ago."""
_COARSE = 2.0
"""Seconds; FAT counts in twos, and whole seconds hint at such a file system."""

Source = Literal["workdir", "home", "external", "shared", "admin", "shipped"]
Stamp = tuple[int, int, int, int]
"""A file's modification and change time in ns, size and inode."""
_YOUNG: Stamp = (-1, 0, 0, 0)
"""The stamp of a file that may change without showing, or is not there; no file has it."""


class Signatures(Protocol):
    """What an administrator has signed of the skills below a root."""

    @property
    def revoked(self) -> Mapping[str, str]:
        """Why names are revoked, as it is now."""
        ...

    def why(self, folder: Path) -> str:
        """Return why the skill in a folder is not as it was signed, "" where it is."""
        ...

    def check(self, path: Path, data: bytes) -> None:
        """Raise `SkillError` where these bytes are not what was signed for a file."""
        ...


@dataclass(frozen=True, slots=True)
class Root:
    """A directory of skills and where it belongs.

    What is shipped is not examined. Everything else is refused when it is dangerous; `external`
    directories and an administrator's, which somebody chose, also say where they come from. What
    the working directory brings loads only once the user accepted it, and is examined strictly.
    What is `signed`, in `shared`, counts as long as it is as an administrator vouched for it.
    """

    path: Path
    source: Source = "external"
    signed: Signatures | None = None

    @property
    def examined(self) -> bool:
        return self.source != "shipped"

    @property
    def strict(self) -> bool:
        """Whether what would be marked elsewhere is refused here."""
        return self.source == "workdir"

    @property
    def vouched(self) -> bool:
        """Whether a text from here is shown without a word on where it came from."""
        return self.source in ("shipped", "home", "shared")


def standard_roots(
    home: Path,
    *,
    workdir: Path | None = None,
    external: Iterable[str | Path] = (),
    installed: Iterable[Root] = (),
    admin: Iterable[Path] = (),
    shipped: Path | None = None,
) -> list[Root]:
    """Return the search path: workdir, home, external, installed, administrator's, shipped.

    `home` and `workdir` are the directories that hold a `skills/`; `external` entries may begin
    with `~`. Nothing has to exist.
    """
    roots = [Root(workdir / "skills", "workdir")] if workdir else []
    roots.append(Root(home / "skills", "home"))
    roots += [Root(Path(entry).expanduser(), "external") for entry in external]
    roots += installed
    roots += [Root(path, "admin") for path in admin]
    return [*roots, Root(shipped, "shipped")] if shipped else roots


ROOTS = "hermes_nb.skill_roots"
SHARED = "shared_skills"
"""The key of the policy, and the name of the entry that is used while the policy has it."""


def installed_roots(settled: Policy, warn: Callable[[str], None]) -> list[Root]:
    """Return the roots that packages bring, those that a policy shares last.

    An entry of `hermes_nb.skill_roots` is a function from the policy to `Root`s. They are
    `external`, but for those of the entry `shared_skills`, for which the policy vouches. One that
    fails is left out, which `warn` hears. Raises `ConfigError` where the policy shares skills and
    nothing that is installed can check them.
    """
    found: list[Root] = []
    for point in plugins(ROOTS):
        if point.name == SHARED:
            continue
        try:
            for root in _roots_of(point, settled):
                found.append(replace(root, source="external", signed=None))
        except Exception as error:  # noqa: BLE001 - somebody else's code, run at its import
            why = one_line(redact(f"{type(error).__name__}: {error}"), 200)
            warn(f"the skills of {point.name!r} are left out: {why}")
    if not {SHARED, "skills_key"} & settled.values.keys():
        return found
    if points := plugins(ROOTS, SHARED):
        return [*found, *_roots_of(max(points, key=ships), settled)]
    raise ConfigError(
        f"{settled.file} shares signed skills, and no installed package can check them "
        f"(entry point {SHARED!r} of {ROOTS})"
    )


def _roots_of(point: EntryPoint, settled: Policy) -> Iterable[Root]:
    return cast("Callable[[Policy], Iterable[Root]]", loaded(point))(settled)


def as_roots(roots: Iterable[Root | Path | str]) -> list[Root]:
    """Return roots as they are; plain paths become the home's, the first one, and external ones.

    With a home among the roots, every plain path is external.
    """
    given = list(roots)
    has_home = any(isinstance(root, Root) and root.source == "home" for root in given)
    result: list[Root] = []
    for root in given:
        if isinstance(root, Root):
            result.append(root)
            continue
        result.append(Root(Path(root), "external" if has_home else "home"))
        has_home = True
    return result


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundSkill:
    """A SKILL.md. `document` is None where it could not be used, and `reason` says why.

    `document` is without its body, which is read when it is wanted. `path` is the file's, its
    directory without links; `digest` is the SHA-256 of the file's bytes, "" if unread.
    """

    root: Root
    path: str
    folder: str
    category: str
    digest: str = ""
    document: Document | None = None
    reason: str = ""

    @property
    def file(self) -> Path:
        return Path(self.path)


class Shelf:
    """One root, and what was last seen in it. Not for several threads at once."""

    def __init__(self, root: Root, cache: Cache | None = None) -> None:
        self.root = root
        self.notes: list[tuple[Path, str]] = []
        self._cache = cache or Cache(None)
        self._files: dict[str, tuple[Stamp, FoundSkill]] = {}

    def look(self) -> list[FoundSkill]:
        """Return what is there now, in order of path; `notes` say what was passed over."""
        self.notes = []
        base = os.path.realpath(self.root.path)
        before, self._files = self._files, {}
        for path, stamp, parts in self._paths(base):
            known = before.get(path)
            if known is None or known[0] != stamp:
                found = self._recalled(path, parts, stamp) or self._read(base, path, parts, stamp)
                known = (_believed(stamp), found)
            self._files[path] = known
        return [found for _, found in self._files.values()]

    def _paths(self, base: str) -> Iterator[tuple[str, Stamp, tuple[str, ...]]]:
        """Yield the documents with their stamps and the names that lead to their folders.

        A folder that has a SKILL.md is not listed: most have, and nothing else in it counts.
        """
        pending: list[tuple[str, tuple[str, ...]]] = [(base, ())]
        seen: set[str] = set()
        while pending:
            folder, parts = pending.pop()
            if folder in seen:
                continue
            seen.add(folder)
            if len(seen) > FOLDERS:
                self.notes.append((self.root.path, f"more than {FOLDERS:,} folders; not all read"))
                return
            path = f"{folder}{os.sep}{DOCUMENT}"
            if parts and (stamp := _stamp(path)) != _YOUNG:
                yield path, stamp, parts
                continue
            try:
                folders, document = _listed(folder)
            except OSError as error:
                if parts:
                    self.notes.append((Path(folder), f"it cannot be read: {error.strerror}"))
                continue
            if document and parts:
                path = f"{folder}{os.sep}{document}"
                yield path, _stamp(path), parts
                continue
            for name, is_link in folders if len(parts) < DEPTH else ():
                path = f"{folder}{os.sep}{name}"
                if is_link:
                    path = os.path.realpath(path)
                    if not (path.startswith(base + os.sep) and os.path.isdir(path)):
                        note = "a link that leads out of its directory"
                        self.notes.append((Path(folder, name), note))
                        continue
                pending.append((path, (*parts, name)))

    def _recalled(self, path: str, parts: tuple[str, ...], stamp: Stamp) -> FoundSkill | None:
        """Return a document as it was read before, if the file is what it was."""
        match self._cache.get("documents", path):
            case [[*before], str(digest), dict(fields), [*notes]] if (*before,) == stamp:
                read = Frontmatter(fields, tuple(map(str, notes)))
            case _:
                return None
        try:
            return self._found(path, parts, digest, read)
        except SkillError:
            return None

    def _read(self, base: str, path: str, parts: tuple[str, ...], stamp: Stamp) -> FoundSkill:
        try:
            if os.path.islink(path) and not os.path.realpath(path).startswith(base + os.sep):
                reason = "its SKILL.md is a link that leads out of its directory"
                return self._found(path, parts, reason=reason)
            data = read_regular(path)
            digest = hashlib.sha256(data).hexdigest()
            text, valid = decoded(data)
            read = read_frontmatter(text)
            if not valid:
                read = Frontmatter(read.fields, (*read.notes, "it is not all UTF-8"))
            found = self._found(path, parts, digest, read)
        except OSError as error:
            reason = f"it cannot be read: {error.strerror or error}"
            return self._found(path, parts, reason=reason)
        except SkillError as error:
            return self._found(path, parts, reason=str(error))
        if _believed(stamp) == stamp:
            self._cache.put("documents", {path: (stamp, digest, read.fields, read.notes)})
        return found

    def _found(
        self,
        path: str,
        parts: tuple[str, ...],
        digest: str = "",
        read: Frontmatter | None = None,
        *,
        reason: str = "",
    ) -> FoundSkill:
        return FoundSkill(
            root=self.root,
            path=path,
            folder=parts[-1],
            category="/".join(parts[:-1]),
            digest=digest,
            document=understood(read, folder=parts[-1]) if read else None,
            reason=reason,
        )


def read_regular(path: str | Path) -> bytes:
    """Return a regular file's bytes; raise SkillError on what is none, or is too large."""
    try:
        data, _ = regular_files.read_regular(path, FILE_LIMIT + 1)
    except regular_files.Refused as error:
        raise SkillError(f"{Path(path).name!r} is not a regular file") from error
    if len(data) > FILE_LIMIT:
        raise SkillError(f"{Path(path).name!r} is larger than {FILE_LIMIT:,} bytes")
    return data


def decoded(data: bytes) -> tuple[str, bool]:
    """Return a document's text and whether all of it was UTF-8; raise SkillError on binary data."""
    if b"\0" in data:
        raise SkillError("it is not a UTF-8 text")
    try:
        return data.decode("utf-8"), True
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), False


def _listed(folder: str) -> tuple[list[tuple[str, bool]], str]:
    """Return the folders in a folder, the last first, and whether they are links; its document."""
    folders: list[tuple[str, bool]] = []
    document = ""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.lower() == "skill.md":
                document = DOCUMENT if DOCUMENT in (name, document) else name
            elif name[0] == "." or name in _IGNORED:
                continue
            elif entry.is_symlink() or entry.is_dir(follow_symlinks=False):
                folders.append((name, entry.is_symlink()))
    return sorted(folders, reverse=True), document


def _stamp(path: str) -> Stamp:
    """Return what a file is told from later ones by; what no file is where there is none."""
    try:
        status = os.stat(path)
    except OSError:
        return _YOUNG
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def _believed(stamp: Stamp) -> Stamp:
    """Return a stamp that tells later changes apart, or one that no file has."""
    coarse = stamp[0] % 1_000_000_000 == 0
    age = time.time() - max(stamp[0], stamp[1]) / 1e9
    young = abs(age) < (_COARSE if coarse else _FINE)
    return _YOUNG if young else stamp
