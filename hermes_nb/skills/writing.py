"""Changes of the home's skills on disk: each happens whole or not at all, and one at a time.

A skill appears with one rename, so a killed process never leaves a folder without its SKILL.md;
what it leaves lies in the hidden state directory beside the skills and is swept by the next one.
The locks lie there too: nothing but the skill itself is in a skill's folder.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from hermes_nb.core.files import TEMPORARY, locked, make_private, write_atomic
from hermes_nb.skills.discovery import read_regular
from hermes_nb.skills.document import SkillError
from hermes_nb.skills.history import History, Kind, Record, digest_of, new_id
from hermes_nb.skills.ledger import Origin

STATE = ".hermes_nb"
"""The hidden directory below the home's skills: locks, counts, verdicts, history."""
DOCUMENT = "SKILL.md"
_PATIENCE = 20.0
"""Seconds that a change waits for another one of the same skill."""


class Writer:
    """Writes below `root`, the home's skills."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / STATE
        self.history = History(self.state / "history")

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
        self, name: str, category: str, contents: Mapping[str, bytes], action: str, origin: Origin
    ) -> Path:
        """Make a skill of files by relative path and return its folder; under both locks."""
        target = self.root / category / name
        self._refuse_links(target)
        if os.path.lexists(target):
            message = f"{name!r} is there already as a folder; choose another name"
            raise SkillError(message)
        first = _first_missing(target, self.root)
        building = self.state / "building"
        if building.exists():
            shutil.rmtree(building)  # what a killed process left: the lock says nobody builds
        top = building / new_id()
        inside = top / target.relative_to(first.parent)
        try:
            for relative, data in contents.items():
                path = inside / relative
                make_private(path.parent)
                write_atomic(path, data, mode=0o600)
            after = digest_of(contents[DOCUMENT])
            self.history.add(self._record("made", action, name, target, origin, after=after))
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
        origin: Origin,
    ) -> None:
        """Replace, add or, with None, remove one file of a skill; under the skill's lock."""
        path = directory / relative
        self._refuse_links(path)
        before = read_regular(path) if path.exists() else None
        if before == data:
            return
        _sweep(directory)
        record = self._record(
            "file",
            action,
            name,
            directory,
            origin,
            file=relative,
            before=digest_of(before),
            after=digest_of(data),
        )
        self.history.add(record, before)
        try:
            _set(path, data)
        except OSError:
            self.history.drop(record)
            raise

    def remove(self, directory: Path, name: str, action: str, origin: Origin) -> None:
        """Take a skill away, so that it can come back; under both locks."""
        self._refuse_links(directory)
        after = digest_of(read_regular(directory / DOCUMENT))
        record = self._record("removed", action, name, directory, origin, before=after)
        self.history.add(record)
        try:
            directory.rename(self.history.folder(record))
        except OSError:
            self.history.drop(record)
            raise
        self._tidy(directory.parent)

    def undo(self, name: str = "") -> Record:
        """Undo the last change, of one skill if named, and return its record; under the locks.

        Raises SkillError when there is none, or when the skill was changed by other means since.
        """
        for record in self.history.records(name):
            if self._undone(record):
                self.history.drop(record)
                return record
            self.history.drop(record)  # the process was killed before it made the change
        of = f" of {name!r}" if name else ""
        message = f"there is no change{of} to undo"
        raise SkillError(message)

    def has_made(self, proposal: str) -> bool:
        """Say whether the change of a proposal was made, and not only written down to be made.

        A process that is killed leaves the record without the change: then the file still is what
        it was before, now or when the next change of it began.
        """
        found_later: dict[tuple[str, str], str] = {}
        for record in self.history.records():
            key = (record.place, record.file or DOCUMENT)
            if record.proposal == proposal:
                if record.kind == "removed":
                    return self.history.folder(record).exists()
                path = self.root / record.place / key[1]
                now = digest_of(read_regular(path) if path.exists() else None)
                return found_later.get(key, now) != record.before
            found_later[key] = record.before
        return False

    def _undone(self, record: Record) -> bool:
        """Undo a change; return False where it never happened."""
        directory = self.root / record.place
        self._refuse_links(directory / record.file)
        if record.kind == "removed":
            kept = self.history.folder(record)
            if not kept.exists():
                return False
            if os.path.lexists(directory):
                message = f"{record.place!r} is there again; delete that one first"
                raise SkillError(message)
            make_private(directory.parent)
            kept.rename(directory)
            return True
        path = directory / (record.file or DOCUMENT)
        now = digest_of(read_regular(path) if path.exists() else None)
        if now != record.after:
            if now == record.before:
                return False
            message = f"{record.name!r} was changed by other means since; undo it by hand"
            raise SkillError(message)
        if record.kind == "made":
            target = self.history.folder(record)
            directory.rename(target)
            self._tidy(directory.parent)
            return True
        _set(path, self.history.blob(record).read_bytes() if record.before else None)
        return True

    def _record(
        self,
        kind: Kind,
        action: str,
        name: str,
        directory: Path,
        origin: Origin,
        *,
        file: str = "",
        before: str = "",
        after: str = "",
    ) -> Record:
        return Record(
            id=new_id(),
            kind=kind,
            action=action,
            name=name,
            place=Path(os.path.relpath(directory, self.root)).as_posix(),
            file=file,
            before=before,
            after=after,
            at=round(time.time(), 3),
            session=origin.session,
            turn=origin.turn,
            proposal=origin.proposal,
        )

    def _refuse_links(self, path: Path) -> None:
        """Raise SkillError if a link on the way leads out of the home's skills."""
        real, root = os.path.realpath(path), os.path.realpath(self.root)
        if not real.startswith(root + os.sep):
            message = f"{path.name!r} leads out of {str(self.root)!r} through a link; not touched"
            raise SkillError(message)

    def _tidy(self, category: Path) -> None:
        """Remove the folder of a category that has become empty."""
        while category != self.root and self.root in category.parents:
            try:
                category.rmdir()
            except OSError:  # it is not empty, or already gone
                return
            category = category.parent


def _set(path: Path, data: bytes | None) -> None:
    """Write or remove a file, and the folders that this makes needed or empty."""
    if data is not None:
        make_private(path.parent)
        try:
            write_atomic(path, data, mode=None if path.exists() else 0o600)
        except OSError:
            _remove_if_empty(path.parent)
            raise
        return
    path.unlink()
    _remove_if_empty(path.parent)


def _remove_if_empty(directory: Path) -> None:
    with suppress(OSError):  # it is not empty
        directory.rmdir()


def _first_missing(target: Path, root: Path) -> Path:
    """Return the topmost folder on the way to `target` that is not there yet."""
    first = target
    while first.parent != root and not first.parent.exists():
        first = first.parent
    return first


def _sweep(directory: Path) -> None:
    """Remove what a killed writer left in a skill; its lock says that nobody writes now."""
    for path in directory.rglob(f".*{TEMPORARY}"):
        path.unlink(missing_ok=True)
