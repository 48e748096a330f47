"""Finds old sessions, and deletes sessions from disk.

A session is deleted with its rows, index entries, saved outputs and undo data.
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
"""Seconds."""
ALL = 1_000_000
"""A limit above any number of sessions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpiredSessions:
    """Sessions to delete, with their reviews and child agents."""

    sessions: tuple[str, ...]
    """The ids of all of them."""
    asked: int
    """Number of sessions, not counting reviews and child agents."""
    messages: int
    """Number of messages."""
    size: int
    """Characters in the encoded messages, displayed as MB."""
    outputs: frozenset[Path]
    """Files with saved outputs."""

    def __str__(self) -> str:
        """Return the numbers of sessions and messages, and the size."""
        amount = f"{number_of(self.messages, 'message')}, {self.size / 1e6:.1f} MB"
        return f"{number_of(self.asked, 'session')} ({amount})"


def older(store: SessionStore, days: float, *, but: str = "") -> list[StoredSession]:
    """Return the sessions without a message in the last `days`, except the session `but`."""
    before = time.time() - days * DAY
    return [each for each in store.sessions(limit=ALL) if each.written < before and each.id != but]


def gather(store: SessionStore, home: Path, wanted: Iterable[StoredSession]) -> ExpiredSessions:
    """Return everything that is deleted together with these sessions."""
    asked = {each.id for each in wanted}
    found = dict.fromkeys(asked)
    for session in asked:
        for each in map(store.get, store.lineage(session)):  # oldest first
            if each is not None and each.parent in found and each.source in (CHILD, REVIEW):
                found[each.id] = None
    messages = [row.message for session in found for row in store.rows(session)]
    named = re.compile(re.escape(str(home / "outputs")) + r"[\\/]([\w-]+\.txt)")
    names = {name for message in messages for name in named.findall(message.text)}
    return ExpiredSessions(
        sessions=tuple(found),
        asked=len(asked),
        messages=len(messages),
        size=sum(len(encode(message)) for message in messages),
        outputs=frozenset(home / "outputs" / name for name in names),
    )


def forget(store: SessionStore, home: Path, what: ExpiredSessions, *, days: float = 0.0) -> None:
    """Delete the sessions, and, if `days` is given, results of maps older than that."""
    for path in what.outputs:
        path.unlink(missing_ok=True)
    Checkpoints(home / "checkpoints").forget(what.sessions)
    for session in what.sessions:
        store.delete(session)
    store.purge(before=time.time() - days * DAY if days else 0.0)
