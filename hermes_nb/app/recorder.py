"""Writes a session's rows as its events happen, and never lets a turn fail over it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from hermes_nb.core.errors import SessionTakenError, StoreError
from hermes_nb.core.events import (
    ContextCompressed,
    Event,
    MessageAdded,
    TurnEnded,
    UsageReported,
)
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import SessionStore
from hermes_nb.safety.redact import redact, without_secrets


class Recorder:
    """An event sink: a message becomes a row, without its secrets, before anybody sees its event.

    What the store does not take is kept, and written, in order, as soon as it does; `warn` hears
    of the first failure once. Between two turns that is tried again, within a turn no more, so
    that a locked database costs one wait and not one a message.

    `held` is the conversation as the store has it. What the store has lost at the end of a turn is
    written back. Where another kernel has gone on with the session, this one goes on in a copy of
    it, and `moved` hears the copy's id.
    """

    def __init__(
        self,
        store: SessionStore,
        session_id: str,
        warn: Callable[[str], None],
        *,
        held: Iterable[Message] = (),
    ) -> None:
        self.moved: Callable[[str], None] = lambda _: None
        self._store = store
        self._session = session_id
        self._warn = warn
        self._held = list(held)
        self._incidents = store.incidents()
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
        start = partial(
            self._store.start,
            session_id=self._session,
            title=redact(title),
            source=source,
            notebook=notebook,
            model=model,
            system_prompt=redact(system_prompt),
            parent=parent,
        )
        self._backlog.append(lambda: self._store.follow(start()))
        self._flush()

    def __call__(self, event: Event) -> None:
        """Record an event."""
        if isinstance(event, MessageAdded):
            self._backlog.append(partial(self._add, without_secrets(event.message)))
        elif isinstance(event, UsageReported):
            usage = event.usage
            self._backlog.append(lambda: self._store.count(self._session, usage))
        elif isinstance(event, ContextCompressed):
            messages = [without_secrets(message) for message in event.messages]
            self._backlog.append(partial(self._replace, messages, redact(event.system) or None))
        ended = isinstance(event, TurnEnded)
        if ended or (self._backlog and not self._failing):
            self._flush(ended=ended)

    def _add(self, message: Message) -> None:
        self._store.append(self._session, message)
        self._held.append(message)

    def _replace(self, messages: list[Message], system_prompt: str | None = None) -> None:
        self._store.replace(self._session, messages, system_prompt=system_prompt)
        self._held = messages

    def _flush(self, *, ended: bool = False) -> None:
        try:
            while self._backlog:
                try:
                    self._backlog[0]()
                except SessionTakenError:
                    self._fork()
                else:
                    self._backlog.popleft()
            if ended and (count := self._store.incidents()) != self._incidents:
                if self._store.messages(self._session) != self._held:
                    self._replace(self._held)
                self._incidents = count
        except StoreError as error:
            if not self._failing:
                self._warn(f"the session is not being saved for now: {error}")
            self._failing = True
        else:
            self._failing = False

    def _fork(self) -> None:
        """Go on in a copy of the session, unless what the other one wrote is what is held."""
        stored = self._store.get(self._session)
        if stored is None or self._store.messages(self._session) == self._held:
            self._store.follow(self._session)
            return
        fork = self._store.start(
            title=stored.title,
            source=stored.source,
            notebook=stored.notebook,
            model=stored.model,
            system_prompt=stored.system_prompt,
            parent=stored.id,
        )
        self._store.follow(fork)
        self._store.replace(fork, self._held)
        self._session = fork
        self._warn(
            f"another kernel went on with session {stored.id}; this one goes on in a copy, {fork}"
        )
        self.moved(fork)
