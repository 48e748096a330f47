"""What became of a memory write, and how it is said."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_nb.memory.curation.history import Change, Record
from hermes_nb.memory.curation.shown import Fill


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a write: done, or refused with nothing changed.

    `entries` and `usage` are those of the target afterwards, `changes` what was done in order.
    `records` are the ids under which the write can be undone.
    """

    target: str
    applied: bool
    message: str
    entries: tuple[str, ...] = ()
    usage: Fill
    changes: tuple[Change, ...] = ()
    records: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether it was done."""
        return self.applied


def done_by(record: Record) -> str:
    """Return what a write did, in two or three words."""
    if record.undoes:
        return "undone"
    verbs = {"add": "added", "replace": "replaced", "remove": "removed"}
    actions = [verbs.get(change.action, change.action) for change in record.changes]
    counts = {verb: actions.count(verb) for verb in dict.fromkeys(actions)}
    return ", ".join(verb if n == 1 else f"{n} {verb}" for verb, n in counts.items())


def reason_of(error: Exception) -> str:
    """Return why a memory cannot be used, in words that a model can act on."""
    if isinstance(error, TimeoutError):
        return f"nothing was changed: {error}"
    if isinstance(error, OSError):
        why = error.strerror or str(error)
        return f"the memory cannot be used now ({why}); nothing was changed, go on without it"
    return str(error)
