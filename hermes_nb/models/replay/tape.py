"""A cassette's file in use: which recording comes next, what is added, what is no longer needed.

Several threads may use one tape, and several processes one file. Two branches that each added
recordings merge by concatenation: the order of lines matters only among recordings of one request.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hermes_nb.core.errors import HermesError
from hermes_nb.core.files import locked, make_private, write_atomic
from hermes_nb.models.replay.canonical import Canonical, Link
from hermes_nb.models.replay.recording import Recording, accepted, link_line, read
from hermes_nb.models.replay.reel import Reel, lines_of

ACCEPT = (
    "accept it with `%hermes cassette accept`, `pytest --hermes-accept` or "
    "`jupyter hermes run --cassette replay --accept`, or record it anew"
)
_Stamp = tuple[int, int, int]


class CassetteError(HermesError):
    """A cassette cannot be used; the text says which and what to do."""


class Tape:
    """The recordings of one file and, to be read only, of those in `also`.

    `private` files are made for their owner alone. A run begins with the tape, or with `rewind`:
    within it the recordings of one request are played in order, the last one again and again, and
    what is recorded takes the place of what earlier runs had recorded for the same request.
    """

    def __init__(self, path: Path, *, also: Sequence[Path] = (), private: bool = False) -> None:
        self.path = path
        self._also = tuple(each for each in also if each != path)
        self._private = private
        self._lock = threading.RLock()
        self._reel = Reel()
        self._stamps: tuple[_Stamp, ...] | None = None
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
            lines = self._nearest(now)
            if not lines:
                return None
            line = next((each for each in lines if each not in self._used), lines[-1])
            if line in self._reel.edited:
                message = f"{self._reel.edited[line]}: the answer was edited; {ACCEPT}"
                raise CassetteError(message)
            self._played[now.key] += 1
            self._used.add(line)
            return self._reel.made[line]

    def _nearest(self, now: Canonical) -> list[bytes]:
        """Return the lines that answer a request; of several, those whose rest is most alike."""
        reel = self._fresh()
        lines = [line for line in reel.find(now) if reel.made[line].fits(now)]
        near = {line: reel.made[line].nearness(now) for line in lines}
        return [line for line in lines if near[line] == max(near.values())]

    def conversation(self, recording: Recording) -> list[Link]:
        """Return the messages that a recording answered, as far as they are there, in order."""
        with self._lock:
            return self._fresh().conversation(recording)

    def ready(self) -> None:
        """See to it that the file can be written, before a reply is paid for.

        Raises `CassetteError`.
        """
        try:
            if self._private:
                make_private(self.path.parent)
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if self.path.exists() or self.path.is_symlink():
                os.close(self._open())
            elif not os.access(self.path.parent, os.W_OK):
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        except OSError as error:
            raise self._unwritable(error) from error

    def add(self, recording: Recording, canonical: Canonical) -> None:
        """Write a recording, and of its conversation what is not there yet.

        Raises `CassetteError`, and then the file is as it was.
        """
        with self._lock:
            reel = self._fresh()
            if self._old is None:  # what was there before this run recorded anything
                self._old = set(reel.made)
            instead = self._old.intersection(self._nearest(canonical))
            nth = self._played[recording.key] + 1
            line = replace(recording, nth=nth).line()
            links = [link_line(link) for link in canonical.links if link.digest not in reel.links]
            try:
                with locked(self._guarded()):
                    self._write([*links, line], instead)
            except OSError as error:  # TimeoutError is one
                raise self._unwritable(error) from error
            self._old -= instead
            self._played[recording.key] = nth
            self._used.add(line)

    def unused(self) -> list[Recording]:
        """Return the recordings of the tape's own file that this run had no use for."""
        with self._lock:
            reel = self._fresh()
            own = set(lines_of(self.path)) if self._also else reel.made.keys()
            return [m for line, m in reel.made.items() if line in own and line not in self._used]

    def prune(self) -> int:
        """Take what this run had no use for out of the file; return how many recordings that was.

        Damaged lines, copies, and messages of no remaining conversation go as well. Raises
        `CassetteError`, and then the file is as it was.
        """
        with self._lock:
            try:
                os.close(self._open())
                with locked(self._guarded()):
                    lines = dict.fromkeys(lines_of(self.path))
                    own = Reel()
                    for line in lines:
                        own.take(line)
                    needed = own.needed(self._used)
                    kept = [x for x in lines if x in self._used or _digest(x, own) in needed]
                    write_atomic(self.path, _joined(kept))
            except OSError as error:
                raise self._unwritable(error) from error
            self._stamps = None
            return len(own.made.keys() - self._used)

    def accept(self) -> int:
        """Let the answers of the file count as they were edited; return how many that was.

        Raises `CassetteError`, and then the file is as it was.
        """
        with self._lock:
            edited = self._fresh().edited
            if not edited:
                return 0
            try:
                with locked(self._guarded()):
                    lines = lines_of(self.path)
                    new = [accepted(line) if line in edited else line for line in lines]
                    write_atomic(self.path, _joined(new))
            except OSError as error:
                raise self._unwritable(error) from error
            self._stamps = None
            return sum(line in edited for line in lines)

    def _fresh(self) -> Reel:
        """Return what the files hold, read again if any of them is another than before."""
        stamps = tuple(map(_stamp, (self.path, *self._also)))
        if stamps != self._stamps:
            self._reel, self._stamps = Reel.of((self.path, *self._also)), stamps
        return self._reel

    def _write(self, data: Sequence[bytes], instead: set[bytes]) -> None:
        """Put lines where the old ones stand that they replace, or else at the end of the file."""
        lines = lines_of(self.path) if instead else []
        place = next((at for at, line in enumerate(lines) if line in instead), None)
        if place is None:
            before = self._append(_joined(data))
            if self._stamps is not None and self._stamps[0][1] == before:  # nobody else's lines
                for line in data:
                    self._reel.take(line)
                self._stamps = (_stamp(self.path), *self._stamps[1:])
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
            message = "it is not a regular file"
            raise OSError(message)
        return handle

    def _guarded(self) -> Path:
        """Return the path whose lock is this file's, so that the lock file is a hidden one."""
        return self.path.with_name(f".{self.path.name}")

    def _unwritable(self, error: OSError) -> CassetteError:
        return CassetteError(
            f"the cassette {str(self.path)!r} cannot be written: {error.strerror or error}; "
            "HERMES_NB_CASSETTE_FILE names another, `%hermes cassette off` goes on without one"
        )


def _write_whole(handle: int, data: bytes) -> None:
    """Write everything, durably; raise OSError where only a part had room."""
    if os.write(handle, data) < len(data):
        message = "the disk is full"
        raise OSError(message)
    os.fsync(handle)


def _joined(lines: Sequence[bytes]) -> bytes:
    return b"".join(line + b"\n" for line in lines if line.strip())


def _digest(line: bytes, reel: Reel) -> str:
    """Return the digest of a line that is a message, "" for any other."""
    if line in reel.made:
        return ""
    try:
        thing = read(line)
    except ValueError:
        return ""
    return thing.digest if isinstance(thing, Link) else ""


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_ino, status.st_size, status.st_mtime_ns
