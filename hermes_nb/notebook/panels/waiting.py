"""What waits for the user's approval, as the Memory and the Skills tab show it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hermes_nb.agent.approvals import Decided
from hermes_nb.agent.proposals import Kind, MemoryWrite, Proposal
from hermes_nb.core.calls import in_thread
from hermes_nb.core.errors import ConfigError
from hermes_nb.memory.curation.operations import Operation
from hermes_nb.notebook.display.wording import ago
from hermes_nb.notebook.panels.acting import Refused
from hermes_nb.notebook.panels.parts import Act, Line, Listing, write
from hermes_nb.notebook.panels.style import WHOLE, caution, coded, document, heading, shown
from hermes_nb.notebook.panels.tab import Place
from hermes_nb.safety.redact import redact

DIED = "The process that was saving it died: it may be there already."


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Something that waits, and what it would do as things are."""

    proposal: Proposal
    would: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What waits; `problem` says why that cannot be told."""

    held: tuple[Held, ...] = ()
    problem: str = ""


class Waiting:
    """A section with the things of one kind that wait; `edit`, if any, opens one in an editor."""

    def __init__(
        self,
        place: Place,
        kind: Kind,
        *,
        moved: Callable[[], None],
        edit: Callable[[Proposal], None] | None = None,
    ) -> None:
        self._place, self._kind, self._edit = place, kind, edit
        self._head = place.kit.markup()
        self._list = Listing[Held](place.kit, self._line, moved=moved)
        self.widget = place.kit.box()

    def read(self) -> Queue:
        """Return what waits; it may block."""
        approvals = self._place.resident.workshop.approvals
        try:
            waiting = approvals.waiting(self._kind)
        except ConfigError as error:
            return Queue(problem=str(error))
        return Queue(held=tuple(Held(proposal=p, would=approvals.shown(p)) for p in waiting))

    def show(self, queue: Queue) -> None:
        """Show it, or nothing where nothing waits."""
        head = heading("Wait for your approval", str(len(queue.held))) if queue.held else ""
        write(self._head, caution(shown(queue.problem)) if queue.problem else head)
        self._list.show(queue.held)
        parts = ((self._head,) if queue.problem or queue.held else ()) + (
            (self._list.widget,) if queue.held else ()
        )
        write(self.widget, parts, "children")

    async def decided(self, decide: Callable[[], Decided]) -> str:
        """Return what became of a decision; raise Refused with the reason why nothing did."""
        outcome: Decided = await in_thread(decide)
        if not outcome.done:
            raise Refused(outcome.message)
        return outcome.message[:1].upper() + outcome.message[1:] + "."

    def _line(self, item: Held) -> Line:
        proposal = item.proposal
        marks = caution(DIED) if proposal.begun else ""
        if proposal.problem:
            marks += caution(shown(f"It could not be saved: {proposal.problem}", 300))
        return Line(
            key=proposal.id,
            text=f"{coded(proposal.gist)}{marks}{document(item.would)}",
            foot=f"by a {shown(proposal.origin.source, 80)} · {ago(proposal.at)}",
            acts=tuple(self._acts(item)),
        )

    def _acts(self, item: Held) -> Sequence[Act]:
        proposal, number = item.proposal, item.proposal.number
        command = f"%hermes {self._kind} pending {number}"
        unseen = f"it is too long to be shown here; {command} shows it"
        approvals = self._place.resident.workshop.approvals

        def doing(decide: Callable[[], Decided]) -> Callable[[], None]:
            return self._place.doing(lambda: self.decided(decide))

        acts = [
            Act(
                label="approve",
                tip="save it; that can be undone",
                do=doing(lambda: approvals.approve(number)),
                off=unseen if len(item.would) > WHOLE else "",
            ),
            Act(
                label="reject",
                tip="drop it, and do not propose it again",
                do=doing(lambda: approvals.reject(number)),
            ),
        ]
        edit = self._edit
        step = single(proposal)
        if edit is not None and step is not None and redact(step.content) == step.content:
            tip = "save it in other words"
            acts.insert(1, Act(label="edit", tip=tip, do=lambda: edit(proposal)))
        return acts


def single(proposal: Proposal) -> Operation | None:
    """Return the step of a proposal that is one new or changed entry of memory, else None."""
    write_ = proposal.write
    if isinstance(write_, MemoryWrite) and len(write_.steps) == 1 and write_.steps[0].content:
        return write_.steps[0]
    return None
