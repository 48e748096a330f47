"""The user's say over what a review would like to save: look at it, allow it, change it, refuse it.

```python
from hermes_nb.app.approvals import open_approvals

approvals = open_approvals()
for each in approvals.waiting():
    print(each.number, each.gist)
print(approvals.approve(1).message)
```
What is allowed is judged anew, by what memory and skills are then, and undone like any other write.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hermes_nb.app.build import open_store
from hermes_nb.app.config import load_settings
from hermes_nb.app.knowledge import Knowledge
from hermes_nb.core.errors import ConfigError, ToolError
from hermes_nb.core.text import one_line
from hermes_nb.learning.pending import Decision, Pending
from hermes_nb.learning.proposals import Kind, MemoryWrite, Proposal, SkillWrite
from hermes_nb.learning.proposing import details_of
from hermes_nb.memory.curated import Outcome
from hermes_nb.memory.curation.history import Change as Entry
from hermes_nb.memory.curation.notefile import Unusable
from hermes_nb.memory.curation.operations import Operation, Refusal
from hermes_nb.memory.curation.outcome import reason_of
from hermes_nb.safety.redact import redact

PROBLEM = 300
"""Characters that are kept of why something could not be saved."""
_MADE = "was saved before the process that saved it died"


@dataclass(frozen=True, slots=True, kw_only=True)
class Decided:
    """What became of a decision; where it is not `done`, the proposal still waits."""

    done: bool
    message: str
    proposal: Proposal

    def __bool__(self) -> bool:
        """Say whether it is settled."""
        return self.done


class Approvals:
    """What waits for the user of one home, over what Hermes knows there."""

    def __init__(self, knowledge: Knowledge) -> None:
        self.pending = Pending(knowledge.settings.home)
        self._known = knowledge

    def waiting(self, kind: Kind | None = None) -> list[Proposal]:
        """Return what waits, the oldest first, of one kind or of both.

        Raises ConfigError where the queue cannot be read.
        """
        try:
            found = self.pending.waiting()
        except (OSError, Unusable) as error:
            message = f"what waits for your approval cannot be read: {error}"
            raise ConfigError(message) from error
        return [each for each in found if kind is None or each.kind == kind]

    def shown(self, proposal: Proposal) -> str:
        """Return what it would do as things are: a diff, a new text, or why it cannot be done."""
        try:
            return self._would(proposal)
        except (ToolError, Refusal, Unusable, OSError) as error:
            return f"it cannot be saved as things are: {error}"

    def approve(self, number: int, *, text: str | None = None) -> Decided:
        """Save what waits under a number; `text` takes the place of what it would add to memory.

        What cannot be saved as things are is left waiting, with the reason. Raises ConfigError for
        a number under which nothing waits, or a `text` that does not fit.
        """
        with self._deciding(number) as decision:
            proposal = decision.proposal
            if proposal.begun and self._is_made(proposal):
                decision.done()
                return Decided(done=True, message=f"{number} {_MADE}", proposal=proposal)
            wanted = proposal if text is None else _reworded(proposal, text)
            problem = self._problem(wanted)
            if not problem:
                decision.begin(wanted)
                applied, message = self._make(wanted)
                problem = "" if applied else message
            if problem:
                decision.put_back(one_line(redact(problem), PROBLEM))
                return Decided(done=False, message=problem, proposal=proposal)
            decision.done()
            return Decided(done=True, message=message, proposal=wanted)

    def reject(self, number: int) -> Decided:
        """Drop what waits under a number, and do not bring it up again; raise ConfigError."""
        with self._deciding(number) as decision:
            proposal = decision.proposal
            if proposal.begun and self._is_made(proposal):
                decision.done()
                message = f"{number} {_MADE}; undo takes it back"
            else:
                decision.refuse()
                message = f"{number} is dropped: {proposal.gist}"
            return Decided(done=True, message=message, proposal=proposal)

    @contextmanager
    def _deciding(self, number: int) -> Iterator[Decision]:
        try:
            with self.pending.deciding(number) as decision:
                yield decision
        except LookupError as error:
            raise ConfigError(str(error.args[0])) from error
        except (OSError, Unusable) as error:
            message = f"that could not be decided now: {reason_of(error)}"
            raise ConfigError(message) from error

    def _problem(self, proposal: Proposal) -> str:
        """Return why it cannot be saved as things are, "" if it can."""
        try:
            self._would(proposal)
        except (ToolError, Refusal, Unusable) as error:
            return str(error)
        return ""

    def _make(self, proposal: Proposal) -> tuple[bool, str]:
        write = proposal.write
        if isinstance(write, SkillWrite):
            change = write.change
            origin = replace(change.origin, proposal=proposal.id)
            made = self._known.library.manage(
                change.action, change.name, **details_of(change, origin)
            )
            return made.applied, made.message
        if gone := self._gone(write):
            return False, gone
        outcome: Outcome = self._known.memory.apply(
            write.target, write.steps, origin=proposal.origin
        )
        if outcome.applied:
            self._known.written(outcome)
        return outcome.applied, outcome.message

    def _gone(self, write: MemoryWrite) -> str:
        """Return why steps no longer fit: the entry that one is about is not there as it was.

        Words of it may well stand in another entry, which nobody asked to change.
        """
        there = self._known.memory.entries(write.target)
        for step in write.steps:
            new = [earlier.content for earlier in write.steps]
            if step.old_text and step.old_text not in (*there, *new):
                return f"the entry has been changed or removed since: {step.old_text!r}"
        return ""

    def _is_made(self, proposal: Proposal) -> bool:
        """Say whether what was begun, by a process that died, was made."""
        write = proposal.write
        if isinstance(write, SkillWrite):
            return self._known.library.has_made(proposal.id)
        there = self._known.memory.entries(write.target)
        new = [step.content for step in write.steps if step.content]
        old = [step.old_text for step in write.steps if step.old_text not in ("", *new)]
        return all(text in there for text in new) and not any(text in there for text in old)

    def _would(self, proposal: Proposal) -> str:
        write = proposal.write
        if isinstance(write, SkillWrite):
            change = write.change
            return self._known.library.preview(change.action, change.name, **details_of(change))
        if gone := self._gone(write):
            raise Refusal(gone)
        changes = self._known.memory.preview(write.target, write.steps)
        return "\n".join(map(_sides, changes))


def open_approvals(home: str | Path | None = None) -> Approvals:
    """Return what waits for the user of a home, by default of `HERMES_HOME`."""
    settings = load_settings(home=home)
    store = open_store(settings, lambda _: None)
    return Approvals(Knowledge(settings, workdir=Path.cwd(), store=store, tell=lambda _: None))


def _reworded(proposal: Proposal, text: str) -> Proposal:
    """Return a proposal that adds or changes one entry, with another text for it."""
    write = proposal.write
    steps = write.steps if isinstance(write, MemoryWrite) else ()
    if not isinstance(write, MemoryWrite) or len(steps) != 1 or steps[0].action == "remove":
        message = (
            f"{proposal.number} is no single entry of memory; approve it as it is, then edit what "
            "it made, or reject it"
        )
        raise ConfigError(message)
    step = Operation(action=steps[0].action, content=text.strip(), old_text=steps[0].old_text)
    return replace(proposal, write=replace(write, steps=(step,)))


def _sides(change: Entry) -> str:
    sides = ((change.before, "-"), (change.after, "+"))
    return "\n".join(f"{mark}{line}" for text, mark in sides if text for line in text.split("\n"))
