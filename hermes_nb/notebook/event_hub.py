"""What goes on in this kernel's sessions, for whoever shows it: a fold over their events.

It is a sink of every session that the kernel enters, from the start, so that a panel which is
opened late still has the whole story. It draws nothing and knows no widgets.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Protocol

from hermes_nb.agent.session.session import Session
from hermes_nb.core.events import (
    ApprovalAsked,
    ApprovalGiven,
    BackgroundEvent,
    ChildFinished,
    ContextCompressed,
    Event,
    ReviewFinished,
    ReviewStarted,
    ToolFinished,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import Usage

MOST_SESSIONS = 50
"""Accounts that are kept; the oldest one goes."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """A compression and the turn it happened in or after, 0 before the first one here."""

    turn: int
    event: ContextCompressed


@dataclass(slots=True)
class Account:
    """What one session did in this kernel: `turns` has what each turn used, the oldest first."""

    turns: list[Usage] = field(default_factory=list)
    compressions: list[Compressed] = field(default_factory=list)


class Listener(Protocol):
    """Shows what goes on. It must be quick; `heard` may be called from any thread."""

    def heard(self, event: Event | BackgroundEvent) -> None:
        """Take note of an event that has been folded already."""
        ...

    def close(self) -> None:
        """Stop showing."""
        ...


class EventHub:
    """The state behind a panel.

    `running` is the number of the turn that runs, 0 for none; `asked` holds the questions that
    wait for an answer, by call. `reviewing` is the review that runs and `reviewed` the last one
    that ended, at `reviewed_at` seconds since the epoch.
    """

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.running = 0
        self.asked: dict[str, ApprovalAsked] = {}
        self.reviewing: ReviewStarted | None = None
        self.reviewed: ReviewFinished | None = None
        self.reviewed_at = 0.0
        self._accounts: dict[str, Account] = {}
        self._account = Account()
        self._turn = 0

    def enter(self, session: Session) -> None:
        """Listen to a session from now on; the kernel goes on with it."""
        self._account = self.of(session.id)
        self._accounts.pop(session.id, None)
        self._accounts[session.id] = self._account  # at the end: the one used last
        if len(self._accounts) > MOST_SESSIONS:
            del self._accounts[next(iter(self._accounts))]
        self._turn = session.agent.turns
        if self not in session.agent.sinks:
            session.agent.sinks.append(self)

    def of(self, session_id: str) -> Account:
        """Return what is known of a session; an empty account where it was not heard here."""
        return self._accounts.get(session_id, Account())

    def __call__(self, event: Event) -> None:
        """Take in an event of the running session, as a sink."""
        match event:
            case TurnStarted(turn):
                self.running = self._turn = turn
                self._account.turns.append(Usage())
            case UsageReported(usage=usage) | ChildFinished(usage=usage):
                self._spend(usage)
            case ContextCompressed(phase=phase) if phase != "rewound":
                self._account.compressions.append(Compressed(self._turn, event))
            case ApprovalAsked(call):
                self.asked[call.id] = event
            case ApprovalGiven(call_id):
                self.asked.pop(call_id, None)
            case ToolFinished(call):
                self.asked.pop(call.id, None)
            case TurnEnded():
                self.running = 0
                self.asked.clear()
            case _:
                pass
        self._tell(event)

    def background(self, event: BackgroundEvent) -> None:
        """Take in what happens beside the turns, on whatever thread it does."""
        match event:
            case ReviewStarted():
                self.reviewing = event
            case ReviewFinished():
                self.reviewing, self.reviewed = None, event
                self.reviewed_at = time.time()
        self._tell(event)

    def close(self) -> None:
        """Close whatever shows this."""
        for watcher in list(self.listeners):
            watcher.close()
        self.listeners.clear()

    def _spend(self, usage: Usage) -> None:
        turns = self._account.turns
        if turns:  # what is asked between two turns counts to the one before
            turns[-1] += usage
        else:
            turns.append(usage)

    def _tell(self, event: Event | BackgroundEvent) -> None:
        for watcher in list(self.listeners):
            watcher.heard(event)
