"""The result of a turn, computed from its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

from hermes_nb.core.conversation import UNVERIFIED
from hermes_nb.core.errors import HermesError
from hermes_nb.core.events import (
    ChildFinished,
    EndReason,
    Event,
    MessageAdded,
    TurnEnded,
    UsageReported,
)
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.text import used
from hermes_nb.safety.markup import escape, safe_markdown
from hermes_nb.safety.redact import redact

MARKS: dict[EndReason, str] = {"answered": "✓", "interrupted": "■", "failed": "✗", "budget": "◔"}
"""A symbol for each way a turn can end."""


def mark_of(reason: EndReason, note: str = "") -> str:
    """Return the symbol for the end of a turn; only verified answers have a check mark."""
    return "–" if note == UNVERIFIED else MARKS[reason]


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """The result of a turn. A notebook displays it as Markdown, with a line about its usage."""

    text: str
    """The assistant's last message, or "" if there is none."""
    reason: EndReason
    """How the turn ended."""
    error: str = ""
    """Why it failed, or "" if it did not."""
    note: str = ""
    """The budget that ended the turn, or "" for none."""
    model: str = ""
    """The model of the last answer."""
    events: tuple[Event, ...] = field(default=(), repr=False)
    """All events, oldest first."""
    messages: tuple[Message, ...] = field(default=(), repr=False)
    """The messages that the turn added to the conversation."""
    usage: Usage = field(default_factory=Usage)
    """Tokens and costs, including those of child agents."""

    @property
    def cost(self) -> float | None:
        """The turn's price in US dollars, or None if it is unknown."""
        return self.usage.cost

    def raise_for_failure(self) -> Self:
        """Return the turn itself; raise `HermesError` if it failed."""
        if self.reason == "failed":
            raise HermesError(self.error)
        return self

    def __str__(self) -> str:
        """Return the text."""
        return self.text

    @property
    def status(self) -> str:
        """The ending and usage as one line of plain text."""
        why = self.error or self.note or {"interrupted": "stopped"}.get(self.reason, "")
        told = (mark_of(self.reason, self.note), why, self.model, *used(self.usage))
        return " · ".join(redact(part) for part in told if part)

    def _repr_markdown_(self) -> str:
        body = safe_markdown(redact(self.text))
        return "\n\n".join(filter(str.strip, (body, f"<sub>{escape(self.status)}</sub>")))


def turn_of(events: Sequence[Event]) -> Turn:
    """Return the result of a turn from its events, which must include `TurnEnded`."""
    ending = next(event for event in reversed(events) if isinstance(event, TurnEnded))
    messages = tuple(event.message for event in events if isinstance(event, MessageAdded))
    spoken = [message.text for message in messages if message.role == "assistant" and message.text]
    reports = [event for event in events if isinstance(event, UsageReported)]
    children = [event.usage for event in events if isinstance(event, ChildFinished)]
    return Turn(
        text=spoken[-1] if spoken else "",
        reason=ending.reason,
        error=ending.error,
        note=ending.note,
        model=next((each.model for each in reversed(reports) if not each.purpose), ""),
        events=tuple(events),
        messages=messages,
        usage=sum((*(each.usage for each in reports), *children), Usage()),
    )
