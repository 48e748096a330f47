"""A turn as a value, made from its events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """What a turn came to. `text` is the last thing the assistant said.

    `error` says why it failed, `note` which budget ended it; `usage` has that of its children.
    In a notebook it shows itself as Markdown, with a line on what it used.
    """

    text: str
    reason: EndReason
    error: str = ""
    note: str = ""
    model: str = ""
    events: tuple[Event, ...] = field(default=(), repr=False)
    messages: tuple[Message, ...] = field(default=(), repr=False)
    usage: Usage = field(default_factory=Usage)

    @property
    def cost(self) -> float | None:
        """The price of the turn in US dollars, None when it is not known."""
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
        """How it ended and what it used, on one line of plain text."""
        why = self.error or self.note or {"interrupted": "stopped"}.get(self.reason, "")
        told = (MARKS[self.reason], why, self.model, *used(self.usage))
        return " · ".join(redact(part) for part in told if part)

    def _repr_markdown_(self) -> str:
        body = safe_markdown(redact(self.text))
        return "\n\n".join(filter(str.strip, (body, f"<sub>{escape(self.status)}</sub>")))


def turn_of(events: Sequence[Event]) -> Turn:
    """Return the turn that these events, its last one included, tell of."""
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
