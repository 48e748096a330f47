"""Changes of the home's skills on disk, counted and undone: each whole or not at all, in turn.

A skill appears with one rename, so a killed process never leaves a folder without its SKILL.md;
what it leaves lies in the hidden state directory beside the skills and is swept by the next one.
The locks lie there too: nothing but the skill itself is in a skill's folder. A record is written
before its change and says what the skill was and shall be. After a crash in between, it describes a
change that never was, which shows in the files; such a record is dropped. The records are bounded
in number and size.

How often each skill was read, used and changed, who made it and whether it is off is one JSON line
an event in `usage.jsonl`, added under a lock and without waiting for the disk: a count that a power
cut loses is no loss. A long log is folded into one line a skill; lines that cannot be read are
skipped.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from hermes_nb.core.files import TEMPORARY, append_line, locked, make_private, write_atomic
from hermes_nb.core.messages import Json
from hermes_nb.core.records import restored
from hermes_nb.skills.discovery import DOCUMENT, STATE, read_regular
from hermes_nb.skills.document import SkillError

Event = Literal["view", "use", "patch", "made", "off", "on", "gone"]
FOLD_AT = 262_144
"""Bytes of the log from which it is folded."""
_READ_LIMIT = 16_777_216
_LARGEST = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillOrigin:
    """Who changes a skill: a session and a turn of it, "" and 0 where it is the user.

    `proposal` is the id of what the user approved, "" for a change that was made at once.
    """

    session: str = ""
    turn: int = 0
    proposal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillUsage:
    """What is known of a skill's life. Times are in seconds since the epoch, 0.0 for never.

    `views` counts how often it was looked at, `uses` how often it was loaded into a conversation.
    """

    views: int = 0
    uses: int = 0
    patches: int = 0
    last_used: float = 0.0
    made: float = 0.0
    origin: SkillOrigin = field(default_factory=SkillOrigin)
    disabled: bool = False


_NEVER = SkillUsage()


class UsageLog:
    """The log below `directory`, or, with None, counts in memory. Safe between threads."""

    def __init__(self, directory: Path | None) -> None:
        self._path = directory / "usage.jsonl" if directory else None
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._entries: dict[str, SkillUsage] = {}

    def entries(self) -> Mapping[str, SkillUsage]:
        """Return what is known, by skill name, reading the log again only when it changed."""
        with self._lock:
            stamp: tuple[int, ...] = ()
            if self._path is not None:
                with suppress(OSError):
                    status = self._path.stat()
                    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                if stamp != self._stamp:
                    self._entries = _folded(_lines(self._path), {})
                    self._stamp = stamp
            return dict(self._entries)

    def of(self, name: str) -> SkillUsage:
        """Return what is known of one skill."""
        return self.entries().get(name, _NEVER)

    def note(self, name: str, event: Event, origin: SkillOrigin | None = None) -> None:
        """Add an event; where it cannot be written it is known to this process alone."""
        line: dict[str, Json] = {"skill": name, "event": event, "at": round(time.time(), 3)}
        if origin and origin.session:
            line |= {"session": origin.session, "turn": origin.turn}
        if self._path is not None and self._path.parent.parent.is_dir():
            path = self._path
            with suppress(OSError):  # a full disk or a read-only home costs the count, no more
                path.parent.mkdir(mode=0o700, exist_ok=True)
                with locked(path):
                    if append_line(path, _json(line), durable=False) > FOLD_AT:
                        folded = (_summary(*each) for each in _folded(_lines(path), {}).items())
                        write_atomic(path, b"".join(folded), mode=0o600)
                return
        with self._lock:
            self._entries = _folded([line], self._entries)


def _json(line: Mapping[str, Json]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _lines(path: Path) -> Iterable[dict[str, Json]]:
    try:
        with path.open("rb") as file:
            data = file.read(_READ_LIMIT)
    except OSError:
        return
    for raw in data.split(b"\n"):
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("skill"), str):
            yield line


def _folded(
    lines: Iterable[Mapping[str, Json]], start: Mapping[str, SkillUsage]
) -> dict[str, SkillUsage]:
    entries = dict(start)
    for line in lines:
        name = line["skill"]
        entries[name] = _after(entries.get(name, _NEVER), line)
    return entries


def _after(usage: SkillUsage, line: Mapping[str, Json]) -> SkillUsage:
    at = _number(line.get("at"))
    match line.get("event"):
        case "view":
            return replace(usage, views=usage.views + 1)
        case "use":
            return replace(usage, uses=usage.uses + 1, last_used=max(usage.last_used, at))
        case "patch":
            return replace(usage, patches=usage.patches + 1)
        case "made":
            return replace(usage, made=at, origin=_origin(line))
        case "off" | "on" | "gone" as event:
            return replace(usage, disabled=event == "off")
        case "sum":
            return SkillUsage(
                **{name: int(_number(line.get(name))) for name in ("views", "uses", "patches")},
                last_used=_number(line.get("last_used")),
                made=_number(line.get("made")),
                origin=_origin(line),
                disabled=line.get("disabled") is True,
            )
        case _:
            return usage


def _summary(name: str, usage: SkillUsage) -> bytes:
    known = asdict(usage)
    origin = known.pop("origin")
    del origin["proposal"]
    return _json({"skill": name, "event": "sum", **known, **origin})


def _origin(line: Mapping[str, Json]) -> SkillOrigin:
    session = line.get("session")
    return SkillOrigin(
        session=session if isinstance(session, str) else "", turn=int(_number(line.get("turn")))
    )


def _number(value: object) -> float:
    good = isinstance(value, int | float) and 0 <= value < _LARGEST  # no NaN either
    return float(value) if good and isinstance(value, int | float) else 0.0


RECORDS = 200
BYTES = 33_554_432
_PATIENCE = 20.0
"""Seconds that a change waits for another one of the same skill."""

Kind = Literal["made", "file", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillRecord:
    """A change of one skill. `place` is its folder and `file` the file, both relative.

    `before` and `after` are the SHA-256 of the file's bytes, "" for no file; `at` is in seconds
    since the epoch.
    """

    id: str
    kind: Kind
    action: str
    name: str
    place: str
    file: str = ""
    before: str = ""
    after: str = ""
    at: float = 0.0
    session: str = ""
    turn: int = 0
    proposal: str = ""


class Writer:
    """Writes below `root`, the home's skills."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / STATE
        self._history = self.state / "history"

    @contextmanager
    def alone(self, name: str = "") -> Iterator[None]:
        """Hold the lock of one skill or, without a name, of all that creates and removes skills.

        Raises TimeoutError. Whoever takes both takes the general one first.
        """
        locks = self.state / "locks"
        make_private(locks)
        with locked(locks / (name or ".all"), _PATIENCE):
            yield

    def create(
        self,
        name: str,
        category: str,
        contents: Mapping[str, bytes],
        action: str,
        origin: SkillOrigin,
    ) -> Path:
        """Make a skill of files by relative path and return its folder; under both locks."""
        target = self.root / category / name
        self._refuse_links(target)
        if os.path.lexists(target):
            raise SkillError(f"{name!r} is there already as a folder; choose another name")
        first = target  # the topmost folder on the way that is not there yet
        while first.parent != self.root and not first.parent.exists():
            first = first.parent
        building = self.state / "building"
        if building.exists():
            shutil.rmtree(building)  # what a killed process left: the lock says nobody builds
        record = self._record("made", action, name, target, origin, after=contents[DOCUMENT])
        top = building / record.id
        inside = top / target.relative_to(first.parent)
        try:
            for relative, data in contents.items():
                path = inside / relative
                make_private(path.parent)
                write_atomic(path, data, mode=0o600)
            self._add(record)
            (top / first.name).rename(first)
        finally:
            shutil.rmtree(building, ignore_errors=True)
        return target

    def put(
        self,
        directory: Path,
        name: str,
        relative: str,
        data: bytes | None,
        action: str,
        origin: SkillOrigin,
    ) -> None:
        """Replace, add or, with None, remove one file of a skill; under the skill's lock."""
        path = directory / relative
        self._refuse_links(path)
        before = read_regular(path) if path.exists() else None
        if before == data:
            return
        for left in directory.rglob(f".*{TEMPORARY}"):  # by a killed writer: nobody writes now
            left.unlink(missing_ok=True)
        record = self._record("file", action, name, directory, origin, relative, before, data)
        with self._recorded(record, before):
            _set(path, data)

    def remove(self, directory: Path, name: str, action: str, origin: SkillOrigin) -> None:
        """Take a skill away, so that it can come back; under both locks."""
        self._refuse_links(directory)
        before = read_regular(directory / DOCUMENT)
        record = self._record("removed", action, name, directory, origin, before=before)
        with self._recorded(record):
            directory.rename(self._kept(record, "folder"))
        self._tidy(directory.parent)

    def records(self, name: str = "") -> Iterator[SkillRecord]:
        """Yield the records, of one skill if named, the newest first; damaged ones are left out."""
        for path in sorted(self._history.glob("*.json"), reverse=True):
            try:
                record = restored(SkillRecord, json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError):
                continue
            if record.id == path.stem and name in ("", record.name):
                yield record

    def undo(self, name: str = "") -> SkillRecord:
        """Undo the last change, of one skill if named, and return its record; under the locks.

        Raises SkillError when there is none, or when the skill was changed by other means since.
        """
        for record in self.records(name):
            done = self._undone(record)
            self._forget(record.id)
            if done:  # else the process was killed before it made the change
                return record
        of = f" of {name!r}" if name else ""
        raise SkillError(f"there is no change{of} to undo")

    def has_made(self, proposal: str) -> bool:
        """Say whether the change of a proposal was made, and not only written down to be made.

        A process that is killed leaves the record without the change: then the file still is what
        it was before, now or when the next change of it began.
        """
        found_later: dict[tuple[str, str], str] = {}
        for record in self.records():
            key = (record.place, record.file or DOCUMENT)
            if record.proposal == proposal:
                if record.kind == "removed":
                    return self._kept(record, "folder").exists()
                now = _digest_at(self.root / record.place / key[1])
                return found_later.get(key, now) != record.before
            found_later[key] = record.before
        return False

    def _undone(self, record: SkillRecord) -> bool:
        directory = self.root / record.place
        self._refuse_links(directory / record.file)
        folder = self._kept(record, "folder")
        if record.kind == "removed":
            if not folder.exists():
                return False
            if os.path.lexists(directory):
                raise SkillError(f"{record.place!r} is there again; delete that one first")
            make_private(directory.parent)
            folder.rename(directory)
            return True
        path = directory / (record.file or DOCUMENT)
        now = _digest_at(path)
        if now != record.after:
            if now == record.before:
                return False
            raise SkillError(f"{record.name!r} was changed by other means since; undo it by hand")
        if record.kind == "made":
            directory.rename(folder)
            self._tidy(directory.parent)
        else:
            _set(path, self._kept(record, "before").read_bytes() if record.before else None)
        return True

    def _record(
        self,
        kind: Kind,
        action: str,
        name: str,
        directory: Path,
        origin: SkillOrigin,
        file: str = "",
        before: bytes | None = None,
        after: bytes | None = None,
    ) -> SkillRecord:
        return SkillRecord(
            id=f"{time.time_ns():020}-{os.getpid()}",  # sorts by time
            kind=kind,
            action=action,
            name=name,
            place=Path(os.path.relpath(directory, self.root)).as_posix(),
            file=file,
            before=digest_of(before),
            after=digest_of(after),
            at=round(time.time(), 3),
            **asdict(origin),
        )

    @contextmanager
    def _recorded(self, record: SkillRecord, before: bytes | None = None) -> Iterator[None]:
        """Keep a record around its change, and drop it where the change fails."""
        self._add(record, before)
        try:
            yield
        except OSError:
            self._forget(record.id)
            raise

    def _add(self, record: SkillRecord, before: bytes | None = None) -> None:
        """Keep a record, and the bytes that its change replaces; durable when this returns."""
        make_private(self._history)
        self._prune()
        if before is not None:
            write_atomic(self._kept(record, "before"), before, mode=0o600)
        try:
            write_atomic(
                self._kept(record, "json"), json.dumps(asdict(record)).encode(), mode=0o600
            )
        except OSError:
            with suppress(OSError):
                self._kept(record, "before").unlink()
            raise

    def _kept(self, record: SkillRecord, what: Literal["json", "before", "folder"]) -> Path:
        return self._history / f"{record.id}.{what}"

    def _prune(self) -> None:
        """Drop the oldest records while there are too many or they hold too much."""
        sizes: dict[str, int] = {}
        for path in self._history.iterdir():
            if record_id := path.name.partition(".")[0]:
                sizes[record_id] = sizes.get(record_id, 0) + _size(path)
        total = 0
        for number, record_id in enumerate(sorted(sizes, reverse=True), 1):
            total += sizes[record_id]
            if number >= RECORDS or total >= BYTES:
                self._forget(record_id)

    def _forget(self, record_id: str) -> None:
        for kept in ("json", "before"):
            (self._history / f"{record_id}.{kept}").unlink(missing_ok=True)
        # Another process may be dropping the same one.
        shutil.rmtree(self._history / f"{record_id}.folder", ignore_errors=True)

    def _refuse_links(self, path: Path) -> None:
        real, root = os.path.realpath(path), os.path.realpath(self.root)
        if not real.startswith(root + os.sep):
            message = f"{path.name!r} leads out of {str(self.root)!r} through a link; not touched"
            raise SkillError(message)

    def _tidy(self, category: Path) -> None:
        with suppress(OSError):  # it is not empty, or already gone
            while category != self.root and self.root in category.parents:
                category.rmdir()
                category = category.parent


def digest_of(data: bytes | None) -> str:
    """Return the SHA-256 of a file's bytes, "" where there is none."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _digest_at(path: Path) -> str:
    return digest_of(read_regular(path) if path.exists() else None)


def _set(path: Path, data: bytes | None) -> None:
    """Write or remove a file, and the folders that this makes needed or empty."""
    try:
        if data is None:
            path.unlink()
        else:
            make_private(path.parent)
            write_atomic(path, data, mode=None if path.exists() else 0o600)
    finally:
        with suppress(OSError):  # it is not empty
            path.parent.rmdir()


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(_size(each) for each in path.iterdir())
        return path.stat().st_size
    except OSError:
        return 0
