"""Find skills: the root directories, and the SKILL.md files under them.

A repeated scan costs one `stat` per skill and one directory listing per category: parsed documents
are cached until their *stamps* (file times, size and inode) change, on disk too for the next
process. A stamp is not trusted if it is so recent that a further change might leave it the same.
Links to targets outside the root, pipes, and folders that are too deep or too many are skipped with
a note.
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
"""The hidden directory under the home's skills, with locks, usage log, history and cache."""
DEPTH = 3
"""Levels under a root: `category/name`, and one more for a nested category."""
FOLDERS = 5_000
FILE_LIMIT = 1_048_576
"""Maximum size, in bytes, of a file to read, or to write as a support file."""
_IGNORED = frozenset({"node_modules", "__pycache__", "venv"})
_FINE = 0.1
"""Seconds for which a stamp is not trusted; Linux stamps are at most 10 ms old."""
_COARSE = 2.0
"""The same limit for whole-second stamps, which suggest a file system such as FAT (2 s steps)."""

Source = Literal["workdir", "home", "external", "shared", "admin", "shipped"]
Stamp = tuple[int, int, int, int]
"""A file's modification and change time in nanoseconds, its size and its inode."""
_YOUNG: Stamp = (-1, 0, 0, 0)
"""Used instead of a stamp that is missing or not trusted; no real file has it."""


class Signatures(Protocol):
    """An administrator's signatures for the skills under a root."""

    @property
    def revoked(self) -> Mapping[str, str]:
        """The reasons for revocation by skill name; read again on each access."""
        ...

    def why(self, folder: Path) -> str:
        """Return the reason a folder's skill does not match its signature, or "" if it does."""
        ...

    def check(self, path: Path, data: bytes) -> None:
        """Raise `SkillError` if the bytes are not those signed for a file."""
        ...


@dataclass(frozen=True, slots=True)
class Root:
    """A directory of skills, and how much they are trusted.

    Shipped skills are not scanned. Dangerous skills in other roots are refused unless they are
    signed. Skills in the working directory load only after the user has accepted them, and are
    scanned strictly.
    """

    path: Path
    """The directory, which may not exist."""
    source: Source = "external"
    """The skills' source, which determines how much they are trusted."""
    signed: Signatures | None = None
    """The signatures to check for source "shared"; None for unsigned skills."""

    @property
    def examined(self) -> bool:
        return self.source != "shipped"

    @property
    def strict(self) -> bool:
        """Whether suspicious skills are refused here, where other roots only mark them."""
        return self.source == "workdir"

    @property
    def vouched(self) -> bool:
        """Whether text from this root is displayed without a note about its origin."""
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

    None of the directories has to exist.

    Args:
        home: the Hermes directory; its skills are in `skills/`.
        workdir: the working directory, which also has `skills/`; None if there is none.
        external: directories in the settings; they may begin with `~`.
        installed: roots from installed packages.
        admin: the administrator's directories.
        shipped: the directory that comes with Hermes.
    """
    roots = [Root(workdir / "skills", "workdir")] if workdir else []
    roots.append(Root(home / "skills", "home"))
    roots += [Root(Path(entry).expanduser(), "external") for entry in external]
    roots += installed
    roots += [Root(path, "admin") for path in admin]
    return [*roots, Root(shipped, "shipped")] if shipped else roots


ROOTS = "hermes_nb.skill_roots"
SHARED = "shared_skills"
"""The policy's key for shared skills, and the name of the entry point used for them."""


def installed_roots(settled: Policy, warn: Callable[[str], None]) -> list[Root]:
    """Return the roots that packages provide, those shared by the policy last.

    An entry point of `hermes_nb.skill_roots` is a function that takes the policy and returns
    `Root`s. They get the source `external`, except those from the entry point `shared_skills`,
    which keep their own. An entry point that fails is skipped with a warning. Raises `ConfigError`
    if the policy shares skills and no installed package can check them.
    """
    found: list[Root] = []
    for point in plugins(ROOTS):
        if point.name == SHARED:
            continue
        try:
            for root in _roots_of(point, settled):
                found.append(replace(root, source="external", signed=None))
        except Exception as error:  # noqa: BLE001 - code of another package can raise anything
            why = one_line(redact(f"{type(error).__name__}: {error}"), 200)
            warn(f"the skills of {point.name!r} are not used: {why}")
    if not {SHARED, "skills_key"} & settled.values.keys():
        return found
    if points := plugins(ROOTS, SHARED):
        return [*found, *_roots_of(max(points, key=ships), settled)]
    raise ConfigError(
        f"{settled.file} shares signed skills, but no installed package can verify them (entry "
        f"point {SHARED!r} of {ROOTS})"
    )


def _roots_of(point: EntryPoint, settled: Policy) -> Iterable[Root]:
    return cast("Callable[[Policy], Iterable[Root]]", loaded(point))(settled)


def as_roots(roots: Iterable[Root | Path | str]) -> list[Root]:
    """Convert plain paths to roots; the first becomes the home's root, the others external ones.

    If there is already a home root, every plain path is external.
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
    """A SKILL.md that was found, usable or not."""

    root: Root
    """The root under which it was found."""
    path: str
    """Path of the file; its directory has no links in its path."""
    folder: str
    """Name of its directory."""
    category: str
    """Names of the directories between the root and it, joined by `/`; "" if there are none."""
    digest: str = ""
    """SHA-256 of the file's bytes; "" if it was not read."""
    document: Document | None = None
    """The parsed document without its body; None if it cannot be used."""
    reason: str = ""
    """Why it cannot be used; "" if it can."""

    @property
    def file(self) -> Path:
        return Path(self.path)


class Shelf:
    """Scans one root and caches its skills between scans. Not thread-safe."""

    def __init__(self, root: Root, cache: Cache | None = None) -> None:
        self.root = root
        self.notes: list[tuple[Path, str]] = []
        self._cache = cache or Cache(None)
        self._files: dict[str, tuple[Stamp, FoundSkill]] = {}

    def scan(self) -> list[FoundSkill]:
        """Scan the root and return its skills ordered by path; `notes` lists what was skipped."""
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
        """Yield the documents with their stamps and the folder names under the root.

        A folder that has a SKILL.md is not listed, because nothing else in it matters here.
        """
        pending: list[tuple[str, tuple[str, ...]]] = [(base, ())]
        seen: set[str] = set()
        while pending:
            folder, parts = pending.pop()
            if folder in seen:  # links may form a cycle
                continue
            seen.add(folder)
            if len(seen) > FOLDERS:
                self.notes.append(
                    (
                        self.root.path,
                        f"it has more than {FOLDERS:,} folders; the rest was not searched",
                    )
                )
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
                        note = "a link that points outside its directory"
                        self.notes.append((Path(folder, name), note))
                        continue
                pending.append((path, (*parts, name)))

    def _recalled(self, path: str, parts: tuple[str, ...], stamp: Stamp) -> FoundSkill | None:
        """Return a document from the disk cache if the file has not changed."""
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
                reason = "its SKILL.md is a link that points outside its directory"
                return self._found(path, parts, reason=reason)
            data = read_regular(path)
            digest = hashlib.sha256(data).hexdigest()
            text, valid = decoded(data)
            read = read_frontmatter(text)
            if not valid:
                read = Frontmatter(read.fields, (*read.notes, "parts of it are not UTF-8"))
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
    """Return a regular file's bytes; raise SkillError if it is not regular or too large."""
    try:
        data, _ = regular_files.read_regular(path, FILE_LIMIT + 1)
    except regular_files.Refused as error:
        raise SkillError(f"{Path(path).name!r} is not a regular file") from error
    if len(data) > FILE_LIMIT:
        raise SkillError(f"{Path(path).name!r} is larger than {FILE_LIMIT:,} bytes")
    return data


def decoded(data: bytes) -> tuple[str, bool]:
    """Return a document's text and whether it is valid UTF-8; raise SkillError if it is binary."""
    if b"\0" in data:
        raise SkillError("it is not UTF-8 text")
    try:
        return data.decode("utf-8"), True
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), False


def _listed(folder: str) -> tuple[list[tuple[str, bool]], str]:
    """Return a folder's subfolders, in reverse order, and the name of its document.

    Each subfolder is given by its name and whether it is a link.
    """
    folders: list[tuple[str, bool]] = []
    document = ""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.lower() == "skill.md":
                # Some file systems distinguish case; the exact name takes precedence.
                document = DOCUMENT if DOCUMENT in (name, document) else name
            elif name[0] == "." or name in _IGNORED:
                continue
            elif entry.is_symlink() or entry.is_dir(follow_symlinks=False):
                folders.append((name, entry.is_symlink()))
    return sorted(folders, reverse=True), document


def _stamp(path: str) -> Stamp:
    """Return a file's stamp, or `_YOUNG` if it does not exist."""
    try:
        status = os.stat(path)
    except OSError:
        return _YOUNG
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def _believed(stamp: Stamp) -> Stamp:
    """Return the stamp; `_YOUNG` if it is so recent that a later change might not alter it."""
    coarse = stamp[0] % 1_000_000_000 == 0
    age = time.time() - max(stamp[0], stamp[1]) / 1e9
    young = abs(age) < (_COARSE if coarse else _FINE)
    return _YOUNG if young else stamp
