"""Remember which files and cells contain untrusted content.

A file or cell is marked if it is written while the conversation contains untrusted content. A mark
contains a file's path and digest, or a cell's digest. After an edit the content is no longer
marked; a copy is recognised by its digest. A mark without a digest is for a path that could not be
inspected, and covers everything there that changed within a period of time.

The marks are stored in a JSON file in the Hermes directory that only its owner can read. Its size
is limited: the oldest marks are merged into one for their common folder. A damaged file is renamed,
and its marks are lost.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, lru_cache
from pathlib import Path

from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.safety.protected import NOT_WALKED

logger = logging.getLogger(__name__)

FILE = "outside.json"
"""Name of the file containing the marks."""
MOST, FOLDED = 2_000, 500
"""Maximum number of marks, and the number of oldest marks to merge."""
LOOKED_AT = 20_000
"""Maximum directory entries to inspect after a call."""
LARGEST = 64_000_000
"""Maximum size in bytes of a file to be digested."""
_SHORT = 24
"""Content up to this many bytes is too short to be an instruction. It counts as marked only at its
path, not in a copy."""
_LINE = 40
"""Minimum length in characters of a line that is unlikely to recur by coincidence."""
_TEXT = 1_000_000
"""Maximum size in bytes of a file whose lines are compared."""
_CLOCK, _DAY = 0.05, 86_400.0
"""In seconds: maximum lag of a file system's clock, and maximum duration of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A file, cell or folder with untrusted content."""

    path: str
    """Absolute path of the file or folder. Empty for a cell."""
    sha256: str = ""
    """SHA-256 of the content. Empty for everything at the path."""
    since: float
    """Earliest change time of the files, in seconds since the epoch."""
    until: float
    """Latest change time of the files, in seconds since the epoch."""
    session: str = ""
    """Id of the session that wrote it. Empty if unknown."""

    def covers(self, path: str, changed: float) -> bool:
        """Return whether a mark without a digest includes a file with this path and change time."""
        below = path == self.path or path.startswith(self.path.rstrip("/") + "/")
        return not self.sha256 and below and self.since <= changed <= self.until


@cache
def marks_of(home: Path) -> Marks:
    """Return a Hermes directory's marks, shared by all callers in this process."""
    return Marks(home)


@dataclass(slots=True)
class Marks:
    """A Hermes directory's marks. Safe for concurrent processes."""

    home: Path
    """The Hermes directory."""
    met: set[str] = field(default_factory=set)
    """Digests of the marked contents that this process has encountered."""
    _unsaved: tuple[Mark, ...] = ()

    def mark_text(self, text: str, session: str = "") -> None:
        """Mark a cell's source."""
        if len(data := text.encode("utf-8", "replace")) > _SHORT:
            now = time.time()
            self._add([Mark(path="", sha256=_digest(data), since=now, until=now, session=session)])

    def mark_files(self, paths: Iterable[Path], session: str = "") -> None:
        """Mark files with their current content.

        An unreadable file is marked regardless of its content so far.
        """
        marks, now = [], time.time()
        for real in map(os.path.realpath, paths):
            try:
                digest, since = _digest(_content(real)), now
            except FileNotFoundError:
                continue
            except (OSError, ValueError):
                digest, since = "", 0.0
            mark = Mark(path=real, sha256=digest, since=since, until=now, session=session)
            marks.append(mark)
        self._add(marks)

    def mark_changed(self, root: Path, since: float, session: str = "") -> None:
        """Mark the files under `root` that changed after `since`, in seconds since the epoch."""
        since, now = since - _CLOCK, time.time()
        changed, unseen = _changed(os.path.realpath(root), since)
        self.mark_files(map(Path, changed), session)
        self._add(Mark(path=each, since=since, until=now, session=session) for each in unseen)

    def holds(self, path: Path) -> bool:
        """Return whether a file currently contains untrusted content."""
        known, real = self._known(), os.path.realpath(path)
        if not known:
            return False
        try:
            changed = Path(real).stat().st_ctime
            if any(mark.covers(real, changed) for mark in known):
                return True
            data = _content(real)
        except (OSError, ValueError):
            return any(mark.path == real for mark in known)
        cells = _sources(data) if real.endswith(".ipynb") else ()
        return self._holds(data, real) or any(map(self.holds_text, cells))

    def holds_text(self, text: str) -> bool:
        """Return whether a complete text, such as a cell's source, is marked."""
        return self._holds(text.encode("utf-8", "replace"), "")

    def _holds(self, data: bytes, path: str) -> bool:
        known = self._known()
        digest = _digest(data) if known else ""
        for mark in known:
            if mark.sha256 == digest and (mark.path == path or len(data) > _SHORT):
                self.met.add(digest)
                return True
        return False

    def quoted(self, text: str, root: Path) -> bool:
        """Return whether text, such as an output, quotes a line from a marked file under `root`."""
        folder = os.path.realpath(root)
        for mark in reversed(self._known()):
            below = mark.path and mark.sha256 and Path(mark.path).is_relative_to(folder)
            if below and any(line in text for line in _lines(mark.path, mark.sha256)):
                self.met.add(mark.sha256)
                return True
        return False

    def forget(self, session: str) -> None:
        """Remove a session's marks, and those for the contents listed in `met`."""
        known = self._known()
        kept = [m for m in known if m.session != session and m.sha256 not in self.met]
        self.met.clear()
        if len(kept) != len(known):
            with locked(self._file):
                self._write(kept)

    @property
    def _file(self) -> Path:
        return self.home / FILE

    def _known(self) -> tuple[Mark, ...]:
        """Return the marks in the file, read again after each change."""
        stored: tuple[Mark, ...] = ()
        try:
            status = self._file.stat()
            stored = _read(self._file, status.st_ino, status.st_size, status.st_mtime_ns)
        except FileNotFoundError:
            pass
        except OSError:
            logger.warning("%s cannot be read", self._file, exc_info=True)
        return stored + self._unsaved

    def _add(self, marks: Iterable[Mark]) -> None:
        marks = tuple(marks)
        if not marks:
            return
        try:
            make_private(self.home)
            with locked(self._file):
                known = {(m.path, m.sha256): m for m in self._known()}
                if not known and self._file.exists():
                    self._file.replace(self._file.with_name(f"{FILE}.damaged"))
                for mark in marks:
                    was = known.pop((mark.path, mark.sha256), mark)
                    since = min(was.since, mark.since)
                    known[mark.path, mark.sha256] = replace(mark, since=since)
                self._write([*known.values()])
                self._unsaved = ()
        except OSError:  # such as a full disk: at least keep the marks in this process
            logger.warning("%s cannot be written", self._file, exc_info=True)
            self._unsaved += marks

    def _write(self, marks: list[Mark]) -> None:
        if len(marks) > MOST:
            old, marks = marks[:FOLDED], marks[FOLDED:]
            folder = os.path.commonpath([mark.path for mark in old if mark.path] or ["/"])
            since = min(mark.since for mark in old) - _DAY
            marks.insert(0, Mark(path=folder, since=since, until=max(m.until for m in old)))
        document = {"version": 1, "marks": [asdict(mark) for mark in marks]}
        write_atomic(self._file, json.dumps(document, indent=0).encode(), mode=0o600)


def _changed(root: str, since: float) -> tuple[list[str], list[str]]:
    """Return the files under a folder that changed, and the paths that could not be inspected."""
    changed, left, failed = list[str](), LOOKED_AT, list[OSError]()
    unseen = list[str]()
    for folder, folders, names in os.walk(root, onerror=failed.append):
        skipped = {*NOT_WALKED, ".git", ".venv"}.intersection(folders)
        unseen += (f"{folder}/{name}" for name in skipped)
        folders[:] = [name for name in folders if name not in skipped]
        left -= len(folders) + len(names)
        for path in (f"{folder}/{name}" for name in names):
            try:
                status = os.lstat(path)
            except OSError as error:
                failed.append(error)
                continue
            if stat.S_ISREG(status.st_mode) and max(status.st_mtime, status.st_ctime) >= since:
                changed.append(path)
        if left < 0 or len(changed) > FOLDED:
            return [], [root]
    return changed, [*unseen, *(str(error.filename) for error in failed)]


def _content(path: str) -> bytes:
    """Return a regular file's content. Raise OSError, or ValueError if it is too large."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)  # `fdopen` raises for a folder, so it would not be closed below
        raise ValueError("not a regular file")
    with os.fdopen(handle, "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError("too large")
    return data


@lru_cache(maxsize=256)
def _lines(path: str, sha256: str) -> tuple[str, ...]:
    """Return a marked file's long lines, or none if the file has changed."""
    with suppress(OSError, ValueError):
        data = _content(path)
        if len(data) <= _TEXT and _digest(data) == sha256:
            lines = {line.strip() for line in data.decode("utf-8", "replace").splitlines()}
            return tuple(line[:400] for line in lines if len(line) >= _LINE)
    return ()


def _sources(notebook: bytes) -> Iterator[str]:
    with suppress(ValueError, AttributeError, RecursionError):
        for cell in json.loads(notebook).get("cells", ()):
            yield "".join(cell.get("source", ""))


@lru_cache(maxsize=4)
def _read(file: Path, *_: int) -> tuple[Mark, ...]:
    """Return the marks in a file, or none if it is damaged.

    The other arguments are only part of the cache key.
    """
    try:
        return tuple(Mark(**each) for each in json.loads(file.read_bytes())["marks"])
    except (ValueError, TypeError, KeyError, RecursionError):
        logger.warning(
            "%s is damaged and cannot be read; Hermes no longer knows which files contain "
            "untrusted content",
            file,
        )
        return ()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
