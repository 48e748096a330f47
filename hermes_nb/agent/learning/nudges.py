"""Counters over a session's messages that decide when a background review is due.

After a kernel restart, they are restored from the stored session.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from hermes_nb.agent.session.session import REVIEW
from hermes_nb.context.boundaries import is_ours
from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import Event, MessageAdded
from hermes_nb.core.loop import is_prompt
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import SessionStore

MEMORY_TURNS = 10
"""User turns between two reviews of memory; Hermes Agent's default."""
SKILL_ITERATIONS = 10
"""Tool iterations between two reviews of skills; Hermes Agent's default."""
MEMORY_TOOLS = frozenset({"memory"})
"""Tools whose calls reset the counter for memory."""
SKILL_TOOLS = frozenset({"skill_manage"})
"""Tools whose calls reset the counter for skills."""

Subject = Literal["memory", "skills", "both"]
"""The subject of a review."""


@dataclass(slots=True)
class Nudges:
    """Counts since the last review of each subject, or write to it."""

    memory_every: int = MEMORY_TURNS
    """User turns until a review of memory is due, or 0 for never."""
    skills_every: int = SKILL_ITERATIONS
    """Tool iterations until a review of skills is due, or 0 for never."""
    memory: int = 0
    """User turns so far."""
    skills: int = 0
    """Requests so far that led to tool calls."""

    def __call__(self, event: Event) -> None:
        """Count an event, as a sink."""
        if isinstance(event, MessageAdded):
            self.see(event.message)

    def see(self, message: Message) -> None:
        """Count a message."""
        if is_prompt(message) and not is_ours(message):
            self.memory += 1
        if message.calls:
            self.skills += 1
            names = {call.name for call in message.calls}
            self.memory = 0 if names & MEMORY_TOOLS else self.memory
            self.skills = 0 if names & SKILL_TOOLS else self.skills

    def due(self) -> Subject | None:
        """Return the subject that is due for a review, or None."""
        memory = 0 < self.memory_every <= self.memory
        skills = 0 < self.skills_every <= self.skills
        if memory and skills:
            return "both"
        return "memory" if memory else "skills" if skills else None

    def reset(self, subject: Subject) -> None:
        """Restart the count of a subject after its review."""
        if subject != "skills":
            self.memory = 0
        if subject != "memory":
            self.skills = 0


def catch_up(nudges: Nudges, store: SessionStore, session_id: str) -> None:
    """Count a session's stored messages since its last review of each subject."""
    try:
        rows = store.rows(session_id)
        family = (store.get(each) for each in store.lineage(session_id))
        done = [
            (each.started, each.title)
            for each in family
            if each and each.source == REVIEW and each.parent == session_id
        ]
    except StoreError:  # count from now on
        return
    subjects: tuple[Subject, ...] = get_args(Subject)
    looked = sorted((at, s) for at, title in done for s in subjects if title.endswith(s))
    for row in rows:
        while looked and looked[0][0] <= row.at:
            nudges.reset(looked.pop(0)[1])
        nudges.see(row.message)
    for _, subject in looked:
        nudges.reset(subject)
