"""Writes a session's rows as its events happen, and never lets a turn fail over it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import (
    ContextCompressed,
    Event,
    MessageAdded,
    TurnEnded,
    UsageReported,
)
from hermes_nb.core.protocols import SessionStore
from hermes_nb.safety.discretion import without_secrets
from hermes_nb.safety.redact import redact


class Recorder:
    """An event sink: a message becomes a row, without its secrets, before anybody sees its event.

    What the store does not take is kept, and written, in order, as soon as it does; `warn` hears
    of the first failure once. Between two turns that is tried again, within a turn no more, so
    that a locked database costs one wait and not one a message.
    """

    def __init__(self, store: SessionStore, session_id: str, warn: Callable[[str], None]) -> None:
        self._store = store
        self._session = session_id
        self._warn = warn
        self._backlog: deque[Callable[[], object]] = deque()
        self._failing = False

    @property
    def unsaved(self) -> int:
        """How many messages, counters and the like wait for the store to come back."""
        return len(self._backlog)

    def begin(
        self,
        *,
        title: str = "",
        source: str = "notebook",
        notebook: str = "",
        model: str = "",
        system_prompt: str = "",
        parent: str = "",
    ) -> None:
        """Create the session's row, now or as soon as the store takes it."""
        self._backlog.append(
            partial(
                self._store.start,
                session_id=self._session,
                title=redact(title),
                source=source,
                notebook=notebook,
                model=model,
                system_prompt=redact(system_prompt),
                parent=parent,
            )
        )
        self._flush()

    def __call__(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, MessageAdded):
            message = without_secrets(event.message)
            self._backlog.append(partial(self._store.append, self._session, message))
        elif isinstance(event, UsageReported):
            self._backlog.append(partial(self._store.count, self._session, event.usage))
        elif isinstance(event, ContextCompressed):
            self._backlog.append(
                partial(
                    self._store.replace,
                    self._session,
                    [without_secrets(message) for message in event.messages],
                    system_prompt=redact(event.system) or None,
                )
            )
        if self._backlog and (not self._failing or isinstance(event, TurnEnded)):
            self._flush()

    def _flush(self) -> None:
        try:
            while self._backlog:
                self._backlog[0]()
                self._backlog.popleft()
        except StoreError as error:
            if not self._failing:
                self._warn(f"the session is not being saved for now: {error}")
            self._failing = True
        else:
            self._failing = False
