"""Counters over a session's messages that tell when a background review is due.

Folded over a stored session they are where they were before the kernel was restarted.
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
"""User turns between two looks at what to remember; Hermes Agent's default."""
SKILL_ITERATIONS = 10
"""Tool iterations between two looks at what to learn; Hermes Agent's default."""
MEMORY_TOOLS = frozenset({"memory"})
SKILL_TOOLS = frozenset({"skill_manage"})

Subject = Literal["memory", "skills", "both"]


@dataclass(slots=True)
class Nudges:
    """Counts since the last time something was saved, or looked at; an interval of 0 is never.

    `memory` counts user turns, `skills` the requests that led to tool calls.
    """

    memory_every: int = MEMORY_TURNS
    skills_every: int = SKILL_ITERATIONS
    memory: int = 0
    skills: int = 0

    def __call__(self, event: Event) -> None:
        """Take in an event, as a sink."""
        if isinstance(event, MessageAdded):
            self.see(event.message)

    def see(self, message: Message) -> None:
        """Take in a message."""
        if is_prompt(message) and not is_ours(message):
            self.memory += 1
        if message.calls:
            self.skills += 1
            names = {call.name for call in message.calls}
            self.memory = 0 if names & MEMORY_TOOLS else self.memory
            self.skills = 0 if names & SKILL_TOOLS else self.skills

    def due(self) -> Subject | None:
        """Return what should be looked at now, None for nothing."""
        memory = 0 < self.memory_every <= self.memory
        skills = 0 < self.skills_every <= self.skills
        if memory and skills:
            return "both"
        return "memory" if memory else "skills" if skills else None

    def reset(self, subject: Subject) -> None:
        """Start counting anew: this has been looked at."""
        if subject != "skills":
            self.memory = 0
        if subject != "memory":
            self.skills = 0


def catch_up(nudges: Nudges, store: SessionStore, session_id: str) -> None:
    """Count what is stored of a session, as far as no review has looked at it."""
    try:
        rows = store.rows(session_id)
        family = (store.get(each) for each in store.lineage(session_id))
        done = [
            (each.started, each.title)
            for each in family
            if each and each.source == REVIEW and each.parent == session_id
        ]
    except StoreError:  # then it counts from now on
        return
    subjects: tuple[Subject, ...] = get_args(Subject)
    looked = sorted((at, s) for at, title in done for s in subjects if title.endswith(s))
    for row in rows:
        while looked and looked[0][0] <= row.at:
            nudges.reset(looked.pop(0)[1])
        nudges.see(row.message)
    for _, subject in looked:
        nudges.reset(subject)
