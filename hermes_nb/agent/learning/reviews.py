"""Runs background reviews of a kernel's sessions when they are due: in a thread, one at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial

from hermes_nb.agent.learning.naming import named_after_turn
from hermes_nb.agent.learning.nudges import Nudges, Subject, catch_up
from hermes_nb.agent.learning.review import ModelMaker, Review, Subjects
from hermes_nb.agent.proposals import told_of
from hermes_nb.agent.runtime import Opening, Runtime
from hermes_nb.agent.session.session import Session
from hermes_nb.agent.session.usage import total_usage
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import BackgroundEvent, ReviewFinished
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import SessionStore
from hermes_nb.core.text import used
from hermes_nb.core.threads import LoopThread
from hermes_nb.models.profiles import traits_of
from hermes_nb.safety.markup import escape

PATIENCE = 120.0
"""Maximum seconds that an exiting process waits for a review."""


def looking_back(opening: Opening, session: Session) -> Reviews | None:
    """Return the reviews of a session outside a kernel, or None if its model is too small."""
    if opening.runtime is None or not traits_of(session.agent.model).learns:
        return None
    reviews = Reviews(opening.runtime, model=opening.another)
    reviews.watch(session)
    return reviews


class Reviews:
    """Decides when background reviews are due and runs them: in a thread, one at a time.

    `model` is called in that thread to get the review's model; `emit` is called there with events.
    """

    def __init__(
        self,
        runtime: Runtime,
        *,
        model: ModelMaker,
        emit: Callable[[BackgroundEvent], None] = lambda _: None,
    ) -> None:
        self._runtime = runtime
        self._model = model
        self._emit = emit
        self._thread = LoopThread("hermes-review")
        self._running: Future[ReviewFinished] | None = None
        self._learned: list[str] = []
        self._spent = Usage()
        self._lock = threading.Lock()
        self._nudges: dict[str, Nudges] = {}
        self._told: set[str] = set()

    def watch(self, session: Session) -> None:
        """Count the messages of a session from now on, starting from its stored messages.

        Also reports pending proposals that have not yet been reported.
        """
        self.tell_what_waits()
        if session.id not in self._nudges:
            settings = self._runtime.settings
            nudges = Nudges(
                memory_every=settings.memory.nudge if settings.memory.enabled else 0,
                skills_every=settings.skills.nudge if settings.skills.enabled else 0,
            )
            catch_up(nudges, session.store, session.id)
            self._nudges = {session.id: nudges}
        if self._nudges[session.id] not in session.agent.sinks:
            session.agent.sinks.append(self._nudges[session.id])

    def after_turn(self, session: Session, *, live: bool = True) -> bool:
        """Start a review if one is due; return immediately, saying whether one was started.

        After the first turn, also generate the session's title, but only if `live`, that is, if
        replies are neither recorded nor replayed.
        """
        if live and (naming := named_after_turn(session, self._runtime.settings)) is not None:
            self._thread.submit(naming)
        nudges, held = self._nudges.get(session.id), self._runtime.guard.policy.why("learning")
        subject = nudges.due() if nudges is not None else None
        if not nudges or not subject or held or not self.begin(session, subject):
            return False
        nudges.reset(subject)
        return True

    def begin(self, session: Session, subject: Subject) -> bool:
        """Start a review now, in the background; return False if one is already running."""
        agent = session.agent
        seen = Subjects(
            place=session.place,
            model=self._model,
            system=session.prompt.without("project", "memory provider").text,
            tools=agent.tools,
            own=self._runtime.quiet_tools(agent.model, session.place, agent.in_view()),
            messages=agent.messages,
            sinks=partial(self._runtime.sinks, parent=session.id, behind=True),
        )
        return self.start(seen, subject, session.store)

    def start(self, seen: Subjects, subject: Subject, store: SessionStore) -> bool:
        """Start a review unless one is running; return immediately whether it was started."""
        if self.busy:
            return False
        self._running = self._thread.submit(Review(seen, subject, store).run(self._note))
        return True

    @property
    def busy(self) -> bool:
        """Whether a review is running."""
        return self._running is not None and not self._running.done()

    def wait(self, seconds: float | None = None) -> ReviewFinished | None:
        """Wait for the running review; return None if there was none or it was stopped."""
        if self._running is None or self._running.cancelled():
            return None
        return self._running.result(timeout=seconds)

    def learned(self) -> list[str]:
        """Return the reviews' writes since the last call, one line each."""
        with self._lock:
            taken, self._learned = self._learned, []
        return taken

    def news(self) -> str:
        """Return one line with what reviews saved since the last call and their usage, or ""."""
        learned = self.learned()
        with self._lock:
            cost, self._spent = self._spent, Usage()
        if not learned:
            return ""
        spent = f" ({', '.join(used(cost))})" if cost.requests else ""
        text = "; ".join(map(escape, learned))
        return f"A background review saved: {text}{spent}. `%hermes memory undo` undoes it."

    def stop(self) -> None:
        """Stop a running review, but keep what it has written so far."""
        if self._running is not None:
            self._running.cancel()

    def finish(self, seconds: float = PATIENCE) -> None:
        """Wait for a running review, for at most this many seconds, and close."""
        try:
            with suppress(TimeoutError, CancelledError):
                self.wait(seconds)
        finally:
            self.close()

    def close(self) -> None:
        """Stop a running review and end the thread."""
        self._thread.close()

    def tell_what_waits(self) -> None:
        """Report the pending proposals unless all of them have already been reported."""
        if not self._runtime.approvals.pending.path.exists():  # there has never been a proposal
            return
        try:
            waiting = self._runtime.approvals.waiting()
        except ConfigError as error:
            line = str(error)
            new = {line}
        else:
            line = told_of(waiting)
            new = {each.id for each in waiting}
        if not new <= self._told:
            self._runtime.tell(line)
        self._told = new

    def _note(self, event: BackgroundEvent) -> None:
        if isinstance(event, ReviewFinished):
            with self._lock:
                self._learned += event.saved
                self._spent = total_usage([self._spent, event.usage])
        self._emit(event)
