"""A cassette's file: finds the next recording, adds recordings, prunes unused ones.

An object is thread-safe, and several processes can use the same file. Two branches that each added
recordings merge by concatenation: line order matters only among recordings of the same request.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path

from hermes_nb.core.errors import HermesError, ModelError
from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.models.canonical import FORM, Canonical, Link, counted_digest, digest_of
from hermes_nb.models.recording import Recording, accepted, link_line, read

LARGEST = 512 * 2**20
"""Maximum size of a cassette in bytes."""
ACCEPT = (
    "accept it with `%hermes cassette accept`, `pytest --hermes-accept` or `jupyter hermes run "
    "--cassette replay --accept`, or record it again"
)


class CassetteError(HermesError):
    """A cassette cannot be used. The message contains its name and how to fix the problem."""


class _Contents:
    """The parsed contents of files: recordings by line, messages by digest, and problems.

    `_by_said` indexes recordings of earlier key forms by the digest of their stored messages.
    """

    def __init__(self, files: Iterable[Path] = ()) -> None:
        self.made: dict[bytes, Recording] = {}
        self.links: dict[str, Link] = {}
        self.digests: dict[bytes, str] = {}
        self.edited: dict[bytes, str] = {}
        self.problems: list[str] = []
        self._by_key: dict[str, list[bytes]] = {}
        self._by_said: dict[str, list[bytes]] = {}
        for file in files:
            try:
                lines = _lines_of(file)
            except OSError as error:
                self.problems.append(f"{file.name}: {error.strerror or error}")
                continue
            for number, line in enumerate(lines, 1):
                self.take(line, f"{file.name}, line {number}")
        # Keys in earlier forms are not comparable; such recordings are found by their messages.
        digests = {digest: counted_digest(link.said) for digest, link in self.links.items()}
        for line, made in self.made.items():
            links = self.conversation(made) if made.form < FORM else []
            if links and not links[0].before:
                said = digest_of([each for link in links if (each := digests[link.digest])])
                self._by_said.setdefault(said, []).append(line)

    def take(self, line: bytes, where: str = "") -> None:
        """Read a line. Duplicates are ignored; a damaged line is added to `problems`."""
        if line in self.made or not line.strip():
            return
        try:
            thing = read(line)
        except ValueError as error:
            self.problems.append(f"{where}: {error}")
            return
        if isinstance(thing, Link):
            self.digests[line] = thing.digest
            self.links.setdefault(thing.digest, thing)
            return
        self.made[line] = thing
        if thing.edited:
            self.edited[line] = where
        lines = self._by_key.setdefault(thing.key, [])
        lines.append(line)
        if len(lines) > 1:  # by their number within the run, then by position in the file
            lines.sort(key=lambda each: self.made[each].nth)

    def find(self, now: Canonical) -> list[bytes]:
        """Return the lines that answer a request, in the order of their run.

        If several recordings match, return those whose requests are otherwise most similar.
        """
        found = [*self._by_said.get(now.said, ()), *self._by_key.get(now.key, ())]
        near = {x: self.made[x].nearness(now) for x in found if self.made[x].fits(now)}
        best = max(near.values(), default=None)
        return [line for line, each in near.items() if each == best]

    def conversation(self, recording: Recording) -> list[Link]:
        """Return the stored messages that a recording answered, in order; some may be missing."""
        out: dict[str, Link] = {}
        link = self.links.get(recording.head)
        while link is not None and link.digest not in out:
            out[link.digest] = link
            link = self.links.get(link.before)
        return list(out.values())[::-1]


class CassetteFile:
    """The recordings in one file and in the read-only files in `also`.

    A run starts with the object or with `rewind`. Within a run, a request's recordings are played
    in order, and the last one is repeated. New recordings replace those of earlier runs for the
    same request.

    With `private`, the file is created readable only by its owner. Methods that write raise
    `CassetteError` on failure and leave the file unchanged.
    """

    def __init__(self, path: Path, *, also: Sequence[Path] = (), private: bool = False) -> None:
        self.path = path
        self.last_miss: ModelError | None = None
        self._files = (path, *(each for each in also if each != path))
        self._private = private
        self._lock = threading.RLock()
        self._contents = _Contents()
        self._stamps: list[tuple[int, int, int]] = []
        self._played: Counter[str] = Counter()
        self._used: set[bytes] = set()
        self._old: set[bytes] | None = None

    @property
    def problems(self) -> list[str]:
        """Descriptions of unreadable lines and files, each with file and line."""
        with self._lock:
            return list(self._current_files().problems)

    @property
    def recordings(self) -> list[Recording]:
        """All recordings, in order."""
        with self._lock:
            return list(self._current_files().made.values())

    @property
    def used(self) -> int:
        """Number of recordings that were played or made in this run."""
        with self._lock:
            return len(self._used)

    def rewind(self) -> None:
        """Start another run."""
        with self._lock:
            self._played.clear()
            self._used.clear()
            self._old = None

    def next(self, now: Canonical) -> Recording | None:
        """Return the next recording of a request, or None.

        Raises:
            CassetteError: the recording was edited, and the edit has not been accepted.
        """
        with self._lock:
            contents = self._current_files()
            lines = contents.find(now)
            if not lines:
                return None
            line = next((each for each in lines if each not in self._used), lines[-1])
            if line in contents.edited:
                raise CassetteError(f"{contents.edited[line]}: the answer was edited; {ACCEPT}")
            self._played[now.key] += 1
            self._used.add(line)
            return contents.made[line]

    def conversation(self, recording: Recording) -> list[Link]:
        """Return the stored messages that a recording answered, in order; some may be missing."""
        with self._lock:
            return self._current_files().conversation(recording)

    def ready(self) -> None:
        """Check that the file can be written, before a reply is paid for.

        Raises:
            CassetteError: it cannot be written.
        """
        with self._as_cassette_error():
            if self._private:
                make_private(self.path.parent)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() or self.path.is_symlink():
                os.close(self._open())
            elif not os.access(self.path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def add(self, recording: Recording, canonical: Canonical) -> None:
        """Write a recording, and the messages of its conversation that have not been stored yet."""
        with self._lock:
            contents = self._current_files()
            if self._old is None:  # the recordings from before this run
                self._old = set(contents.made)
            instead = self._old.intersection(contents.find(canonical))
            nth = self._played[recording.key] + 1
            line = replace(recording, nth=nth).line()
            new = [link_line(x) for x in canonical.links if x.digest not in contents.links]
            with self._as_cassette_error(), self._file_lock():
                self._write([*new, line], instead)
            self._old -= instead
            self._played[recording.key] = nth
            self._used.add(line)

    def unused(self) -> list[Recording]:
        """Return the recordings in the main file that this run did not use."""
        with self._lock:
            made = self._current_files().made
            own = set(_lines_of(self.path)) if self._files[1:] else made.keys()
            return [m for line, m in made.items() if line in own and line not in self._used]

    def prune(self) -> int:
        """Remove unused recordings from the main file and return their number.

        Damaged lines, duplicates and messages without a remaining recording are also removed.
        """
        with self._lock, self._as_cassette_error():
            os.close(self._open())
            with self._file_lock():
                lines = dict.fromkeys(_lines_of(self.path))
                own = _Contents()
                for line in lines:
                    own.take(line)
                kept = [made for line, made in own.made.items() if line in self._used]
                needed = {link.digest for made in kept for link in own.conversation(made)}
                stays = [x for x in lines if x in self._used or own.digests.get(x) in needed]
                write_atomic(self.path, _joined(stays))
            self._stamps = []
            return len(own.made.keys() - self._used)

    def accept(self) -> int:
        """Accept the edited answers in the file and return their number."""
        with self._lock:
            edited = self._current_files().edited
            if not edited:
                return 0
            with self._as_cassette_error(), self._file_lock():
                lines = _lines_of(self.path)
                new = [accepted(line) if line in edited else line for line in lines]
                write_atomic(self.path, _joined(new))
            self._stamps = []
            return sum(line in edited for line in lines)

    def _current_files(self) -> _Contents:
        """Return the parsed files, rereading them if one has changed."""
        stamps = list(map(_stamp, self._files))
        if stamps != self._stamps:
            self._contents, self._stamps = _Contents(self._files), stamps
        return self._contents

    def _write(self, data: Sequence[bytes], instead: set[bytes]) -> None:
        """Replace the lines `instead` in place, or append the new lines to the file."""
        lines = _lines_of(self.path) if instead else []
        place = next((at for at, line in enumerate(lines) if line in instead), None)
        if place is None:
            before = self._append(_joined(data))
            if self._stamps and self._stamps[0][1] == before:  # no other process has written since
                for line in data:
                    self._contents.take(line)
                self._stamps[0] = _stamp(self.path)
            return
        kept = [[x for x in part if x not in instead] for part in (lines[:place], lines[place:])]
        os.close(self._open())
        write_atomic(self.path, _joined([*kept[0], *data, *kept[1]]))

    def _append(self, data: bytes) -> int:
        """Append whole lines and return the previous size, first ending an incomplete last line."""
        handle = self._open()
        try:
            size = os.lseek(handle, 0, os.SEEK_END)
            if size:
                os.lseek(handle, size - 1, os.SEEK_SET)
                data = data if os.read(handle, 1) == b"\n" else b"\n" + data
            try:
                _write_whole(handle, data)
            except OSError:
                os.ftruncate(handle, size)
                raise
            return size
        finally:
            os.close(handle)

    def _open(self) -> int:
        """Open the file for appending. Symbolic links are refused, as they can point anywhere."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
            flags |= getattr(os, name, 0)
        handle = os.open(self.path, flags, 0o600 if self._private else 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError("it is not a regular file")
        return handle

    def _file_lock(self) -> AbstractContextManager[int]:
        """Lock the file against other processes, using a hidden lock file."""
        return locked(self.path.with_name(f".{self.path.name}"))

    @contextmanager
    def _as_cassette_error(self) -> Iterator[None]:
        """Turn an OSError (including TimeoutError) into a `CassetteError` that suggests a fix."""
        try:
            yield
        except OSError as error:
            raise CassetteError(
                f"the cassette {str(self.path)!r} cannot be written: {error.strerror or error}; "
                "set HERMES_NB_CASSETTE_FILE to another file, or use `%hermes cassette off`"
            ) from error


Tape = CassetteFile


def _lines_of(path: Path) -> list[bytes]:
    """Return a file's lines without line endings; [] if the file does not exist.

    Only a line feed ends a line.

    Raises:
        OSError: the file is too large or not a regular file.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return []
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise OSError("it is not a regular file, or it is too large")
    lines = path.read_bytes().split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def _write_whole(handle: int, data: bytes) -> None:
    """Write all data and fsync; raise OSError if only part of it was written."""
    if os.write(handle, data) < len(data):
        raise OSError("the disk is full")
    os.fsync(handle)


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines if line.strip())


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns
