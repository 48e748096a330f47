"""A cassette's file in use: which recording comes next, what is added, what is no longer needed.

Several threads may use one object, and several processes one file. Two branches that each added
recordings merge by concatenation: the order of lines matters only among recordings of one request.
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
"""Bytes of a file that is read as a cassette."""
ACCEPT = (
    "accept it with `%hermes cassette accept`, `pytest --hermes-accept` or "
    "`jupyter hermes run --cassette replay --accept`, or record it anew"
)


class CassetteError(HermesError):
    """A cassette cannot be used; the text says which and what to do."""


class _Contents:
    """What files hold: recordings by their lines, messages by their digests, what is unreadable.

    `by_said` has the recordings of earlier forms by what was said in the messages that they hold.
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
        # Recordings of earlier forms are keyed by what was said in the messages that they hold.
        digests = {digest: counted_digest(link.said) for digest, link in self.links.items()}
        for line, made in self.made.items():
            links = self.conversation(made) if made.form < FORM else []
            if links and not links[0].before:
                said = digest_of([each for link in links if (each := digests[link.digest])])
                self._by_said.setdefault(said, []).append(line)

    def take(self, line: bytes, where: str = "") -> None:
        """Read a line; a damaged one becomes a problem, a second copy is nothing new."""
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
        if len(lines) > 1:  # in the order of their run, and then in the file's
            lines.sort(key=lambda each: self.made[each].nth)

    def find(self, now: Canonical) -> list[bytes]:
        """Return the lines that answer a request, in the order of their run.

        Of several those count whose rest is most alike.
        """
        found = [*self._by_said.get(now.said, ()), *self._by_key.get(now.key, ())]
        near = {x: self.made[x].nearness(now) for x in found if self.made[x].fits(now)}
        best = max(near.values(), default=None)
        return [line for line, each in near.items() if each == best]

    def conversation(self, recording: Recording) -> list[Link]:
        """Return the messages that a recording answered, as far as they are there, in order."""
        out: dict[str, Link] = {}
        link = self.links.get(recording.head)
        while link is not None and link.digest not in out:
            out[link.digest] = link
            link = self.links.get(link.before)
        return list(out.values())[::-1]


class CassetteFile:
    """The recordings of one file and, to be read only, of those in `also`.

    `private` files are made for their owner alone. A run begins with the object, or with `rewind`:
    within it the recordings of one request are played in order, the last one again and again, and
    what is recorded takes the place of what earlier runs had recorded for the same request. All
    that writes raises `CassetteError` where it cannot, and then the file is as it was.
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
        """What could not be read, each with its file and line."""
        with self._lock:
            return list(self._fresh().problems)

    @property
    def recordings(self) -> list[Recording]:
        """All the recordings, in order."""
        with self._lock:
            return list(self._fresh().made.values())

    @property
    def used(self) -> int:
        """How many recordings this run has played or made."""
        with self._lock:
            return len(self._used)

    def rewind(self) -> None:
        """Begin another run."""
        with self._lock:
            self._played.clear()
            self._used.clear()
            self._old = None

    def next(self, now: Canonical) -> Recording | None:
        """Return the recording of a request whose turn it is, None when there is none.

        Raises `CassetteError` when it was edited and nobody accepted that.
        """
        with self._lock:
            contents = self._fresh()
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
        """Return the messages that a recording answered, as far as they are there, in order."""
        with self._lock:
            return self._fresh().conversation(recording)

    def ready(self) -> None:
        """See to it that the file can be written, before a reply is paid for."""
        with self._refused():
            if self._private:
                make_private(self.path.parent)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() or self.path.is_symlink():
                os.close(self._open())
            elif not os.access(self.path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    def add(self, recording: Recording, canonical: Canonical) -> None:
        """Write a recording, and of its conversation what is not there yet."""
        with self._lock:
            contents = self._fresh()
            if self._old is None:  # what was there before this run recorded anything
                self._old = set(contents.made)
            instead = self._old.intersection(contents.find(canonical))
            nth = self._played[recording.key] + 1
            line = replace(recording, nth=nth).line()
            new = [link_line(x) for x in canonical.links if x.digest not in contents.links]
            with self._refused(), self._alone():
                self._write([*new, line], instead)
            self._old -= instead
            self._played[recording.key] = nth
            self._used.add(line)

    def unused(self) -> list[Recording]:
        """Return the recordings of this own file that this run had no use for."""
        with self._lock:
            made = self._fresh().made
            own = set(_lines_of(self.path)) if self._files[1:] else made.keys()
            return [m for line, m in made.items() if line in own and line not in self._used]

    def prune(self) -> int:
        """Take what this run had no use for out of the file; return how many recordings that was.

        Damaged lines, copies, and messages of no remaining conversation go as well.
        """
        with self._lock, self._refused():
            os.close(self._open())
            with self._alone():
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
        """Let the answers of the file count as they were edited; return how many that was."""
        with self._lock:
            edited = self._fresh().edited
            if not edited:
                return 0
            with self._refused(), self._alone():
                lines = _lines_of(self.path)
                new = [accepted(line) if line in edited else line for line in lines]
                write_atomic(self.path, _joined(new))
            self._stamps = []
            return sum(line in edited for line in lines)

    def _fresh(self) -> _Contents:
        """Return what the files hold, read again if any of them is another than before."""
        stamps = list(map(_stamp, self._files))
        if stamps != self._stamps:
            self._contents, self._stamps = _Contents(self._files), stamps
        return self._contents

    def _write(self, data: Sequence[bytes], instead: set[bytes]) -> None:
        """Put lines where the old ones stand that they replace, or else at the end of the file."""
        lines = _lines_of(self.path) if instead else []
        place = next((at for at, line in enumerate(lines) if line in instead), None)
        if place is None:
            before = self._append(_joined(data))
            if self._stamps and self._stamps[0][1] == before:  # nobody else's lines
                for line in data:
                    self._contents.take(line)
                self._stamps[0] = _stamp(self.path)
            return
        kept = [[x for x in part if x not in instead] for part in (lines[:place], lines[place:])]
        os.close(self._open())
        write_atomic(self.path, _joined([*kept[0], *data, *kept[1]]))

    def _append(self, data: bytes) -> int:
        """Write whole lines at the end and return the size before; a torn line there is ended."""
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
        """Open the file to add to it; a link could lead anywhere, so it is refused."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT
        for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
            flags |= getattr(os, name, 0)
        handle = os.open(self.path, flags, 0o600 if self._private else 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError("it is not a regular file")
        return handle

    def _alone(self) -> AbstractContextManager[int]:
        """Hold the file against other processes; the lock is a hidden file."""
        return locked(self.path.with_name(f".{self.path.name}"))

    @contextmanager
    def _refused(self) -> Iterator[None]:
        """Say what to do where the system refuses; TimeoutError is an OSError."""
        try:
            yield
        except OSError as error:
            raise CassetteError(
                f"the cassette {str(self.path)!r} cannot be written: {error.strerror or error}; "
                "HERMES_NB_CASSETTE_FILE names another, `%hermes cassette off` goes on without one"
            ) from error


Tape = CassetteFile


def _lines_of(path: Path) -> list[bytes]:
    """Return a file's lines without their ends; [] where there is no file.

    Only a line feed ends a line. Raises OSError for what is no regular file, or is far too large.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return []
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        raise OSError("it is not a regular file, or too large")
    lines = path.read_bytes().split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]


def _write_whole(handle: int, data: bytes) -> None:
    """Write everything, durably; raise OSError where only a part had room."""
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
