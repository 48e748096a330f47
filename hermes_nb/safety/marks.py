"""Files and cells that hold text from outside: what was written while a conversation held some.

A mark is a file's path and digest, or a cell's digest: whoever changes the text makes it his own,
and a copy is known by its content. What a call may have changed where nobody could look is kept as
a span: a folder and the time, by which a file's change time is judged. One JSON file under the home
directory, readable by its owner only and bounded: the oldest marks become a span.
A damaged file is set aside, and what it held is not known any more.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cache, lru_cache
from pathlib import Path

from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.safety.protected import NOT_WALKED

logger = logging.getLogger(__name__)

FILE = "outside.json"
MOST, FOLDED = 2_000, 500
"""Marks that are kept, and how many of the oldest become a span together."""
LOOKED_AT = 20_000
"""Entries of a working directory that are looked at after a call."""
LARGEST = 64_000_000
"""Bytes of a file that is read for its digest."""
_SHORT = 24
"""Bytes that cannot carry an order; only at the same path they are the same."""
_LINE = 40
"""Characters of a line that is no coincidence."""
_TEXT = 1_000_000
_CLOCK = 0.05
"""Seconds by which a file system's clock may be behind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A text from outside: `path` is "" for a cell's, `when` in seconds since the epoch."""

    path: str
    sha256: str
    size: int
    when: float
    session: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A file or folder, and between which change times what is there counts as from outside."""

    folder: str
    since: float
    until: float


@dataclass(frozen=True, slots=True)
class _Known:
    marks: tuple[Mark, ...] = ()
    spans: tuple[Span, ...] = ()


@cache
def marks_of(home: Path) -> Marks:
    """Return the marks of a home, the same for everybody in this process."""
    return Marks(home)


@dataclass(slots=True)
class Marks:
    """The marks of one home; safe among processes. `met` are those that were found since."""

    home: Path
    met: set[str] = field(default_factory=set)
    _unsaved: _Known = _Known()
    _cached: tuple[tuple[int, ...], _Known] = ((), _Known())

    def mark(self, items: Iterable[tuple[str, bytes]], session: str = "") -> None:
        """Mark texts, each with its path or "" for a cell's."""
        now = time.time()
        found = [
            Mark(path=path, sha256=_digest(data), size=len(data), when=now, session=session)
            for path, data in items
        ]
        self._change([m for m in found if m.path or m.size > _SHORT], ())

    def mark_files(self, paths: Iterable[Path], session: str = "") -> None:
        """Mark files as they are; what cannot be read, by a span until now."""
        items, spans, now = [], [], time.time()
        for path in paths:
            real = os.path.realpath(path)
            try:
                items.append((real, _content(real)))
            except FileNotFoundError:
                continue
            except (OSError, ValueError):
                spans.append(Span(folder=real, since=0.0, until=now))
        self.mark(items, session)
        self._change((), spans)

    def mark_changed(self, root: Path, since: float, session: str = "") -> None:
        """Mark the files below `root` that changed since a moment, in seconds since the epoch."""
        walk, now = _Walk(since - _CLOCK), time.time()
        walk.look(os.path.realpath(root))
        if len(walk.changed) > FOLDED:
            walk.unseen[:], walk.changed[:] = [os.path.realpath(root)], []
        self.mark_files(map(Path, walk.changed), session)
        spans = [Span(folder=each, since=since - _CLOCK, until=now) for each in walk.unseen]
        self._change((), spans)

    def holds(self, path: Path) -> bool:
        """Say whether a file holds text from outside, as it is now."""
        known, real = self._known(), os.path.realpath(path)
        if known == _Known():
            return False
        try:
            status = Path(real).stat()
            if any(_within(real, status.st_ctime, span) for span in known.spans):
                return True
            if real.endswith(".ipynb"):
                return any(map(self.holds_text, _sources(_content(real))))
            if not any(mark.size == status.st_size for mark in known.marks):
                return False
            digest = _digest(_content(real))
        except (OSError, ValueError):
            return any(mark.path == real for mark in known.marks)
        return self._met(digest, lambda mark: mark.path == real or mark.size > _SHORT)

    def holds_text(self, text: str) -> bool:
        """Say whether a cell's source, or another whole text, is from outside."""
        return bool(self._known().marks) and self._met(_digest(text.encode("utf-8", "replace")))

    def quoted(self, text: str, root: Path) -> bool:
        """Say whether a line of a marked file below `root` stands in a text, such as an output."""
        folder = os.path.realpath(root)
        for mark in reversed(self._known().marks):
            if mark.path and Path(mark.path).is_relative_to(folder) and mark.size <= _TEXT:
                lines = _lines(mark.path, mark.sha256, mark.size)
                if any(line in text for line in lines):
                    self.met.add(mark.sha256)
                    return True
        return False

    def forget(self, session: str) -> None:
        """Forget what a session has written, and what was met in this process."""
        kept = [m for m in self._known().marks if m.session != session and m.sha256 not in self.met]
        self.met.clear()
        if len(kept) != len(self._known().marks):
            with locked(self._file):
                self._write(_Known(tuple(kept), self._known().spans))

    def _met(self, digest: str, fits: Callable[[Mark], bool] = lambda _: True) -> bool:
        if any(mark.sha256 == digest and fits(mark) for mark in self._known().marks):
            self.met.add(digest)
            return True
        return False

    @property
    def _file(self) -> Path:
        return self.home / FILE

    def _known(self) -> _Known:
        """Return what the file says, read again once it has changed."""
        try:
            status = self._file.stat()
            now = (status.st_ino, status.st_size, status.st_mtime_ns)
            data = self._file.read_bytes() if self._cached[0] != now else b""
        except FileNotFoundError:
            self._cached = ((), _Known())
        except OSError:
            logger.warning("%s cannot be read", self._file, exc_info=True)
        else:
            if data or self._cached[0] != now:
                self._cached = (now, _read(data))
        return _Known(
            self._cached[1].marks + self._unsaved.marks, self._cached[1].spans + self._unsaved.spans
        )

    def _change(self, marks: Sequence[Mark], spans: Iterable[Span]) -> None:
        spans = [*spans]
        if not marks and not spans:
            return
        try:
            make_private(self.home)
            with locked(self._file):
                known = self._known()
                if known == _Known() and self._file.exists():
                    self._file.replace(self._file.with_name(f"{FILE}.damaged"))
                new = {(m.path, m.sha256): m for m in (*known.marks, *marks)}
                self._write(_bounded([*new.values()], [*known.spans, *spans]))
                self._unsaved = _Known()
        except OSError:  # a full disk: it holds in this process at least
            logger.warning("%s cannot be written", self._file, exc_info=True)
            before = self._unsaved
            self._unsaved = _Known((*before.marks, *marks), (*before.spans, *spans))

    def _write(self, known: _Known) -> None:
        document = {"version": 1, **asdict(known)}
        write_atomic(self._file, json.dumps(document, indent=0).encode(), mode=0o600)


def _bounded(marks: list[Mark], spans: list[Span]) -> _Known:
    """Return what is kept: the oldest marks as a span, and one span for each folder."""
    if len(marks) > MOST:
        old, marks = marks[:FOLDED], marks[FOLDED:]
        paths = [mark.path for mark in old if mark.path] or ["/"]
        since, until = old[0].when - _DAY, old[-1].when
        spans.append(Span(folder=os.path.commonpath(paths), since=since, until=until))
    merged: dict[str, Span] = {}
    for span in spans:
        was = merged.get(span.folder, span)
        since, until = min(was.since, span.since), max(was.until, span.until)
        merged[span.folder] = Span(folder=span.folder, since=since, until=until)
    return _Known(tuple(marks), tuple(merged.values()))


_DAY = 86_400.0


class _Walk:
    """Collects what changed, and what could not be looked at; links are not followed."""

    def __init__(self, since: float) -> None:
        self.changed: list[str] = []
        self.unseen: list[str] = []
        self._since, self._left = since, LOOKED_AT

    def look(self, folder: str) -> None:
        if self._left <= 0 or Path(folder).name in {*NOT_WALKED, ".git", ".venv"}:
            self.unseen.append(folder)
            return
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._left -= 1
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(status.st_mode):
                        self.look(entry.path)
                    elif stat.S_ISREG(status.st_mode) and self._is_new(status):
                        self.changed.append(entry.path)
        except OSError:
            self.unseen.append(folder)

    def _is_new(self, status: os.stat_result) -> bool:
        return max(status.st_mtime, status.st_ctime) >= self._since


def _within(path: str, changed: float, span: Span) -> bool:
    below = path == span.folder or path.startswith(span.folder.rstrip("/") + "/")
    return below and span.since <= changed <= span.until


def _content(path: str) -> bytes:
    """Return what is in a regular file; raise OSError, or ValueError where it is too large."""
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError("no regular file")
        data = file.read(LARGEST + 1)
    if len(data) > LARGEST:
        raise ValueError("too large")
    return data


@lru_cache(maxsize=64)
def _lines(path: str, sha256: str, size: int) -> tuple[str, ...]:
    """Return the telling lines of a marked file, none where it has been changed."""
    try:
        data = _content(path) if Path(path).stat().st_size == size else b""
    except (OSError, ValueError):
        return ()
    if _digest(data) != sha256:
        return ()
    lines = {line.strip() for line in data.decode("utf-8", "replace").splitlines()}
    return tuple(line[:400] for line in lines if len(line) >= _LINE)


def _sources(notebook: bytes) -> Iterator[str]:
    with suppress(ValueError, AttributeError, RecursionError):
        for cell in json.loads(notebook).get("cells", ()):
            yield "".join(cell.get("source", ""))


def _read(data: bytes) -> _Known:
    """Return what a file's bytes say, nothing where they are damaged."""
    try:
        document = json.loads(data)
        marks = tuple(Mark(**each) for each in document["marks"])
        spans = tuple(Span(**each) for each in document["spans"])
    except (ValueError, TypeError, KeyError, RecursionError):
        logger.warning("%s is damaged; what it held is not known any more", FILE)
        return _Known()
    return _Known(marks, spans)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
