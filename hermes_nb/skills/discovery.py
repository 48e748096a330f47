"""Finds the SKILL.md files below a root, cheaply when nothing changed and safely whatever is there.

A second look costs one `stat` a skill and one a category: listings and documents are kept until
the stamps differ. A stamp that is younger than the clock of its file system can tell apart is not
believed. Links out of the root, pipes, endless depth and endless numbers are passed over, said why.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes_nb.skills.document import Document, SkillError, read_document
from hermes_nb.skills.kept import Kept, Known, Stamp
from hermes_nb.skills.roots import Root

DEPTH = 3
"""Levels below a root: `category/name`, and one more for a category in a category."""
FOLDERS = 5_000
FILE_LIMIT = 1_048_576
"""Bytes of a file that is read; also what a support file may have."""
_NAME = "SKILL.md"
_IGNORED = frozenset({"node_modules", "__pycache__", "venv"})
_FINE = 0.1
"""Seconds; Linux stamps files with the time of its last tick, at most 10 ms ago."""
_COARSE = 2.0
"""Seconds; FAT counts in twos, and whole seconds hint at such a file system."""
_YOUNG: Stamp = (-1, 0, 0, 0)
"""The stamp of a file that may change without showing; equal to none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
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
        """The file, a `Path` only for those who ask: there are a thousand of these."""
        return Path(self.path)


@dataclass(frozen=True, slots=True)
class _Listing:
    stamp: Stamp
    folders: tuple[tuple[str, bool], ...]
    document: str


@dataclass(slots=True)
class Shelf:
    """One root, and what was last seen in it. Not for several threads at once.

    `kept` is what an earlier process saw in it.
    """

    root: Root
    kept: Kept | None = None
    unkept: int = 0
    """How many documents were read that are not kept yet."""
    _listings: dict[str, _Listing] = field(default_factory=dict)
    _files: dict[str, tuple[Stamp, Found]] = field(default_factory=dict)
    notes: list[tuple[Path, str]] = field(default_factory=list)

    def look(self) -> list[Found]:
        """Return what is there now, in order of path; `notes` say what was passed over."""
        self.notes = []
        base = os.path.realpath(self.root.path)
        listings, files = self._listings, self._files
        self._listings, self._files = {}, {}
        found: list[Found] = []
        for path, stamp, parts in self._paths(base, listings):
            found.append(self._document(base, path, stamp, parts, files))
        return found

    def fresh(self, found: Found) -> bool:
        """Say whether a document is still as it was when it was looked at."""
        kept = self._files.get(found.path)
        return kept is not None and kept[1] is found and _stamp(found.path) == kept[0]

    def settled(self) -> bool:
        """Say whether no skill came or went since; looks at roots and categories alone."""
        branches = [(path, each) for path, each in self._listings.items() if not each.document]
        if not branches:
            return _stamp(self.root.path) is None
        return all(_stamp(path) == each.stamp for path, each in branches)

    def _paths(
        self, base: str, old: dict[str, _Listing]
    ) -> Iterator[tuple[str, Stamp | None, tuple[str, ...]]]:
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
            path = f"{folder}{os.sep}{_NAME}"
            if parts and (stamp := _stamp(path)) is not None:
                yield path, stamp, parts
                continue
            listing = self._listing(folder, old)
            if listing is None:
                continue
            if listing.document and parts:
                path = f"{folder}{os.sep}{listing.document}"
                yield path, _stamp(path), parts
                continue
            if len(parts) >= DEPTH:
                continue
            for name, is_link in reversed(listing.folders):
                path = f"{folder}{os.sep}{name}"
                if is_link and (target := self._inside(base, path)) is None:
                    self.notes.append((Path(path), "a link that leads out of its directory"))
                    continue
                pending.append((target if is_link and target else path, (*parts, name)))

    def _listing(self, folder: str, old: dict[str, _Listing]) -> _Listing | None:
        """Return what is in a folder, read again only if it changed; None if it cannot be read."""
        stamp = _stamp(folder)
        if stamp is None:
            return None
        known = old.get(folder)
        if known is None or known.stamp != stamp:
            try:
                known = _listed(folder, stamp)
            except OSError as error:
                if error.errno is not None and folder != str(self.root.path):
                    self.notes.append((Path(folder), f"it cannot be read: {error.strerror}"))
                return None
        self._listings[folder] = known
        return known

    def _inside(self, base: str, path: str) -> str | None:
        """Return where a link leads if it stays below the root and is a folder."""
        target = os.path.realpath(path)
        inside = target.startswith(base + os.sep)
        return target if inside and os.path.isdir(target) else None  # noqa: PTH112

    def _document(
        self,
        base: str,
        path: str,
        stamp: Stamp | None,
        parts: tuple[str, ...],
        old: dict[str, tuple[Stamp, Found]],
    ) -> Found:
        known = old.get(path)
        if known is not None and stamp is not None and known[0] == stamp:
            self._files[path] = known
            return known[1]
        found = self._recalled(path, parts, stamp) if known is None and stamp is not None else None
        if found is None:
            found = self._read(base, path, parts, known[1] if known else None)
            self.unkept += found.document is not None
        if stamp is not None:
            self._files[path] = (_believed(stamp), found)
        return found

    def documents(self) -> Iterator[tuple[str, Known]]:
        """Yield what there is to keep: documents of files that can be told from later ones."""
        for path, (stamp, found) in self._files.items():
            if found.document is not None and stamp != _YOUNG:
                yield path, (stamp, found.digest, found.document)

    def _recalled(self, path: str, parts: tuple[str, ...], stamp: Stamp) -> Found | None:
        """Return a document as an earlier process read it, if the file is what it was."""
        known = self.kept.get(path, stamp) if self.kept is not None else None
        return self._found(path, parts, digest=known[1], document=known[2]) if known else None

    def _read(self, base: str, path: str, parts: tuple[str, ...], before: Found | None) -> Found:
        """Read a document; one whose bytes did not change is not parsed again."""
        try:
            if os.path.islink(path):  # noqa: PTH114 - as all of this, for thousands of files
                _refuse_link_out(base, path)
            data = read_regular(path)
            digest = hashlib.sha256(data).hexdigest()
            if before is not None and before.digest == digest:
                return before
            text, valid = decoded(data)
            document = read_document(text, folder=parts[-1], whole=False)
        except OSError as error:
            reason = f"it cannot be read: {error.strerror or error}"
            return self._found(path, parts, reason=reason)
        except SkillError as error:
            return self._found(path, parts, reason=str(error))
        if not valid:
            document = replace(document, notes=(*document.notes, "it is not all UTF-8"))
        return self._found(path, parts, digest=digest, document=document)

    def _found(
        self,
        path: str,
        parts: tuple[str, ...],
        *,
        digest: str = "",
        document: Document | None = None,
        reason: str = "",
    ) -> Found:
        return Found(
            root=self.root,
            path=path,
            folder=parts[-1],
            category="/".join(parts[:-1]),
            digest=digest,
            document=document,
            reason=reason,
        )


def _refuse_link_out(base: str, path: str) -> None:
    if not os.path.realpath(path).startswith(base + os.sep):
        message = "its SKILL.md is a link that leads out of its directory"
        raise SkillError(message)


def read_regular(path: str | Path) -> bytes:
    """Return a regular file's bytes; raise SkillError on what is none, or is too large.

    Opened without blocking: a pipe without a writer would hold the thread for ever.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    handle = os.open(path, flags)
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not stat.S_ISREG(status.st_mode):
            message = f"{os.path.basename(path)!r} is not a regular file"  # noqa: PTH119
            raise SkillError(message)
        data = os.read(handle, min(status.st_size, FILE_LIMIT) + 1)
        while len(data) != status.st_size and len(data) <= FILE_LIMIT:
            more = os.read(handle, FILE_LIMIT + 1 - len(data))
            if not more:
                break
            data += more
    finally:
        os.close(handle)
    if len(data) > FILE_LIMIT:
        message = f"{os.path.basename(path)!r} is larger than {FILE_LIMIT:,} bytes"  # noqa: PTH119
        raise SkillError(message)
    return data


def decoded(data: bytes) -> tuple[str, bool]:
    """Return a document's text and whether all of it was UTF-8; raise SkillError on binary data."""
    if b"\0" in data:
        message = "it is not a UTF-8 text"
        raise SkillError(message)
    try:
        return data.decode("utf-8"), True
    except UnicodeDecodeError:
        return data.decode("utf-8", "replace"), False


def _listed(folder: str, stamp: Stamp) -> _Listing:
    folders: list[tuple[str, bool]] = []
    document = ""
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name
            if name.lower() == "skill.md":
                document = "SKILL.md" if name == "SKILL.md" or document == "SKILL.md" else name
            elif name[0] == "." or name in _IGNORED:
                continue
            elif entry.is_symlink():
                folders.append((name, True))
            elif entry.is_dir(follow_symlinks=False):
                folders.append((name, False))
    return _Listing(_believed(stamp), tuple(sorted(folders)), document)


def _stamp(path: str | Path) -> Stamp | None:
    try:
        status = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return (status.st_mtime_ns, status.st_ctime_ns, status.st_size, status.st_ino)


def _believed(stamp: Stamp) -> Stamp:
    """Return a stamp that tells later changes apart, or one that nothing equals."""
    coarse = stamp[0] % 1_000_000_000 == 0
    age = time.time() - max(stamp[0], stamp[1]) / 1e9
    young = abs(age) < (_COARSE if coarse else _FINE)
    return _YOUNG if young else stamp
