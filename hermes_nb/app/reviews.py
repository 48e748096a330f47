"""After a turn: is it time to look back? Then it is done in the background, and told later."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hermes_nb.app.session import Session
from hermes_nb.app.workshop import Workshop, in_view
from hermes_nb.core.errors import ConfigError, StoreError
from hermes_nb.core.events import BackgroundEvent
from hermes_nb.core.protocols import ChatModel, SessionStore
from hermes_nb.learning.nudges import Nudges, Subject
from hermes_nb.learning.proposals import Proposal
from hermes_nb.learning.review import SOURCE, Reviewer, Subjects

NAMED = 8
"""Numbers that a line names; more are "all"."""
ModelMaker = Callable[[], tuple[ChatModel, bool]]
"""Returns a model for work in another thread, and whether it is to be closed afterwards."""


class Reviews:
    """Counts what happens in sessions, and looks back when it is time.

    `model` is asked for a review's model in the background thread, `emit` called from there.
    """

    def __init__(
        self,
        workshop: Workshop,
        *,
        model: ModelMaker,
        emit: Callable[[BackgroundEvent], None] = lambda _: None,
    ) -> None:
        self._workshop = workshop
        self._model = model
        self._reviewer = Reviewer(emit=emit)
        self._nudges: dict[str, Nudges] = {}
        self._told: set[str] = set()

    def watch(self, session: Session) -> None:
        """Count from now on what happens in a session, on top of what is stored of it.

        What waits for the user's approval and was not told yet is told.
        """
        self.tell_what_waits()
        if session.id not in self._nudges:
            settings = self._workshop.settings
            nudges = Nudges(
                memory_every=settings.memory.nudge if settings.memory.enabled else 0,
                skills_every=settings.skills.nudge if settings.skills.enabled else 0,
            )
            _catch_up(nudges, session.store, session.id)
            self._nudges = {session.id: nudges}
        if self._nudges[session.id] not in session.agent.sinks:
            session.agent.sinks.append(self._nudges[session.id])

    def after_turn(self, session: Session) -> bool:
        """Begin a review if one is due; return at once, and whether one was begun."""
        nudges = self._nudges.get(session.id)
        subject = nudges.due() if nudges is not None else None
        if nudges is None or subject is None or not self.begin(session, subject):
            return False
        nudges.reset(subject)
        return True

    def begin(self, session: Session, subject: Subject) -> bool:
        """Look back now, in the background; False while an earlier review still runs."""
        agent = session.agent
        seen = Subjects(
            session_id=session.id,
            model=self._model,
            system=session.prompt.without("project", "memory provider").text,
            tools=agent.tools,
            own=self._workshop.quiet_tools(agent.model, session.id, in_view(agent)),
            messages=agent.messages,
        )
        return self._reviewer.begin(seen, subject, session.store)

    def tell_what_waits(self) -> None:
        """Say what waits for the user's approval, as far as that was not told yet."""
        try:
            waiting = self._workshop.approvals.waiting()
        except ConfigError as error:
            line = str(error)
            new = {line}
        else:
            line = told_of(waiting)
            new = {each.id for each in waiting}
        if not new <= self._told:
            self._workshop.tell(line)
        self._told = new

    @property
    def busy(self) -> bool:
        """Whether a review is running."""
        return self._reviewer.busy

    def learned(self) -> list[str]:
        """Return, once, a line for each thing that was learned since the last time."""
        return self._reviewer.learned()

    def wait(self, seconds: float | None = None) -> None:
        """Wait for a running review to end."""
        self._reviewer.wait(seconds)

    def stop(self) -> None:
        """Stop a running review; what it saved until now stays."""
        self._reviewer.stop()

    def close(self) -> None:
        """Stop, and end the thread."""
        self._reviewer.close()


def told_of(waiting: Sequence[Proposal]) -> str:
    """Return one line on what waits, and what to type to keep, see or drop it, as Markdown.

    It names the numbers: what comes in later is not decided on with them.
    """
    lines = []
    for kind, one, more in _KINDS:
        numbers = [each.number for each in waiting if each.kind == kind]
        if not numbers:
            continue
        many = f"1 {one} waits" if len(numbers) == 1 else f"{len(numbers)} {more} wait"
        named = " ".join(map(str, numbers)) if len(numbers) <= NAMED else "all"
        words = (("keep", f"approve {named}"), ("look", "pending"), ("drop", f"reject {named}"))
        ways = " · ".join(f"{word} `%hermes {kind} {command}`" for word, command in words)
        lines.append(f"{many}: {ways}")
    return "; ".join(lines)


_KINDS = (("memory", "note", "notes"), ("skills", "change of skills", "changes of skills"))


def _catch_up(nudges: Nudges, store: SessionStore, session_id: str) -> None:
    """Count what is stored of a session, as far as no review has looked at it."""
    try:
        rows = store.rows(session_id)
        family = (store.get(each) for each in store.lineage(session_id))
        done = [
            (each.started, each.title)
            for each in family
            if each and each.source == SOURCE and each.parent == session_id
        ]
    except StoreError:  # then it counts from now on
        return
    looked: list[tuple[float, Subject]] = []
    subjects: tuple[Subject, ...] = ("memory", "skills", "both")
    looked += [(at, s) for at, title in done for s in subjects if title.endswith(s)]
    looked.sort()
    for row in rows:
        while looked and looked[0][0] <= row.at:
            nudges.reset(looked.pop(0)[1])
        nudges.see(row.message)
    for _, subject in looked:
        nudges.reset(subject)
