"""What the Memory tab shows: both memories, and which write each entry came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from hermes_nb.agent.prompt_sources import Knowledge
from hermes_nb.agent.session import REVIEW
from hermes_nb.memory.curated import FILES
from hermes_nb.memory.curation.history import Record, undone
from hermes_nb.memory.curation.notefile import Unusable
from hermes_nb.memory.curation.shown import Fill
from hermes_nb.notebook.display.wording import ago
from hermes_nb.notebook.panels.style import shown
from hermes_nb.safety.scan import scan

RECENT = 5
"""Changes that are listed with an undo of their own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of a memory file; `record` is the write that made it, `reviewed` if a review did.

    `number` tells entries apart that are the same. `planted` is one that prompts leave out. One
    with an empty text is yet to be written, one with a `proposal` waits for approval under that
    number.
    """

    target: str
    text: str = ""
    number: int = 0
    record: Record | None = None
    reviewed: str = ""
    planted: bool = False
    proposal: int = 0

    @property
    def key(self) -> str:
        """What the entry is found again by."""
        return f"{self.target}/{self.number}/{self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    """Both memories as they are now; `problem` says what could not be read."""

    entries: Mapping[str, tuple[Entry, ...]]
    usage: Mapping[str, Fill]
    recent: tuple[Record, ...] = ()
    problem: str = ""

    def holds(self, entry: Entry) -> bool:
        """Say whether an entry still stands as it was, whatever else became known of it."""
        return not entry.proposal and any(
            each.key == entry.key for each in self.entries[entry.target]
        )


def recollect(known: Knowledge) -> Recollection:
    """Read both memories and their history."""
    problem = ""
    try:
        records = known.memory.history()
    except (OSError, Unusable) as error:
        records, problem = [], f"where entries came from cannot be read: {error}"
    gone = undone(list(reversed(records)))
    standing = [record for record in records if record.id not in gone]
    review = next((r.origin for r in standing if r.origin.source.startswith(REVIEW)), None)
    entries: dict[str, list[Entry]] = {target: [] for target in FILES}
    for target, found in entries.items():
        made = _made(standing, target)
        seen: Counter[str] = Counter()
        for text in known.memory.entries(target):
            record = made.get(text)
            learned = record is not None and record.origin.source.startswith(REVIEW)
            by = "the last review" if learned and record and record.origin == review else "a review"
            found.append(
                Entry(
                    target=target,
                    text=text,
                    number=seen[text],
                    record=record,
                    reviewed=by if learned else "",
                    planted=_looks_planted(text),
                )
            )
            seen[text] += 1
    return Recollection(
        entries={target: tuple(found) for target, found in entries.items()},
        usage={target: known.memory.usage(target) for target in FILES},
        recent=tuple(record for record in standing if not record.undoes)[:RECENT],
        problem=problem,
    )


def _made(standing: list[Record], target: str) -> dict[str, Record]:
    """Return the latest write behind each text of a memory."""
    made: dict[str, Record] = {}
    for record in standing:
        if record.target == target:
            for change in record.changes:
                made.setdefault(change.after, record)
    return made


@lru_cache(maxsize=256)
def _looks_planted(text: str) -> bool:
    """Say whether a prompt leaves the entry out, as `memory.shown` does; a scan takes a while."""
    return scan(text, name="memory", strict=True).verdict != "clean"


def provenance(entry: Entry) -> str:
    """Return where an entry came from, as HTML."""
    if entry.record is None:
        return "from elsewhere"
    if entry.reviewed:
        _, _, words = entry.record.origin.source.partition(", ")
        learned = ", ".join(filter(None, (entry.reviewed, shown(words, 80))))
        return f"learned by {learned} · {ago(entry.record.at)}"
    return where(entry.record)


def where(record: Record) -> str:
    """Return who wrote and when, as HTML."""
    origin = record.origin
    if origin.source == "user":
        by = "by hand"
    elif origin.source.startswith(REVIEW):
        by = f"by a {origin.source}"
    else:
        turn = f"turn {origin.turn}" if origin.turn else origin.source
        by = f"{Path(origin.notebook).name} · {turn}" if origin.notebook else turn
    return f"{shown(by, 80)} · {ago(record.at)}"
