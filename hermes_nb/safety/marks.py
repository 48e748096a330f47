"""Files and cells that hold text from outside: what was written while a conversation held some.

A mark is a file's path and digest, or a cell's digest: whoever changes the text makes it his own,
and a copy is known by its content. A mark without a digest is a folder where nobody could look, and
the time in which a file there has changed. One JSON file under the home directory, readable by its
owner only and bounded: the oldest marks become one of their folder.
A damaged file is set aside, and what it held is not known any more.
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
MOST, FOLDED = 2_000, 500
"""Marks that are kept, and how many of the oldest become one together."""
LOOKED_AT = 20_000
"""Entries of a working directory that are looked at after a call."""
LARGEST = 64_000_000
"""Bytes of a file that is read for its digest."""
_SHORT = 24
"""Bytes that cannot carry an order; only at the same path they are the same."""
_LINE = 40
"""Characters of a line that is no coincidence."""
_TEXT = 1_000_000
_CLOCK, _DAY = 0.05, 86_400.0
"""Seconds: by which a file system's clock may be behind, and that a call takes at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A text from outside; `path` is "" for a cell's, `sha256` "" for all in a file or folder.

    `since` and `until` are change times, in seconds since the epoch.
    """

    path: str
    sha256: str = ""
    since: float
    until: float
    session: str = ""

    def covers(self, path: str, changed: float) -> bool:
        """Return whether a file is from outside by its place and change time, whatever is in it."""
        below = path == self.path or path.startswith(self.path.rstrip("/") + "/")
        return not self.sha256 and below and self.since <= changed <= self.until


@cache
def marks_of(home: Path) -> Marks:
    """Return the marks of a home, the same for everybody in this process."""
    return Marks(home)


@dataclass(slots=True)
class Marks:
    """The marks of one home; safe among processes. `met` are those that were found since."""

    home: Path
    met: set[str] = field(default_factory=set)
    _unsaved: tuple[Mark, ...] = ()

    def mark_text(self, text: str, session: str = "") -> None:
        """Mark a cell's source."""
        if len(data := text.encode("utf-8", "replace")) > _SHORT:
            now = time.time()
            self._add([Mark(path="", sha256=_digest(data), since=now, until=now, session=session)])

    def mark_files(self, paths: Iterable[Path], session: str = "") -> None:
        """Mark files as they are; what cannot be read, whatever was in it until now."""
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
        """Mark the files below `root` that changed since a moment, in seconds since the epoch."""
        since, now = since - _CLOCK, time.time()
        changed, unseen = _changed(os.path.realpath(root), since)
        self.mark_files(map(Path, changed), session)
        self._add(Mark(path=each, since=since, until=now, session=session) for each in unseen)

    def holds(self, path: Path) -> bool:
        """Return whether a file holds text from outside, as it is now."""
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
        if real.endswith(".ipynb"):
            return any(map(self.holds_text, _sources(data)))
        return self._holds(data, real)

    def holds_text(self, text: str) -> bool:
        """Return whether a cell's source, or another whole text, is from outside."""
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
        """Return whether a text, such as an output, has a line of a marked file below `root`."""
        folder = os.path.realpath(root)
        for mark in reversed(self._known()):
            below = mark.path and mark.sha256 and Path(mark.path).is_relative_to(folder)
            if below and any(line in text for line in _lines(mark.path, mark.sha256)):
                self.met.add(mark.sha256)
                return True
        return False

    def forget(self, session: str) -> None:
        """Forget what a session has written, and what was met in this process."""
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
        """Return what the file says, read again once it has changed."""
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
        except OSError:  # a full disk: it holds in this process at least
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
    """Return the files below a folder that changed, and what could not be looked at."""
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
    """Return what is in a regular file; raise OSError, or ValueError where it is too large."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)  # of a folder `fdopen` makes no file, which would close it
        raise ValueError("no regular file")
    with os.fdopen(handle, "rb") as file:
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError("too large")
    return data


@lru_cache(maxsize=256)
def _lines(path: str, sha256: str) -> tuple[str, ...]:
    """Return the telling lines of a marked file, none where it has been changed."""
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
    """Return what a file says in the state that the numbers name, nothing where it is damaged."""
    try:
        return tuple(Mark(**each) for each in json.loads(file.read_bytes())["marks"])
    except (ValueError, TypeError, KeyError, RecursionError):
        logger.warning("%s is damaged; what it held is not known any more", file)
        return ()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
