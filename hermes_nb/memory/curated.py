"""Curated memory: facts for every session, in two small human-readable files.

The files are shared with Hermes Agent: same bytes, same lock. Their contents are not cached. Every
write rereads the file under its lock, so that external edits are merged, and a refused or failed
write changes nothing. Entries are never dropped to make room. A recorded write can be undone as
long as its entries are unchanged.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.core.files import locked
from hermes_nb.core.messages import Json
from hermes_nb.memory.entries import (
    Fill,
    Operation,
    Parsed,
    PlannedEntries,
    WriteRefusal,
    block,
    gist,
    operations_of,
    parse,
    planned,
    refuse_overflow,
    render,
    size,
)
from hermes_nb.memory.history import (
    Bytes,
    EntryChange,
    History,
    MemoryRecord,
    NoteFile,
    Unusable,
    WriteOrigin,
    new_id,
    sweep_locked,
    undone,
)

__all__ = ["CuratedMemory", "Outcome", "Snapshot"]
FILES: dict[str, str] = {"memory": "MEMORY.md", "user": "USER.md"}
"""File names by target."""
LIMITS: dict[str, int] = {"memory": 2_200, "user": 1_375}
"""Maximum length of the joined entries in characters, by target; Hermes Agent's defaults."""
TITLES = {
    "memory": "MEMORY: your notes from earlier sessions",
    "user": "USER: what you know about the user",
}
"""Headings in the system prompt, by target."""
SIDECAR = ".hermes_nb"
"""The history's folder, in `memories`."""
LOCK_SECONDS = 10.0
"""Seconds to wait for a file's lock."""
FAULTS = (WriteRefusal, Unusable, OSError)
"""Write errors that become an `Outcome`."""
Operations = Iterable[Operation | Mapping[str, Json]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of a write: applied completely, or refused with nothing changed."""

    target: str
    """The memory: `memory` or `user`."""
    applied: bool
    """Whether the write was applied."""
    message: str
    """The result, or the reason for the refusal, for the model."""
    entries: tuple[str, ...] = ()
    """All of the target's entries afterwards."""
    usage: Fill
    """The target's size afterwards."""
    changes: tuple[EntryChange, ...] = ()
    """The changes, in order."""
    records: tuple[str, ...] = ()
    """Ids by which the write can be undone."""

    def __bool__(self) -> bool:
        return self.applied


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Both memories as text for a prompt."""

    memory: str = ""
    """The text of MEMORY.md, or "" if it has no entries."""
    user: str = ""
    """The text of USER.md, or "" if it has no entries."""
    notes: tuple[str, ...] = ()
    """Warnings for the user."""

    def __str__(self) -> str:
        return "\n\n".join(text for text in (self.memory, self.user) if text)


class CuratedMemory:
    """The two memory files in `home`, which are created by the first write."""

    def __init__(
        self,
        home: Path | str,
        *,
        limits: Mapping[str, int] | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.home = Path(home)
        self.limits = {**LIMITS, **(limits or {})}
        self._clock = clock
        self._files = {target: NoteFile(self.home, name) for target, name in FILES.items()}
        self._history = History(self.home / "memories" / SIDECAR)
        for file in self._files.values():
            file.sweep()

    def apply(
        self, target: str, operations: Operations, *, origin: WriteOrigin | None = None
    ) -> Outcome:
        """Apply a batch completely or not at all; every failure becomes an outcome with a reason.

        An operation is `{"action": "add", "content": …}`, `{"action": "replace", "old_text": …,
        "content": …}` or `{"action": "remove", "old_text": …}`. Raises ValueError for an unknown
        target.
        """
        self._check(target)
        try:
            steps = operations_of(operations)
            return self._write(
                target,
                lambda entries: planned(entries, steps, self.limits[target]),
                origin=origin or WriteOrigin(),
            )
        except FAULTS as error:
            return self._refused(target, error)

    def preview(self, target: str, operations: Operations) -> tuple[EntryChange, ...]:
        """Return the changes that `apply` would make; raise WriteRefusal, Unusable, OSError."""
        self._check(target)
        entries = self._changeable(target)[1].entries
        return planned(entries, operations_of(operations), self.limits[target]).changes

    def undo(self, record_id: str = "", *, origin: WriteOrigin | None = None) -> Outcome:
        """Undo a write by its id (default: the last); refuse if its entries have changed."""
        target = "memory"
        try:
            record = to_undo(self._history.records(), record_id)
            target = record.target if record.target in FILES else target
            return self._write(
                target,
                lambda entries: plan_back(entries, record, self.limits[target]),
                origin=origin or WriteOrigin(source="user"),
                undoes=record.id,
            )
        except FAULTS as error:
            return self._refused(target, error)

    def entries(self, target: str) -> list[str]:
        """Return the entries in the target's file, or an empty list if it cannot be read."""
        self._check(target)
        try:
            return list(self._read(target)[1].entries)
        except (Unusable, OSError):
            return []

    def usage(self, target: str) -> Fill:
        """Return the used and allowed size of a memory."""
        return Fill(used=size(self.entries(target)), limit=self.limits[target])

    def history(self, target: str = "") -> list[MemoryRecord]:
        """Return the recorded writes to one target or both, newest first; raise OSError."""
        records = self._history.records()
        return [r for r in reversed(records) if not target or r.target == target]

    def snapshot(self) -> Snapshot:
        """Return both memories for a prompt: shortened, and without suspicious entries."""
        texts: dict[str, str] = {}
        notes: list[str] = []
        for target, name in FILES.items():
            try:
                raw, parsed = self._read(target)
            except (Unusable, OSError) as error:
                notes.append(f"{name} was left out: {reason_of(error)}")
                continue
            used = size(parsed.entries) if raw.whole else raw.size
            fill = Fill(used=used, limit=self.limits[target])
            texts[target] = block(TITLES[target], parsed.entries, fill)
            if parsed.oddities:
                notes.append(f"{name} contains {' and '.join(parsed.oddities)}")
            if used > fill.limit:
                notes.append(f"{name} is over its limit: {used:,} of {fill.limit:,} characters")
        return Snapshot(
            memory=texts.get("memory", ""), user=texts.get("user", ""), notes=tuple(notes)
        )

    def _write(
        self,
        target: str,
        plan: Callable[[Sequence[str]], PlannedEntries],
        *,
        origin: WriteOrigin,
        undoes: str = "",
    ) -> Outcome:
        plan(self._changeable(target)[1].entries)  # refuse before creating a lock or directory
        file = self._files[target]
        file.stay_inside(self._history.path)
        file.prepare()
        with locked(file.path, LOCK_SECONDS):
            sweep_locked(file.path)
            raw, parsed = self._changeable(target)
            done = plan(parsed.entries)
            note = self._merge_note(target, raw, parsed)
            record = MemoryRecord(
                id=new_id(self._clock()),
                target=target,
                at=self._clock(),
                origin=origin,
                changes=done.changes,
                was=_digest(raw.data),
                became=_digest(render(done.entries)),
                undoes=undoes,
            )
            self._history.add(record)
            try:
                file.write(render(done.entries))
            except BaseException:
                with suppress(OSError):  # disk full: the next write strikes the record out
                    self._history.strike(record.id)
                raise
        fill = Fill(used=size(done.entries), limit=self.limits[target])
        return Outcome(
            target=target,
            applied=True,
            message=f"{done_by(record)}; {target} is at {fill}{note}",
            entries=done.entries,
            usage=fill,
            changes=done.changes,
            records=(record.id,),
        )

    def _merge_note(self, target: str, raw: Bytes, parsed: Parsed) -> str:
        """Copy a file that was edited externally, and return a note about it.

        Also strikes out a record whose write did not happen because its process died.
        """
        digest = _digest(raw.data)
        last = next((r for r in reversed(self._history.records()) if r.target == target), None)
        if last is not None and digest == last.was != last.became:
            self._history.strike(last.id)
            return ""
        foreign = last is not None and digest != last.became
        if not raw.data or (parsed.canonical and not foreign):
            return ""
        copy = self._files[target].keep_copy(raw.data)
        odd = f" (it contained {' and '.join(parsed.oddities)})" if parsed.oddities else ""
        return (
            f". The file had been edited by someone else{odd}; all its entries were kept, and a "
            f"copy of it is in {copy.name}"
        )

    def _changeable(self, target: str) -> tuple[Bytes, Parsed]:
        raw, parsed = self._read(target)
        if not raw.whole:
            raise WriteRefusal(
                f"{FILES[target]} has {raw.size:,} bytes, far more than a memory of "
                f"{self.limits[target]:,} characters, so it was not changed; the user has "
                "to shorten it"
            )
        return raw, parsed

    def _read(self, target: str) -> tuple[Bytes, Parsed]:
        raw = self._files[target].read()
        parsed = parse(raw.data)
        if len(parsed.entries) > 1 and self._is_one_entry(target, raw.data):
            parsed = parse(raw.data, one_entry=True)
        return raw, parsed

    def _is_one_entry(self, target: str, data: bytes) -> bool:
        """Return whether text without separators is a single entry of several paragraphs.

        The bytes alone are ambiguous, so check whether the history holds a digest for writing this
        text as one entry.
        """
        if "\n§\n".encode() in data:
            return False
        digest = _digest(data)
        return any(r.target == target and r.became == digest for r in self._history.records())

    def _refused(self, target: str, error: Exception) -> Outcome:
        entries = tuple(self.entries(target))
        return Outcome(
            target=target,
            applied=False,
            message=reason_of(error),
            entries=entries,
            usage=Fill(used=size(entries), limit=self.limits[target]),
        )

    def _check(self, target: str) -> None:
        if target not in FILES:
            raise ValueError(f"there is no memory {target!r}; use {' or '.join(FILES)}")


def done_by(record: MemoryRecord) -> str:
    """Describe a write's effect, such as "added" or "2 added, 1 removed"."""
    if record.undoes:
        return "undone"
    verbs = {"add": "added", "replace": "replaced", "remove": "removed"}
    actions = [verbs.get(change.action, change.action) for change in record.changes]
    counts = {verb: actions.count(verb) for verb in dict.fromkeys(actions)}
    return ", ".join(verb if n == 1 else f"{n} {verb}" for verb, n in counts.items())


def reason_of(error: Exception) -> str:
    """Return an error's message in a form that a model can act on."""
    if isinstance(error, TimeoutError):
        return f"nothing was changed: {error}"
    if isinstance(error, OSError):
        why = error.strerror or str(error)
        return f"the memory cannot be used now ({why}); nothing was changed, continue without it"
    return str(error)


def to_undo(records: Sequence[MemoryRecord], record_id: str = "") -> MemoryRecord:
    """Return the record to undo: the one with `record_id`, or the last that was not undone.

    An undo is itself a write, so it can be undone by its id. Raises WriteRefusal if there is no
    such record, or if it has already been undone.
    """
    gone = undone(records)
    if record_id:
        found = next((record for record in records if record.id == record_id), None)
        if found is None:
            raise WriteRefusal(f"there is no memory write {record_id!r}; the history lists them")
        if found.id in gone:
            raise WriteRefusal(f"the memory write {record_id} has already been undone")
        return found
    standing = [record for record in records if not record.undoes and record.id not in gone]
    if not standing:
        raise WriteRefusal("there is no memory write to undo")
    return standing[-1]


def plan_back(entries: Sequence[str], record: MemoryRecord, limit: int) -> PlannedEntries:
    """Return the entries with `record` undone; raise WriteRefusal if that is not possible."""
    now = list(entries)
    changes: list[EntryChange] = []
    for change in reversed(record.changes):
        if change.after and change.after not in now:
            raise WriteRefusal(
                f"the entry has been changed since: {gist(change.after)!r} is no longer there; "
                "nothing was undone"
            )
        changes.append(_revert(now, change))
    for change in record.changes:
        # Checked at the end, because a batch may have removed an entry and added it again.
        if not change.after and now.count(change.before) > 1:
            raise WriteRefusal(
                f"the entry {gist(change.before)!r} already exists; nothing was undone"
            )
    refuse_overflow(entries, now, limit)
    return PlannedEntries(tuple(now), tuple(changes))


def _revert(now: list[str], change: EntryChange) -> EntryChange:
    if not change.after:
        place = max(0, min(change.place, len(now)))
        now.insert(place, change.before)
        return EntryChange(action="add", after=change.before, place=place)
    # Of identical entries, prefer the one at the recorded position.
    place = change.place
    if not (0 <= place < len(now) and now[place] == change.after):
        place = now.index(change.after)
    if not change.before:
        del now[place]
        return EntryChange(action="remove", before=change.after, place=place)
    now[place] = change.before
    return EntryChange(action="replace", before=change.after, after=change.before, place=place)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
