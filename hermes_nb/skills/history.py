"""Write the skills in the Hermes directory atomically, with a history for undo and usage counts.

A new skill is built elsewhere and appears with one rename, so a killed process never leaves a
folder without its SKILL.md. Files that such a process leaves behind are in the hidden state
directory next to the skills, and the next writer removes them. The locks are there as well: a
skill's folder contains only the skill.

A record is written before its change, with the state before and after. If a crash prevents the
change, the files show that it never happened, and the record is dropped. Records are limited in
number and size.

Skills' views, uses, changes, creation and on/off state are logged as JSON lines in `usage.jsonl`,
one line per event. They are appended under a lock without fsync, because a lost count is harmless.
A long log is compacted to one line per skill. Unreadable lines are skipped.
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
"""Size in bytes above which the log is compacted."""
_READ_LIMIT = 16_777_216
_LARGEST = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillOrigin:
    """The author of a change to a skill: a turn in a session, or the user."""

    session: str = ""
    """Id of the session; "" for the user."""
    turn: int = 0
    """Number of the turn; 0 for the user."""
    proposal: str = ""
    """Id of the approved proposal; "" if the change was made directly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillUsage:
    """Usage counts and state of a skill."""

    views: int = 0
    """How often it was viewed."""
    uses: int = 0
    """How often it was loaded into a conversation."""
    patches: int = 0
    """How often it was changed."""
    last_used: float = 0.0
    """When it was last used, in seconds since the epoch; 0.0 for never."""
    made: float = 0.0
    """When it was created, in seconds since the epoch; 0.0 if unknown."""
    origin: SkillOrigin = field(default_factory=SkillOrigin)
    """Who created it."""
    disabled: bool = False
    """True if the user has switched it off."""


_NEVER = SkillUsage()


class UsageLog:
    """The usage log in `directory`. Without one, usage is counted in memory. Thread-safe."""

    def __init__(self, directory: Path | None) -> None:
        self._path = directory / "usage.jsonl" if directory else None
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._entries: dict[str, SkillUsage] = {}

    def entries(self) -> Mapping[str, SkillUsage]:
        """Return the usage by skill name; reads the log again only if it has changed."""
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
        """Return one skill's usage."""
        return self.entries().get(name, _NEVER)

    def note(self, name: str, event: Event, origin: SkillOrigin | None = None) -> None:
        """Add an event to the log. If it cannot be written, the event is kept only in memory."""
        line: dict[str, Json] = {"skill": name, "event": event, "at": round(time.time(), 3)}
        if origin and origin.session:
            line |= {"session": origin.session, "turn": origin.turn}
        if self._path is not None and self._path.parent.parent.is_dir():
            path = self._path
            with suppress(OSError):  # a full disk or a read-only home loses only the count
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
"""Seconds that a change waits for another change to the same skill."""

Kind = Literal["made", "file", "removed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillRecord:
    """The record of a change to one skill."""

    id: str
    """Unique id; ids sort by time."""
    kind: Kind
    """Whether the skill was created ("made"), a file was changed, or the skill was removed."""
    action: str
    """The action of the change, such as "patch"."""
    name: str
    """Name of the skill."""
    place: str
    """The skill's folder, relative to the root."""
    file: str = ""
    """The changed file, relative to the folder; "" means SKILL.md."""
    before: str = ""
    """SHA-256 of the file before the change; "" if it did not exist."""
    after: str = ""
    """SHA-256 of the file after the change; "" if it no longer exists."""
    at: float = 0.0
    """When it was changed, in seconds since the epoch."""
    session: str = ""
    """Id of the session that made it; "" for the user."""
    turn: int = 0
    """Number of the turn that made it; 0 for the user."""
    proposal: str = ""
    """Id of the approved proposal; "" if there was none."""


class Writer:
    """Writes skills under `root`, the directory of the home's skills."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / STATE
        self._history = self.state / "history"

    @contextmanager
    def alone(self, name: str = "") -> Iterator[None]:
        """Hold the lock of one skill or, without a name, the lock for creating and removing skills.

        A caller that needs both must take the general lock first. Raises TimeoutError.
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
        """Create a skill from files, by relative path. Return its folder; needs both locks."""
        target = self.root / category / name
        self._refuse_links(target)
        if os.path.lexists(target):
            raise SkillError(f"a folder {name!r} already exists; choose another name")
        first = target  # the topmost folder that must be created
        while first.parent != self.root and not first.parent.exists():
            first = first.parent
        building = self.state / "building"
        if building.exists():
            shutil.rmtree(building)  # left by a killed process; the lock excludes a live one
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
        """Replace, add or (with None) remove one file of a skill; needs the skill's lock."""
        path = directory / relative
        self._refuse_links(path)
        before = read_regular(path) if path.exists() else None
        if before == data:
            return
        for left in directory.rglob(f".*{TEMPORARY}"):  # left by a killed writer
            left.unlink(missing_ok=True)
        record = self._record("file", action, name, directory, origin, relative, before, data)
        with self._recorded(record, before):
            _set(path, data)

    def remove(self, directory: Path, name: str, action: str, origin: SkillOrigin) -> None:
        """Move a skill to the history, so that it can be restored; needs both locks."""
        self._refuse_links(directory)
        before = read_regular(directory / DOCUMENT)
        record = self._record("removed", action, name, directory, origin, before=before)
        with self._recorded(record):
            directory.rename(self._record_path(record, "folder"))
        self._tidy(directory.parent)

    def records(self, name: str = "") -> Iterator[SkillRecord]:
        """Yield the records, optionally for one skill, newest first; damaged ones are skipped."""
        for path in sorted(self._history.glob("*.json"), reverse=True):
            try:
                record = restored(SkillRecord, json.loads(path.read_bytes()))
            except (OSError, ValueError, TypeError):
                continue
            if record.id == path.stem and name in ("", record.name):
                yield record

    def undo(self, name: str = "") -> SkillRecord:
        """Undo the last change, optionally to one skill, and return its record; needs the locks.

        Raises SkillError if there is no change, or if the files have since been changed by other
        means.
        """
        for record in self.records(name):
            done = self._undone(record)
            self._forget(record.id)
            if done:  # otherwise the process was killed before it made the change
                return record
        of = f" of {name!r}" if name else ""
        raise SkillError(f"there is no change{of} to undo")

    def has_made(self, proposal: str) -> bool:
        """Return whether a proposal's change was actually made, not just recorded.

        A killed process may leave a record without its change. If so, the file is still in its
        earlier state, either now or at the start of its next recorded change.
        """
        found_later: dict[tuple[str, str], str] = {}
        for record in self.records():
            key = (record.place, record.file or DOCUMENT)
            if record.proposal == proposal:
                if record.kind == "removed":
                    return self._record_path(record, "folder").exists()
                now = _digest_at(self.root / record.place / key[1])
                return found_later.get(key, now) != record.before
            found_later[key] = record.before
        return False

    def _undone(self, record: SkillRecord) -> bool:
        directory = self.root / record.place
        self._refuse_links(directory / record.file)
        folder = self._record_path(record, "folder")
        if record.kind == "removed":
            if not folder.exists():
                return False
            if os.path.lexists(directory):
                raise SkillError(
                    f"{record.place!r} has been created again; delete the new one first"
                )
            make_private(directory.parent)
            folder.rename(directory)
            return True
        path = directory / (record.file or DOCUMENT)
        now = _digest_at(path)
        if now != record.after:
            if now == record.before:
                return False
            raise SkillError(f"{record.name!r} has been changed by hand since; undo it by hand")
        if record.kind == "made":
            directory.rename(folder)
            self._tidy(directory.parent)
        else:
            _set(path, self._record_path(record, "before").read_bytes() if record.before else None)
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
        """Store a record before its change, and drop it if the change fails."""
        self._add(record, before)
        try:
            yield
        except OSError:
            self._forget(record.id)
            raise

    def _add(self, record: SkillRecord, before: bytes | None = None) -> None:
        """Store a record and the bytes that its change replaces; durable when this returns."""
        make_private(self._history)
        self._prune()
        if before is not None:
            write_atomic(self._record_path(record, "before"), before, mode=0o600)
        try:
            write_atomic(
                self._record_path(record, "json"), json.dumps(asdict(record)).encode(), mode=0o600
            )
        except OSError:
            with suppress(OSError):
                self._record_path(record, "before").unlink()
            raise

    def _record_path(self, record: SkillRecord, what: Literal["json", "before", "folder"]) -> Path:
        return self._history / f"{record.id}.{what}"

    def _prune(self) -> None:
        """Drop the oldest records that exceed the limits on number or total size."""
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
        # Another process may be dropping the same record.
        shutil.rmtree(self._history / f"{record_id}.folder", ignore_errors=True)

    def _refuse_links(self, path: Path) -> None:
        real, root = os.path.realpath(path), os.path.realpath(self.root)
        if not real.startswith(root + os.sep):
            message = (
                f"{path.name!r} points outside {str(self.root)!r} through a link and "
                "was not changed"
            )
            raise SkillError(message)

    def _tidy(self, category: Path) -> None:
        with suppress(OSError):  # not empty, or already removed
            while category != self.root and self.root in category.parents:
                category.rmdir()
                category = category.parent


def digest_of(data: bytes | None) -> str:
    """Return the SHA-256 of a file's bytes, or "" for None."""
    return "" if data is None else hashlib.sha256(data).hexdigest()


def _digest_at(path: Path) -> str:
    return digest_of(read_regular(path) if path.exists() else None)


def _set(path: Path, data: bytes | None) -> None:
    """Write or remove a file; creates its folder, or removes it if it becomes empty."""
    try:
        if data is None:
            path.unlink()
        else:
            make_private(path.parent)
            write_atomic(path, data, mode=None if path.exists() else 0o600)
    finally:
        with suppress(OSError):  # not empty
            path.parent.rmdir()


def _size(path: Path) -> int:
    try:
        if path.is_dir():
            return sum(_size(each) for each in path.iterdir())
        return path.stat().st_size
    except OSError:
        return 0
