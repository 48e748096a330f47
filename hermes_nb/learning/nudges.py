"""When it is time to look back: counters over a conversation, as a fold over its messages.

They need no storage of their own: folded over a stored session they stand where they stood before
the kernel was restarted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hermes_nb.context.boundaries import is_ours
from hermes_nb.core.events import Event, MessageAdded
from hermes_nb.core.loop import is_prompt
from hermes_nb.core.messages import Message

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

    def see_all(self, messages: Iterable[Message]) -> None:
        """Take in a stored conversation."""
        for message in messages:
            self.see(message)

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
