"""Run background reviews of a kernel's sessions when they are due: in a thread, one at a time."""

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
from hermes_nb.agent.session.usage import together
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import BackgroundEvent, ReviewFinished
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import SessionStore
from hermes_nb.core.text import used
from hermes_nb.core.threads import LoopThread
from hermes_nb.models.profiles import traits_of
from hermes_nb.safety.markup import escape

PATIENCE = 120.0
"""Seconds that a process which would end waits for a review."""


def looking_back(opening: Opening, session: Session) -> Reviews | None:
    """Return what looks back on a session outside of a kernel; None with a model too small."""
    if opening.runtime is None or not traits_of(session.agent.model).learns:
        return None
    reviews = Reviews(opening.runtime, model=opening.another)
    reviews.watch(session)
    return reviews


class Reviews:
    """Counts what happens in sessions, and looks back when it is time: in a thread, one at a time.

    `model` is asked for a review's model in that thread, `emit` called from there.
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
        """Count from now on what happens in a session, on top of what is stored of it.

        What waits for the user's approval and was not told yet is told.
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
        """Begin a review if one is due; return at once, and whether one was begun.

        Behind its first turn, if that is `live`, neither recorded nor replayed, a session is named.
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
        """Look back now, in the background; False while an earlier review still runs."""
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
        """Start a review unless one is running; return at once, and whether it was started."""
        if self.busy:
            return False
        self._running = self._thread.submit(Review(seen, subject, store).run(self._note))
        return True

    @property
    def busy(self) -> bool:
        """Whether a review is running."""
        return self._running is not None and not self._running.done()

    def wait(self, seconds: float | None = None) -> ReviewFinished | None:
        """Wait for the running review; None when there was none, or it was stopped."""
        if self._running is None or self._running.cancelled():
            return None
        return self._running.result(timeout=seconds)

    def learned(self) -> list[str]:
        """Return, once, what was learned since this was last asked."""
        with self._lock:
            taken, self._learned = self._learned, []
        return taken

    def news(self) -> str:
        """Return, once, what was learned since this was last asked and what that took, or ""."""
        learned = self.learned()
        with self._lock:
            cost, self._spent = self._spent, Usage()
        spent = f" (looking back took {', '.join(used(cost))})" if cost.requests else ""
        if learned:
            told = "; ".join(map(escape, learned))
            return f"Learned since: {told}{spent}. `%hermes memory undo` takes the last back."
        return f"Looked back since, and found nothing to keep{spent}." if spent else ""

    def stop(self) -> None:
        """Stop a running review; what it saved until now stays."""
        if self._running is not None:
            self._running.cancel()

    def finish(self, seconds: float = PATIENCE) -> None:
        """Let a running review end, for so many seconds at most, and close."""
        try:
            with suppress(TimeoutError, CancelledError):
                self.wait(seconds)
        finally:
            self.close()

    def close(self) -> None:
        """Stop, and end the thread."""
        self._thread.close()

    def tell_what_waits(self) -> None:
        """Say what waits for the user's approval, as far as that was not told yet."""
        if not self._runtime.approvals.pending.path.exists():  # nothing ever did
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
                self._spent = together([self._spent, event.usage])
        self._emit(event)
