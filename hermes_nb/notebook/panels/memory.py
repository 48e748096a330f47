"""The Memory tab: the memory entries with their origins, and controls to change them.

The section for pending proposals is also part of the Skills tab.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

from ipywidgets import Textarea, Widget

from hermes_nb.agent.approvals import DecisionResult
from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.agent.proposals import Kind, MemoryWrite, Proposal
from hermes_nb.agent.session.session import REVIEW
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import (
    BackgroundEvent,
    Event,
    ReviewFinished,
    ReviewStarted,
    ToolFinished,
    TurnStarted,
)
from hermes_nb.core.threads import in_thread
from hermes_nb.memory.curated import FILES, Outcome
from hermes_nb.memory.entries import Fill, Operation
from hermes_nb.memory.history import BY_HAND, EntryChange, MemoryRecord, Unusable, undone
from hermes_nb.notebook.display.tables import ago
from hermes_nb.notebook.panels.style import (
    WHOLE,
    caution,
    coded,
    dim,
    document,
    heading,
    meter,
    paragraphs,
    shown,
)
from hermes_nb.notebook.panels.widgets import (
    Act,
    ActionRefused,
    Listing,
    ListItem,
    Tab,
    TabContext,
    outcome,
    write,
)
from hermes_nb.safety.redact import redact
from hermes_nb.safety.scan import scan

NAMES = {"memory": "Notes", "user": "You"}
"""Titles of the memories."""
PLANTED = (
    "Hidden from the model: it looks like a planted instruction. Forget it if it is not yours."
)
VERBS = {"add": "added", "replace": "changed", "remove": "removed"}
"""Past tense of each action."""
DIED = "Saving it was interrupted: it may already be saved."
RECENT = 5
"""Number of latest changes to list with an undo button."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEntry:
    """An entry in a memory file, or a draft of one in the editor."""

    target: str
    """Name of its memory: `memory` or `user`."""
    text: str = ""
    """Its text, or "" for a new entry."""
    number: int = 0
    """Index among entries with the same text."""
    record: MemoryRecord | None = None
    """The change that wrote it, or None if unknown."""
    reviewed: str = ""
    """The review that wrote it, such as "the last review"; "" if none did."""
    planted: bool = False
    """Whether it is omitted from prompts because it looks malicious."""
    proposal: int = 0
    """Number of its pending proposal, or 0 for none."""

    @property
    def key(self) -> str:
        """A key that identifies the entry in a list."""
        return f"{self.target}/{self.number}/{self.text}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Recollection:
    """Both memories and their history."""

    entries: Mapping[str, tuple[MemoryEntry, ...]]
    """Entries by memory, in file order."""
    usage: Mapping[str, Fill]
    """Size of each memory and its limit."""
    recent: tuple[MemoryRecord, ...] = ()
    """The latest changes that have not been undone."""
    problem: str = ""
    """The reason the history cannot be read, or "" if it can."""

    def holds(self, entry: MemoryEntry) -> bool:
        """Return whether an entry is unchanged in its file."""
        return not entry.proposal and any(
            each.key == entry.key for each in self.entries[entry.target]
        )


class MemoryTab(Tab):
    """The memory entries, each with buttons to edit and forget it, and the latest changes."""

    title = "Memory"
    events = (TurnStarted, ReviewStarted, ReviewFinished)

    def __init__(self, place: TabContext) -> None:
        super().__init__(place)
        self._known: PromptSources = place.agent.knowledge
        self._now: Recollection | None = None
        self._queue = PendingProposals()
        self._waiting = PendingSection(place, "memory", edit=self._reword)
        self._editing: MemoryEntry | None = None
        kit = place.kit
        self._text = kit.field("The entry's text", Textarea, rows=4)
        self._hint = kit.markup("", "hermes-small", "hermes-dim")
        save = kit.push(Act("Save", "save the entry", self._save), "hermes-primary")
        leave = partial(self._edit, None)
        cancel = kit.push(Act("Cancel", "close without saving", leave, here=True))
        buttons = kit.box(save.widget, cancel.widget, line=True)
        self._editor = kit.box(self._text, buttons, self._hint)
        self._learned = kit.markup()
        self._sections = {target: _Section(self, target) for target in FILES}
        self._recent_head = kit.markup()
        self._recent = Listing[MemoryRecord](kit, self._change)
        self.widget.children = (
            self._learned,
            self._waiting.widget,
            *(section.widget for section in self._sections.values()),
            self._recent_head,
            self._recent.widget,
        )

    def read(self) -> tuple[Recollection, PendingProposals]:
        """Return the state to show."""
        return recollect(self._known), self._waiting.read()

    def show(self, found: tuple[Recollection, PendingProposals]) -> None:
        """Show a state."""
        self._now, self._queue = found
        self._draw()

    def concerned(self, event: Event | BackgroundEvent) -> bool:
        """Return whether an event changes the tab."""
        if isinstance(event, ToolFinished):
            return event.call.name == "memory"
        return super().concerned(event)

    def line(self, entry: MemoryEntry) -> ListItem:
        """Return an entry's list item."""
        secret = redact(entry.text) != entry.text
        forget = {"action": "remove", "old_text": entry.text}
        acts = [
            Act(
                "edit",
                "edit this entry",
                partial(self._edit, entry),
                off="it seems to contain a secret; edit the file yourself" if secret else "",
                here=True,
            ),
            Act("forget", "remove this entry", partial(self._changed, entry.target, forget)),
        ]
        if entry.record is not None and entry.reviewed:
            acts.append(self._undo(entry.record, "undo this change of the review"))
        return ListItem(
            key=entry.key,
            text=paragraphs(entry.text) + (caution(PLANTED) if entry.planted else ""),
            foot=_provenance(entry),
            acts=tuple(acts),
        )

    def edit_new(self, target: str) -> None:
        """Open the editor for a new entry."""
        self._edit(MemoryEntry(target=target))

    def _reword(self, proposal: Proposal) -> None:
        step, write_ = _single(proposal), proposal.write
        if step is not None and isinstance(write_, MemoryWrite):
            self._edit(
                MemoryEntry(target=write_.target, text=step.content, proposal=proposal.number)
            )

    def _change(self, record: MemoryRecord) -> ListItem:
        change = record.changes[0] if record.changes else EntryChange(action="")
        more = f" and {len(record.changes) - 1} more" if len(record.changes) > 1 else ""
        text = coded(change.after or change.before, 100)
        did = f"{dim(VERBS.get(change.action, 'wrote'))} {text}{more}"
        act = self._undo(record, "undo this change")
        return ListItem(key=record.id, text=did, foot=_where(record), acts=(act,))

    def _undo(self, record: MemoryRecord, tip: str) -> Act:
        undo = partial(self._known.memory.undo, record.id, origin=BY_HAND)
        return Act("undo", tip, partial(self._written, undo))

    async def _changed(self, target: str, step: Mapping[str, str]) -> str:
        return await self._written(
            partial(self._known.memory.apply, target, [step], origin=BY_HAND)
        )

    async def _save(self) -> str:
        entry, text = self._editing, self._text.value
        if entry is None:
            raise ActionRefused("nothing is being edited")
        if entry.proposal:
            approvals = self.place.agent.runtime.approvals
            said = await _decided(approvals.approve, entry.proposal, text=text)
        else:
            step = {"action": "add", "content": text}
            if entry.text and self._is_there(entry):
                step = {"action": "replace", "old_text": entry.text, "content": text}
            said = await self._changed(entry.target, step)
        self._edit(None)
        return said

    async def _written(self, write_it: Callable[[], Outcome]) -> str:
        """Write to memory and return a report; raise `ActionRefused` if the write was refused."""

        def write_and_pass_on() -> Outcome:
            done = write_it()
            if done.applied:
                self._known.written(done)
            return done

        done = await in_thread(write_and_pass_on)
        told = outcome(done.message, done=done.applied)
        return f"{told} New sessions use it; run %hermes reload to use it in this one."

    def _edit(self, entry: MemoryEntry | None) -> None:
        """Open the editor for an entry, or close it; move the focus accordingly."""
        left, self._editing = self._editing, entry
        if entry is not None:
            write(self._text, entry.text)
        self._draw()
        if entry is not None:
            self._text.focus()
        elif left is not None:
            self._sections[left.target].add.focus()

    def _is_there(self, entry: MemoryEntry) -> bool:
        return self._now is not None and self._now.holds(entry)

    def _draw(self) -> None:
        now, editing = self._now, self._editing
        if now is None:
            return
        hint = ""
        if editing is not None and editing.proposal:
            hint = f"Save approves proposal {editing.proposal} with this text."
        elif editing is not None and editing.text and not self._is_there(editing):
            hint = (
                "This entry has been changed or removed since; Save adds your text as a new entry."
            )
        write(self._hint, hint)
        self._waiting.show(self._queue)
        for target, section in self._sections.items():
            mine = editing if editing is not None and editing.target == target else None
            section.show(now, mine, self._editor)
        happened = self.place.agent.hub
        review = happened.reviewed
        told = ""
        if happened.reviewing is not None:
            told = dim("◌ reviewing the conversation")
        elif review is not None and review.saved:
            saved = "; ".join(shown(line, 120) for line in review.saved)
            told = dim(f"Learned {ago(happened.reviewed_at)}: {saved}")
        write(self._learned, told)
        problem = caution(shown(now.problem)) if now.problem else ""
        write(self._recent_head, problem + (heading("Last changes") if now.recent else ""))
        self._recent.show(now.recent)


class _Section:
    """The tab's section for one of the two memories."""

    def __init__(self, tab: MemoryTab, target: str) -> None:
        kit = tab.place.kit
        self._target = target
        self._head = kit.markup()
        self._new = kit.box()
        tip = f"add an entry to {FILES[target]}"
        add = Act("add", tip, partial(tab.edit_new, target), here=True)
        self._entries = Listing[MemoryEntry](kit, tab.line, empty="Nothing yet.")
        self.add = kit.push(add, "hermes-link").widget
        self.widget = kit.box(self._head, self._new, self._entries.widget, self.add)

    def show(self, now: Recollection, editing: MemoryEntry | None, editor: Widget) -> None:
        fill, entries = now.usage[self._target], now.entries[self._target]
        full = f"{fill.used:,} / {fill.limit:,}"
        label = f"{NAMES[self._target]}: {fill.used:,} of {fill.limit:,} characters in use"
        write(self._head, heading(NAMES[self._target], full) + meter(fill.used, fill.limit, label))
        here = editing is not None and now.holds(editing)
        write(self._new, (editor,) if editing is not None and not here else (), "children")
        self._entries.open(editing.key if editing is not None and here else "", editor)
        self._entries.show(entries)


def recollect(known: PromptSources) -> Recollection:
    """Read both memories and their history."""
    problem = ""
    try:
        records = known.memory.history()
    except (OSError, Unusable) as error:
        records, problem = [], f"the history of the entries cannot be read: {error}"
    gone = undone(list(reversed(records)))
    standing = [record for record in records if record.id not in gone]
    review = next((r.origin for r in standing if r.origin.source.startswith(REVIEW)), None)
    entries: dict[str, list[MemoryEntry]] = {target: [] for target in FILES}
    for target, found in entries.items():
        made: dict[str, MemoryRecord] = {}  # the latest write of each text
        for record in standing:
            for change in record.changes if record.target == target else ():
                made.setdefault(change.after, record)
        seen: Counter[str] = Counter()
        for text in known.memory.entries(target):
            by, maker = "", made.get(text)
            if maker is not None and maker.origin.source.startswith(REVIEW):
                by = "the last review" if maker.origin == review else "a review"
            found.append(
                MemoryEntry(
                    target=target,
                    text=text,
                    number=seen[text],
                    record=maker,
                    reviewed=by,
                    planted=_looks_planted(text),
                )
            )
            seen[text] += 1
    return Recollection(
        entries={target: tuple(found) for target, found in entries.items()},
        usage={target: known.memory.usage(target) for target in FILES},
        recent=tuple(record for record in standing if not record.undoes)[:RECENT],
        problem=problem,
    )


@lru_cache(maxsize=256)
def _looks_planted(text: str) -> bool:
    """Return whether `memory.shown` would omit the entry from prompts."""
    return scan(text, name="memory", strict=True).verdict != "clean"


def _provenance(entry: MemoryEntry) -> str:
    if entry.record is None:
        return "origin unknown"
    if entry.reviewed:
        _, _, words = entry.record.origin.source.partition(", ")
        learned = ", ".join(filter(None, (entry.reviewed, shown(words, 80))))
        return f"learned by {learned} · {ago(entry.record.at)}"
    return _where(entry.record)


def _where(record: MemoryRecord) -> str:
    origin = record.origin
    if origin.source == "user":
        by = "by hand"
    elif origin.source.startswith(REVIEW):
        by = f"by a {origin.source}"
    else:
        turn = f"turn {origin.turn}" if origin.turn else origin.source
        by = f"{Path(origin.notebook).name} · {turn}" if origin.notebook else turn
    return f"{shown(by, 80)} · {ago(record.at)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingProposals:
    """Pending proposals of one kind."""

    held: tuple[tuple[Proposal, str], ...] = ()
    """The proposals, each with a preview of its current effect."""
    problem: str = ""
    """The reason they cannot be read, or "" if they can."""


class PendingSection:
    """A section with the pending proposals of one kind; `edit` opens one in an editor."""

    def __init__(
        self, place: TabContext, kind: Kind, *, edit: Callable[[Proposal], None] | None = None
    ) -> None:
        self._agent, self._kind, self._edit = place.agent, kind, edit
        self._head = place.kit.markup()
        self._list = Listing[tuple[Proposal, str]](place.kit, self._line)
        self.widget = place.kit.box()

    def read(self) -> PendingProposals:
        """Return the proposals to show."""
        approvals = self._agent.runtime.approvals
        try:
            waiting = approvals.waiting(self._kind)
        except ConfigError as error:
            return PendingProposals(problem=str(error))
        return PendingProposals(held=tuple((each, approvals.shown(each)) for each in waiting))

    def show(self, queue: PendingProposals) -> None:
        """Show proposals."""
        head = heading("Waiting for your approval", str(len(queue.held))) if queue.held else ""
        write(self._head, caution(shown(queue.problem)) if queue.problem else head)
        self._list.show(queue.held)
        parts = (self._head, self._list.widget) if queue.held else (self._head,)
        write(self.widget, parts if queue.held or queue.problem else (), "children")

    def _line(self, item: tuple[Proposal, str]) -> ListItem:
        proposal, would = item
        marks = caution(DIED) if proposal.begun else ""
        if proposal.problem:
            marks += caution(shown(f"It could not be saved: {proposal.problem}", 300))
        return ListItem(
            key=proposal.id,
            text=f"{coded(proposal.gist)}{marks}{document(would)}",
            foot=f"by a {shown(proposal.origin.source, 80)} · {ago(proposal.at)}",
            acts=self._acts(proposal, would),
        )

    def _acts(self, proposal: Proposal, would: str) -> tuple[Act, ...]:
        approvals, number = self._agent.runtime.approvals, proposal.number
        unseen = f"too long for the panel; %hermes {self._kind} pending {number} shows it"
        approve = Act(
            "approve",
            "save it; you can undo it",
            partial(_decided, partial(approvals.approve, shown=would), number),
            off=unseen if len(would) > WHOLE else "",
        )
        reject = Act(
            "reject",
            "drop it, and do not propose it again",
            partial(_decided, approvals.reject, number),
        )
        step = _single(proposal)
        if self._edit is None or step is None or redact(step.content) != step.content:
            return approve, reject
        tip, do = "edit and save it", partial(self._edit, proposal)
        return approve, Act("edit", tip, do, here=True), reject


async def _decided(decide: Callable[..., DecisionResult], number: int, **words: str) -> str:
    done = await in_thread(decide, number, **words)
    return outcome(done.message, done=done.done)


def _single(proposal: Proposal) -> Operation | None:
    """Return a proposal's only step if it adds or changes one memory entry, otherwise None."""
    write_ = proposal.write
    if isinstance(write_, MemoryWrite) and len(write_.steps) == 1 and write_.steps[0].content:
        return write_.steps[0]
    return None
