"""Stores undo data: compressed blobs by digest and one index per session, up to a size limit.

A lock shared by all threads and kernels protects all access. An index is written after the blobs
that it refers to, and before blobs that it no longer needs are removed. So if a process is killed,
every index is still readable and complete; at worst, an unused blob remains until the next sweep.
"""

from __future__ import annotations

import hashlib
import re
import threading
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.agent.undo.records import SessionIndex, TurnRecord, dumps, loads
from hermes_nb.core.errors import HermesError
from hermes_nb.core.files import TEMPORARY, locked, make_private, write_atomic

_PLAIN_NAME = re.compile(r"[\w-][\w.-]{0,79}")
_LEVEL = 3
"""zlib level: compresses text nearly as well as level 6, in a third of the time."""


class SavedCopyLost(HermesError):
    """Saved data is missing or damaged."""


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """The turn that is currently being written."""

    session: str
    """The session's id."""
    index: SessionIndex
    """The session's index."""
    record: TurnRecord
    """The turn's record in `index`."""


class CheckpointStore:
    """The folder with the undo data, which is created when data is first stored.

    `limit` is the maximum size on disk in bytes, compressed. All methods except `lock` require the
    lock.
    """

    def __init__(self, folder: Path, *, limit: int) -> None:
        self.folder = folder
        self.limit = limit
        self._blobs = folder / "blobs"
        self._used = 0
        self._fresh: set[str] = set()
        self._mutex = threading.Lock()

    @contextmanager
    def lock(self, *, create: bool = False) -> Iterator[None]:
        """Lock the folder across threads and kernels; raise TimeoutError or OSError."""
        with self._mutex:
            if create:
                make_private(self._blobs)
            if not self.folder.is_dir():
                yield
                return
            with locked(self.folder / "checkpoints"):
                self._fresh.clear()
                yield

    def load(self, session: str) -> SessionIndex:
        """Return a session's index, or an empty one if it is missing."""
        return _read(self._path(session))

    def save(self, session: str, index: SessionIndex) -> None:
        """Write a session's index."""
        write_atomic(self._path(session), dumps(index), mode=0o600)

    def put(self, data: bytes, turn: OpenTurn) -> str:
        """Store `data` and return its digest, or "" if it exceeds the limit.

        If needed, the oldest turns of all sessions are removed, but never `turn` itself.
        """
        digest = hashlib.sha256(data).hexdigest()
        path = self._blobs / digest
        if not path.exists():
            packed = zlib.compress(data, _LEVEL)
            if self._used + len(packed) > self.limit:
                self.sweep(turn, room=len(packed))
            if self._used + len(packed) > self.limit:
                return ""
            write_atomic(path, packed, mode=0o600)
            self._used += len(packed)
        self._fresh.add(digest)
        return digest

    def get(self, digest: str) -> bytes:
        """Return the data with that digest; raise `SavedCopyLost`."""
        try:
            data = zlib.decompress((self._blobs / digest).read_bytes())
        except (OSError, zlib.error) as error:
            raise SavedCopyLost("its saved copy is missing or damaged") from error
        if hashlib.sha256(data).hexdigest() != digest:
            raise SavedCopyLost("its saved copy is damaged")
        return data

    def sweep(self, turn: OpenTurn, *, room: int = 0) -> None:
        """Remove unused blobs, then the oldest turns until `room` bytes are free.

        The index of `turn` is used instead of the one on disk; it is saved if turns were removed
        from it.
        """
        sizes = self._sizes()
        indexes = {path: _read(path) for path in self.folder.glob("*.json")}
        indexes[self._path(turn.session)] = turn.index
        uses = Counter(self._fresh)
        for index in indexes.values():
            uses.update(digest for each in index.turns for digest in each.digests())
        used = sum(size for digest, size in sizes.items() if digest in uses)
        changed: set[Path] = set()
        turns = [(path, record) for path, index in indexes.items() for record in index.turns]
        for path, record in sorted(turns, key=lambda turn: (turn[1].when, turn[1].number)):
            if used + room <= self.limit:
                break
            if record is turn.record:
                continue
            indexes[path].turns.remove(record)
            changed.add(path)
            for digest in record.digests():
                uses[digest] -= 1
                if uses[digest] == 0:
                    used -= sizes.get(digest, 0)
        for path in changed:
            if indexes[path].turns:
                write_atomic(path, dumps(indexes[path]), mode=0o600)
            else:
                with suppress(OSError):
                    path.unlink()
        for digest in sizes:
            if uses[digest] <= 0:
                with suppress(OSError):
                    (self._blobs / digest).unlink()
        self._used = used

    def remove(self, sessions: Iterable[str]) -> None:
        """Remove sessions' indexes, and the blobs that no other index needs."""
        for session in sessions:
            self._path(session).unlink(missing_ok=True)
        if self._blobs.is_dir():
            nothing = TurnRecord(number=0, turn=0, when=0.0)
            self.sweep(OpenTurn("", SessionIndex(), nothing))

    def _sizes(self) -> dict[str, int]:
        sizes: dict[str, int] = {}
        for folder in (self.folder, self._blobs):
            for path in folder.iterdir():
                if path.name.endswith(TEMPORARY):  # left by a killed writer: writers hold the lock
                    with suppress(OSError):
                        path.unlink()
                elif folder is self._blobs:
                    with suppress(OSError):
                        sizes[path.name] = path.stat().st_size
        return sizes

    def _path(self, session: str) -> Path:
        if _PLAIN_NAME.fullmatch(session):
            return self.folder / f"{session}.json"
        digest = hashlib.sha256(session.encode("utf-8", "surrogatepass")).hexdigest()
        return self.folder / f"{digest[:32]}.json"


def _read(path: Path) -> SessionIndex:
    try:
        return loads(path.read_bytes())
    except OSError:
        return SessionIndex()
