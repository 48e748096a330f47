"""The state of this kernel's sessions for panels, computed from their events.

The hub receives the events of every session that the kernel enters, from the start. So a panel that
is opened later still gets the whole history. The hub itself displays nothing and uses no widgets.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from hermes_nb.agent.session.session import Session
from hermes_nb.core.events import (
    BackgroundEvent,
    ChildFinished,
    ContextCompressed,
    Event,
    ReviewFinished,
    ReviewStarted,
    TurnEnded,
    TurnStarted,
    UsageReported,
)
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import EventSink

MOST_SESSIONS = 50
"""Maximum sessions whose activity is stored; the least recently used one is dropped."""


@dataclass(frozen=True, slots=True)
class Compressed:
    """A compression of the conversation."""

    turn: int
    """The turn during or after which it happened; 0 before this kernel's first turn."""
    event: ContextCompressed
    """The event that reported it."""


@dataclass(slots=True)
class Account:
    """One session's activity in this kernel."""

    turns: list[Usage] = field(default_factory=list)
    """Usage of each turn, oldest first."""
    compressions: list[Compressed] = field(default_factory=list)
    """Compressions in order."""
    turn: int = 0
    """The number of the last turn."""
    running: int = 0
    """The number of the running turn, or 0 for none."""
    sink: EventSink | None = None
    """Receives the session's events for the hub."""

    def spend(self, usage: Usage) -> None:
        """Count usage; usage between turns counts towards the earlier one."""
        if self.turns:
            self.turns[-1] += usage
        else:
            self.turns.append(usage)


class Listener(Protocol):
    """Displays activity. It must be fast; `heard` may be called from any thread."""

    def heard(self, event: Event | BackgroundEvent) -> None:
        """Receive an event after the hub has updated its state."""
        ...

    def close(self) -> None:
        """Stop displaying."""
        ...


class EventHub:
    """The state that panels display.

    `reviewing` is the running review, `reviewed` the last one that ended, and `reviewed_at` the
    time it ended, in seconds since the epoch.
    """

    def __init__(self) -> None:
        self.listeners: list[Listener] = []
        self.reviewing: ReviewStarted | None = None
        self.reviewed: ReviewFinished | None = None
        self.reviewed_at = 0.0
        self._accounts: dict[str, Account] = {}
        self._account = Account()

    @property
    def running(self) -> int:
        """The number of the current session's running turn, or 0 for none."""
        return self._account.running

    def enter(self, session: Session) -> None:
        """Listen to a session from now on; it becomes the current one."""
        account = self._account = self.of(session.id)
        self._accounts.pop(session.id, None)
        self._accounts[session.id] = account  # moved to the end: most recently used
        if len(self._accounts) > MOST_SESSIONS:
            del self._accounts[next(iter(self._accounts))]
        account.turn = session.agent.turns
        account.sink = account.sink or partial(self._update_account, account)
        if account.sink not in session.agent.sinks:
            session.agent.sinks.append(account.sink)

    def of(self, session_id: str) -> Account:
        """Return a session's activity in this kernel; empty if there was none."""
        return self._accounts.get(session_id, Account())

    def __call__(self, event: Event) -> None:
        """Handle an event of the current session."""
        self._update_account(self._account, event)

    def _update_account(self, account: Account, event: Event) -> None:
        match event:
            case TurnStarted(turn):
                account.running = account.turn = turn
                account.turns.append(Usage())
            case UsageReported(usage=usage) | ChildFinished(usage=usage):
                account.spend(usage)
            case ContextCompressed(phase=phase) if phase != "rewound":
                account.compressions.append(Compressed(account.turn, event))
            case TurnEnded():
                account.running = 0
            case _:
                pass
        self._notify_listeners(event)

    def background(self, event: BackgroundEvent) -> None:
        """Handle an event from background work; may be called from any thread."""
        match event:
            case ReviewStarted():
                self.reviewing = event
            case ReviewFinished():
                self.reviewing, self.reviewed = None, event
                self.reviewed_at = time.time()
        self._notify_listeners(event)

    def close(self) -> None:
        """Close all listeners."""
        for watcher in list(self.listeners):
            watcher.close()
        self.listeners.clear()

    def _notify_listeners(self, event: Event | BackgroundEvent) -> None:
        for watcher in list(self.listeners):
            watcher.heard(event)
