"""Taking a recorded write back, as long as its entries still are what it made of them."""

from __future__ import annotations

from collections.abc import Sequence

from hermes_nb.memory.curation.history import Change, Record, undone
from hermes_nb.memory.curation.operations import Plan, Refusal, refuse_overflow
from hermes_nb.memory.curation.shown import gist


def to_undo(records: Sequence[Record], record_id: str = "") -> Record:
    """Return the record that is meant: by id, else the last write that still stands.

    Raises Refusal. An undo is a write too: by its id, it can be undone.
    """
    gone = undone(records)
    if record_id:
        found = next((record for record in records if record.id == record_id), None)
        if found is None:
            message = f"there is no memory write {record_id!r}; the history lists them"
            raise Refusal(message)
        if found.id in gone:
            message = f"the memory write {record_id} has been undone already"
            raise Refusal(message)
        return found
    standing = [record for record in records if not record.undoes and record.id not in gone]
    if not standing:
        message = "there is no memory write to undo"
        raise Refusal(message)
    return standing[-1]


def plan_back(entries: Sequence[str], record: Record, limit: int) -> Plan:
    """Return the entries without what `record` did; raise Refusal where it cannot be undone."""
    now = list(entries)
    changes: list[Change] = []
    for change in reversed(record.changes):
        if change.after and change.after not in now:
            message = (
                f"the entry has been changed since: {gist(change.after)!r} is no longer there; "
                "nothing was undone"
            )
            raise Refusal(message)
        changes.append(_revert(now, change))
    for change in record.changes:
        # Only now: a batch may have added again what it removed.
        if not change.after and now.count(change.before) > 1:
            message = f"the entry {gist(change.before)!r} is there already; nothing was undone"
            raise Refusal(message)
    refuse_overflow(entries, now, limit)
    return Plan(tuple(now), tuple(changes))


def _revert(now: list[str], change: Change) -> Change:
    """Take one change back in `now` and return what that is as a change."""
    if not change.after:
        place = max(0, min(change.place, len(now)))
        now.insert(place, change.before)
        return Change(action="add", after=change.before, place=place)
    # Of identical entries the one that stands where it was written is meant.
    place = change.place
    if not (0 <= place < len(now) and now[place] == change.after):
        place = now.index(change.after)
    if not change.before:
        del now[place]
        return Change(action="remove", before=change.after, place=place)
    now[place] = change.before
    return Change(action="replace", before=change.after, after=change.before, place=place)
