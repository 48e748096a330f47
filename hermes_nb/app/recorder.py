"""Writes a session's rows as its events happen, and never lets a turn fail over it."""

from __future__ import annotations

from collections.abc import Callable

from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import Event, MessageAdded, TurnEnded, UsageReported
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import SessionStore


class Recorder:
    """An event sink: a message becomes a row before anybody sees its event.

    What the store does not take is kept, and written, in order, as soon as it does; `warn` hears
    of the first failure once. Between two turns that is tried again, within a turn no more, so
    that a locked database costs one wait and not one a message.
    """

    def __init__(self, store: SessionStore, session_id: str, warn: Callable[[str], None]) -> None:
        self._store = store
        self._session = session_id
        self._warn = warn
        self._backlog: list[Message | Usage] = []
        self._failing = False

    @property
    def unsaved(self) -> int:
        """How many messages and counters wait for the store to come back."""
        return len(self._backlog)

    def __call__(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, MessageAdded):
            self._backlog.append(event.message)
        elif isinstance(event, UsageReported):
            self._backlog.append(event.usage)
        if self._backlog and (not self._failing or isinstance(event, TurnEnded)):
            self._flush()

    def _flush(self) -> None:
        try:
            while self._backlog:
                item = self._backlog[0]
                if isinstance(item, Message):
                    self._store.append(self._session, item)
                else:
                    self._store.count(self._session, item)
                self._backlog.pop(0)
        except StoreError as error:
            if not self._failing:
                self._warn(f"the session is not being saved for now: {error}")
            self._failing = True
        else:
            self._failing = False
