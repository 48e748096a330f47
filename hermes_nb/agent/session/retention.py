"""Which sessions are old, and removing sessions from the disk.

What is forgotten goes whole: rows, index, kept outputs, undo data.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hermes_nb.agent.session.session import CHILD, REVIEW
from hermes_nb.agent.undo.checkpoints import Checkpoints
from hermes_nb.core.protocols import SessionStore, StoredSession
from hermes_nb.core.text import number_of
from hermes_nb.memory.rows import encode

DAY = 86_400.0
ALL = 1_000_000
"""More sessions than there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """Sessions with their reviews and child agents, in bytes of messages, and their files."""

    sessions: tuple[str, ...]
    asked: int
    messages: int
    size: int
    outputs: frozenset[Path]

    def __str__(self) -> str:
        """Return how much it is."""
        amount = f"{number_of(self.messages, 'message')}, {self.size / 1e6:.1f} MB"
        return f"{number_of(self.asked, 'session')} ({amount})"


def older(store: SessionStore, days: float, *, but: str = "") -> list[StoredSession]:
    """Return the sessions that nobody has written to for so many days, without one of them."""
    before = time.time() - days * DAY
    return [each for each in store.sessions(limit=ALL) if each.written < before and each.id != but]


def gather(store: SessionStore, home: Path, wanted: Iterable[StoredSession]) -> Gathered:
    """Return what goes with these sessions."""
    asked = {each.id for each in wanted}
    found = dict.fromkeys(asked)
    for session in asked:
        for each in map(store.get, store.lineage(session)):  # the eldest first
            if each is not None and each.parent in found and each.source in (CHILD, REVIEW):
                found[each.id] = None
    messages = [row.message for session in found for row in store.rows(session)]
    named = re.compile(re.escape(str(home / "outputs")) + r"[\\/]([\w-]+\.txt)")
    names = {name for message in messages for name in named.findall(message.text)}
    return Gathered(
        sessions=tuple(found),
        asked=len(asked),
        messages=len(messages),
        size=sum(len(encode(message)) for message in messages),
        outputs=frozenset(home / "outputs" / name for name in names),
    )


def forget(store: SessionStore, home: Path, what: Gathered, *, days: float = 0.0) -> None:
    """Remove it from the disk, and the results of maps older than `days`, if that is given."""
    for path in what.outputs:
        path.unlink(missing_ok=True)
    Checkpoints(home / "checkpoints").forget(what.sessions)
    for session in what.sessions:
        store.delete(session)
    store.purge(before=time.time() - days * DAY if days else 0.0)
