"""The Memory tab: what Hermes keeps in mind, where each entry came from, and how to change it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from hermes_nb.agent.prompt_sources import Knowledge
from hermes_nb.agent.proposals import MemoryWrite, Proposal
from hermes_nb.core.calls import in_thread
from hermes_nb.core.events import (
    BackgroundEvent,
    Event,
    ReviewFinished,
    ReviewStarted,
    ToolFinished,
    TurnStarted,
)
from hermes_nb.memory.curated import FILES, Outcome
from hermes_nb.memory.curation.history import Change, Record
from hermes_nb.notebook.commands.knowledge import BY_HAND
from hermes_nb.notebook.display.wording import ago
from hermes_nb.notebook.panels.acting import Refused
from hermes_nb.notebook.panels.charts import meter
from hermes_nb.notebook.panels.parts import Act, Line, Listing, push, write
from hermes_nb.notebook.panels.recollection import (
    Entry,
    Recollection,
    provenance,
    recollect,
    where,
)
from hermes_nb.notebook.panels.style import caution, coded, dim, heading, paragraphs, shown
from hermes_nb.notebook.panels.tab import Place
from hermes_nb.notebook.panels.waiting import Queue, Waiting, single
from hermes_nb.safety.redact import redact

NAMES = {"memory": "Notes", "user": "You"}
PLANTED = "The model does not see this entry: it looks planted. Forget it if you did not write it."
VERBS = {"add": "added", "replace": "changed", "remove": "removed"}


class MemoryTab:
    """Entries with edit, forget and undo."""

    title = "Memory"

    def __init__(self, place: Place) -> None:
        self._place = place
        self._known: Knowledge = place.resident.knowledge
        self._now: Recollection | None = None
        self._queue = Queue()
        self._waiting = Waiting(place, "memory", moved=self.redraw, edit=self._reword)
        self._editing: Entry | None = None
        kit = place.kit
        self._text = kit.area("The entry's text")
        self._hint = kit.markup("", "hermes-small", "hermes-dim")
        save = Act(label="Save", tip="save the entry", do=place.doing(self._save))
        cancel = Act(label="Cancel", tip="leave the entry as it is", do=lambda: self._edit(None))
        self._editor = kit.box(
            self._text,
            kit.box(push(kit, save, "hermes-primary").widget, push(kit, cancel).widget, line=True),
            self._hint,
        )
        self._learned = kit.markup()
        self._sections = {target: _Section(place, self, target) for target in FILES}
        self._recent_head = kit.markup()
        self._recent = Listing[Record](kit, self._change, moved=self.redraw)
        self.widget = kit.box(
            self._learned,
            self._waiting.widget,
            *(section.widget for section in self._sections.values()),
            self._recent_head,
            self._recent.widget,
        )

    def read(self) -> tuple[Recollection, Queue]:
        """Return both memories, and what waits to be written to them."""
        return recollect(self._known), self._waiting.read()

    def show(self, found: tuple[Recollection, Queue]) -> None:
        """Show them; an entry that is being edited stays in its editor."""
        self._now, self._queue = found
        self._draw()

    def concerned(self, event: Event | BackgroundEvent) -> bool:
        """Say whether an event is about memory."""
        if isinstance(event, ToolFinished):
            return event.call.name == "memory"
        return isinstance(event, TurnStarted | ReviewStarted | ReviewFinished)

    def line(self, entry: Entry) -> Line:
        """Return an entry as it is listed."""
        secret = redact(entry.text) != entry.text
        acts = [
            Act(
                label="edit",
                tip="edit this entry",
                do=lambda: self._edit(entry),
                off="it holds what looks like a secret; edit the file by hand" if secret else "",
            ),
            Act(label="forget", tip="remove this entry", do=self._doing(_removed(entry), entry)),
        ]
        if entry.record is not None and entry.reviewed:
            acts.append(self._undo(entry.record, "undo", "take back what the review wrote"))
        return Line(
            key=entry.key,
            text=paragraphs(entry.text) + (caution(PLANTED) if entry.planted else ""),
            foot=provenance(entry),
            acts=tuple(acts),
        )

    def edit_new(self, target: str) -> None:
        """Open the editor for a new entry."""
        self._edit(Entry(target=target))

    def _reword(self, proposal: Proposal) -> None:
        """Open the editor with what waits for approval."""
        step, write_ = single(proposal), proposal.write
        if step is not None and isinstance(write_, MemoryWrite):
            self._edit(Entry(target=write_.target, text=step.content, proposal=proposal.number))

    def _change(self, record: Record) -> Line:
        change = record.changes[0] if record.changes else Change(action="")
        more = f" and {len(record.changes) - 1} more" if len(record.changes) > 1 else ""
        text = coded(change.after or change.before, 100)
        did = f"{dim(VERBS.get(change.action, 'wrote'))} {text}{more}"
        act = self._undo(record, "undo", "take this change back")
        return Line(key=record.id, text=did, foot=where(record), acts=(act,))

    def _undo(self, record: Record, label: str, tip: str) -> Act:
        async def undo() -> str:
            return await self._written(lambda: self._known.memory.undo(record.id, origin=BY_HAND))

        return Act(label=label, tip=tip, do=self._place.doing(undo))

    def _doing(self, step: Mapping[str, str], entry: Entry) -> Callable[[], None]:
        async def work() -> str:
            return await self._written(
                lambda: self._known.memory.apply(entry.target, [step], origin=BY_HAND)
            )

        return self._place.doing(work)

    async def _save(self) -> str:
        entry, text = self._editing, self._text.value
        if entry is None:
            message = "nothing is being edited"
            raise Refused(message)
        if entry.proposal:
            approvals = self._place.resident.workshop.approvals
            said = await self._waiting.decided(lambda: approvals.approve(entry.proposal, text=text))
            self._editing = None
            return said
        step = {"action": "replace", "old_text": entry.text, "content": text}
        if not entry.text or not self._is_there(entry):
            step = {"action": "add", "content": text}
        said = await self._written(
            lambda: self._known.memory.apply(entry.target, [step], origin=BY_HAND)
        )
        self._editing = None
        return said

    async def _written(self, write_it: Callable[[], Outcome]) -> str:
        """Return what a write did; raise Refused with the reason why it was not done."""

        def write_and_pass_on() -> Outcome:
            outcome = write_it()
            if outcome.applied:
                self._known.written(outcome)
            return outcome

        outcome: Outcome = await in_thread(write_and_pass_on)
        if not outcome.applied:
            raise Refused(outcome.message)
        told = outcome.message[:1].upper() + outcome.message[1:]
        return f"{told}. New sessions know it, this one after %hermes reload."

    def _edit(self, entry: Entry | None) -> None:
        def on_loop() -> None:
            self._editing = entry
            if entry is not None:
                write(self._text, entry.text)
            self._draw()

        self._place.actions.call(on_loop)

    def _is_there(self, entry: Entry) -> bool:
        return self._now is not None and self._now.holds(entry)

    def redraw(self) -> None:
        """Show again what was read last; from any thread."""
        self._place.actions.call(self._draw)

    def _draw(self) -> None:
        now, editing = self._now, self._editing
        if now is None:
            return
        hint = ""
        if editing is not None and editing.proposal:
            hint = f"Save approves of {editing.proposal} in these words."
        elif editing is not None and editing.text and not self._is_there(editing):
            hint = "This entry was changed or removed meanwhile; Save adds what you typed."
        write(self._hint, hint)
        self._waiting.show(self._queue)
        for target, section in self._sections.items():
            mine = editing if editing is not None and editing.target == target else None
            section.show(now, mine, self._editor)
        happened = self._place.resident.happenings
        review = happened.reviewed
        told = ""
        if happened.reviewing is not None:
            told = dim("◌ looking back over the conversation")
        elif review is not None and review.saved:
            saved = "; ".join(shown(line, 120) for line in review.saved)
            told = dim(f"Learned {ago(happened.reviewed_at)}: {saved}")
        write(self._learned, told)
        problem = caution(shown(now.problem)) if now.problem else ""
        write(self._recent_head, problem + (heading("Last changes") if now.recent else ""))
        self._recent.show(now.recent)


class _Section:
    """One of the two memories."""

    def __init__(self, place: Place, tab: MemoryTab, target: str) -> None:
        kit = place.kit
        self._target = target
        self._head = kit.markup()
        self._new = kit.box()
        add = Act(
            label="add",
            tip=f"add an entry to {FILES[target]}",
            do=lambda: tab.edit_new(target),
        )
        self._add = push(kit, add, "hermes-link").widget
        self._entries = Listing[Entry](kit, tab.line, moved=tab.redraw, empty="Nothing yet.")
        self.widget = kit.box(self._head, self._new, self._entries.widget, self._add)

    def show(self, now: Recollection, editing: Entry | None, editor: Any) -> None:  # noqa: ANN401
        """Show the entries, and the editor where one of them is being edited."""
        fill, entries = now.usage[self._target], now.entries[self._target]
        full = f"{fill.used:,} / {fill.limit:,}"
        label = f"{NAMES[self._target]}: {fill.used:,} of {fill.limit:,} characters in use"
        write(self._head, heading(NAMES[self._target], full) + meter(fill.used, fill.limit, label))
        here = editing is not None and now.holds(editing)
        write(self._new, (editor,) if editing is not None and not here else (), "children")
        self._entries.open(editing.key if editing is not None and here else "", editor)
        self._entries.show(entries)


def _removed(entry: Entry) -> dict[str, str]:
    return {"action": "remove", "old_text": entry.text}
