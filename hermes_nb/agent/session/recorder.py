"""Writes a session's rows as its events happen. A failed write never fails the turn."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from hermes_nb.core.errors import SessionTakenError, StoreError
from hermes_nb.core.events import ContextCompressed, Event, MessageAdded, TurnEnded, UsageReported
from hermes_nb.core.messages import Message, Usage
from hermes_nb.core.protocols import SessionStore
from hermes_nb.core.text import number_of
from hermes_nb.core.threads import without_waiting
from hermes_nb.safety.redact import redact, without_secrets

RETRY_SECONDS = (1.0, 2.0, 4.0, 8.0)
"""Pauses in seconds between attempts to write; the last one repeats."""
CLOSE_SECONDS = 2.0
"""Seconds that closing a store waits for unsaved changes."""


class Recorder:
    """An event sink that stores each message, without secrets, before other sinks get its event.

    Writes that fail are queued and retried in order, at the end of each turn and in a thread
    (`Unsaved`), until everything is written. Retries don't wait for the store, so a locked database
    causes only one wait, not one per message.

    If the store has lost rows, they are written back at the end of a turn. If another kernel has
    continued the session, this one continues in a copy, and calls `moved` with the copy's id.

    Args:
        store: the session store
        session_id: the session's id
        warn: shows a line to the user; called once per series of failures
        held: the messages of the conversation that are already in the store
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
        self.store = store
        self.session = session_id
        self._warn = warn
        self._held = list(held)
        self.conversation = list(self._held)
        """The session's messages, including those not stored yet."""
        self._incidents = store.incidents()
        self._backlog: deque[Callable[[], object]] = deque()
        self._used: Usage | None = None  # of the request whose answer is stored next
        self._writing = threading.RLock()
        self._failure = ""
        self._unchecked = False  # a turn has ended since the store was last compared with `held`

    @property
    def unsaved(self) -> int:
        """The number of queued changes, such as messages and counters."""
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
        """Create the session's row now, or as soon as the store accepts writes."""
        start = partial(
            self.store.start,
            session_id=self.session,
            title=redact(title),
            source=source,
            notebook=notebook,
            model=model,
            system_prompt=redact(system_prompt),
            parent=parent,
        )
        self._backlog.append(lambda: self.store.follow(start()))
        self._flush()

    def __call__(self, event: Event) -> None:
        """Record an event."""
        used, self._used = self._used, None
        if isinstance(event, MessageAdded):
            message = without_secrets(event.message)
            self.conversation.append(message)
            self._backlog.append(partial(self._add, message, used))
        elif used is not None:
            self._count(used)
        if isinstance(event, UsageReported) and not event.purpose:
            self._used = event.usage  # stored with the answer in one transaction
        elif isinstance(event, UsageReported):
            self._count(event.usage)
        elif isinstance(event, ContextCompressed) and event.phase == "rewound":
            del self.conversation[len(event.messages) :]
            self._backlog.append(partial(self._rewind, len(event.messages)))
        elif isinstance(event, ContextCompressed):
            messages = [without_secrets(message) for message in event.messages]
            self.conversation = list(messages)
            self._backlog.append(partial(self._replace, messages, redact(event.system) or None))
        ended = isinstance(event, TurnEnded)
        self._unchecked |= ended
        if self._failure and ended:
            with without_waiting():
                self._flush()
        elif ended or (self._backlog and not self._failure):
            self._flush()

    def _add(self, message: Message, used: Usage | None) -> None:
        self.store.append(self.session, message, usage=used)
        self._held.append(message)

    def _count(self, usage: Usage) -> None:
        self._backlog.append(partial(self.store.count, self.session, usage))

    def _replace(self, messages: list[Message], system_prompt: str | None = None) -> None:
        self.store.replace(self.session, messages, system_prompt=system_prompt)
        self._held = messages

    def _rewind(self, length: int) -> None:
        self.store.rewind(self.session, length)
        self._held = self._held[:length]

    def save(self, *, closing: bool = False) -> None:
        """Write the unsaved changes, on a thread other than the turn's; failed ones stay queued.

        With `closing`, also wait for other processes, and continue in a copy of the session if
        another kernel has continued it.
        """
        if closing:
            self.moved = lambda _: None  # no turn is left to continue
            self.store.close()  # reopened by the next call, without its recent failure
            self._flush()
            self.store.close()
        else:
            with without_waiting():
                self._flush(copies=False)

    def report_unsaved(self) -> None:
        """Warn that the unsaved changes will be lost."""
        lost = number_of(len(self._backlog), "change")
        self._warn(f"{lost} to session {self.session} could not be saved: {self._failure}")

    def _flush(self, *, copies: bool = True) -> None:
        with self._writing:
            try:
                while self._backlog:
                    try:
                        self._backlog[0]()
                    except SessionTakenError:
                        if not copies:
                            raise
                        self._fork()
                    else:
                        self._backlog.popleft()
                if self._unchecked:
                    self._write_back()
            except StoreError as error:
                if not self._failure:
                    self._warn(f"the session is not being saved for now: {error}")
                self._failure = str(error)
                _unsaved.add(self)
            else:
                self._failure = ""

    def _write_back(self) -> None:
        """Write rows that the store has lost since the end of the previous turn."""
        if (count := self.store.incidents()) != self._incidents:
            if self.store.messages(self.session) != self._held:
                self._replace(self._held)
            self._incidents = count
        self._unchecked = False

    def _fork(self) -> None:
        """Continue in a copy of the session, unless the store holds the same messages."""
        stored = self.store.get(self.session)
        if stored is None or self.store.messages(self.session) == self._held:
            self.store.follow(self.session)
            return
        fork = self.store.start(
            title=stored.title,
            source=stored.source,
            notebook=stored.notebook,
            model=stored.model,
            system_prompt=stored.system_prompt,
            parent=stored.id,
        )
        self.store.follow(fork)
        self.store.replace(fork, self._held)
        self.session = fork
        self._warn(
            f"another kernel has continued session {stored.id}; this kernel continues in a copy, "
            f"{fork}"
        )
        self.moved(fork)


class Unsaved:
    """The recorders of this process that have unsaved changes, and a thread that retries them.

    The thread runs until everything is written. It also keeps recorders whose sessions are no
    longer used. It is created in advance, because no thread can be started while the interpreter
    exits.
    """

    def __init__(self) -> None:
        self._registered = False
        self._reset()

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._recorders: list[Recorder] = []
        self._closing: set[Recorder] = set()
        self._thread: threading.Thread | None = None

    def add(self, recorder: Recorder) -> None:
        """Retry a recorder's unsaved changes."""
        with self._changed:
            if recorder not in self._recorders:
                self._recorders.append(recorder)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="hermes-save", daemon=True)
                self._thread.start()
        if not self._registered:
            self._registered = True
            atexit.register(self.close)
            if hasattr(os, "register_at_fork"):  # the parent saves its own changes
                os.register_at_fork(after_in_child=self._reset)

    def of(self, store: SessionStore, session_id: str) -> Recorder | None:
        """Return a session's recorder if it has unsaved changes, otherwise None."""
        with self._changed:
            known = [r for r in self._recorders if r.store is store and r.session == session_id]
        return known[-1] if known and known[-1].unsaved else None

    def close(self, store: SessionStore | None = None) -> bool:
        """Write the unsaved changes to one store or, by default, to all; report any that fail.

        Takes at most `CLOSE_SECONDS`. Returns whether the thread has released the store by then; if
        not, the thread closes it after its last attempt.
        """
        with self._changed:
            mine = [each for each in self._recorders if store is None or each.store is store]
            self._closing.update(mine)
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: not self._closing.intersection(mine), CLOSE_SECONDS
            )
            self._forget(mine)
        for each in mine:
            if each.unsaved:
                each.report_unsaved()
        return done

    def _run(self) -> None:
        pauses = iter(RETRY_SECONDS)
        while True:
            with self._changed:
                pause = next(pauses, RETRY_SECONDS[-1])
                self._changed.wait_for(lambda: self._closing, pause)
                closing, mine = set(self._closing), list(self._closing or self._recorders)
            for each in mine:
                each.save(closing=each in closing)
            with self._changed:
                self._forget(each for each in mine if each in closing or not each.unsaved)
                self._changed.notify_all()
                if not self._recorders:
                    self._thread = None
                    return

    def _forget(self, recorders: Iterable[Recorder]) -> None:
        for each in recorders:
            self._closing.discard(each)
            if each in self._recorders:
                self._recorders.remove(each)


_unsaved = Unsaved()


def recorder_of(store: SessionStore, session_id: str, warn: Callable[[str], None]) -> Recorder:
    """Return the recorder for a stored session that is being resumed.

    If a recorder in this process still has unsaved changes for the session, return it: a second
    recorder would not have them, and neither could save its own.
    """
    if (known := _unsaved.of(store, session_id)) is not None:
        return known
    store.follow(session_id)
    return Recorder(store, session_id, warn, held=store.messages(session_id))


def close_store(store: SessionStore) -> None:
    """Write a store's unsaved changes, report any that fail, and close it.

    Waits at most `CLOSE_SECONDS` for unsaved changes.
    """
    if _unsaved.close(store):
        store.close()
