"""Pending proposals from background reviews: list, display, approve, reword or reject them.

```python
from hermes_nb.agent.approvals import open_approvals

approvals = open_approvals()
for each in approvals.waiting():
    print(each.number, each.gist)
print(approvals.approve(1).message)
```

An approved write is validated again against the current memory and skills, and can be undone like
any other write. If writes require approval, `ProposedMemory` and `ProposedSkills` replace memory
and skills. They validate a write immediately, so that the model sees any error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, Unpack

from hermes_nb.agent.prompt_sources import PromptSources
from hermes_nb.agent.proposals import (
    Kind,
    MemoryWrite,
    NotKept,
    Pending,
    Proposal,
    ProposalDecision,
    SkillWrite,
)
from hermes_nb.agent.session.stores import open_store
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.core.errors import ConfigError, ToolError
from hermes_nb.core.protocols import Approval, ApprovalRequest
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Risk, Tool, Toolset
from hermes_nb.memory.curated import CuratedMemory, Outcome, reason_of
from hermes_nb.memory.entries import Operation, WriteRefusal, operations_of
from hermes_nb.memory.history import EntryChange as Entry
from hermes_nb.memory.history import Unusable, WriteOrigin
from hermes_nb.safety.administrator import policy
from hermes_nb.safety.redact import redact
from hermes_nb.skills.editing import Details, SkillChange, SkillOutcome
from hermes_nb.skills.history import SkillOrigin
from hermes_nb.skills.library import Library
from hermes_nb.tools.memory import memory_tools, memory_wording
from hermes_nb.tools.skills import skill_wording, skills

Held = Callable[[str, str], str | None]
"""Returns the reason a write requires approval, or None if it does not.

The arguments are the skill action ("" for memory) and the text to be saved. The result is the
origin of the text, or "" if the origin is not the reason.
"""
KEPT = "not saved yet: the user's approval is pending, as number {number}"
"""Message to the model for a write that requires approval."""


def proposing(
    tools: Toolset,
    *,
    memory: CuratedMemory,
    library: Library,
    pending: Pending,
    held: Held,
    origin: WriteOrigin,
    on_written: Callable[[Outcome], None] = lambda _: None,
) -> Toolset:
    """Return `tools` with memory and skill tools that propose the writes that require approval.

    Args:
        tools: the tools to copy
        memory: the curated memory
        library: the skills
        pending: the queue of proposals
        held: returns the reason a write requires approval, or None if it does not
        origin: the origin of the writes; the turn is added by each call
        on_written: called after each completed write to memory
    """
    held = cache(held)
    notes = ProposedMemory(memory, pending, held=lambda wording: held("", wording))
    changes = ProposedSkills(library, pending, held=held, origin=origin)
    made = memory_tools(notes, source=origin.source, on_written=on_written)
    made += skills(library, changes=changes)
    writing = {name: _proposing_tool(made, name, held) for name in ("memory", "skill_manage")}
    return tools.map(lambda tool: writing.get(tool.name, tool))


class ProposedMemory:
    """A curated memory that proposes writes for which `held(wording)` is not None."""

    def __init__(
        self, memory: CuratedMemory, pending: Pending, *, held: Callable[[str], str | None]
    ) -> None:
        self._memory, self._pending, self._held = memory, pending, held

    def apply(
        self,
        target: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        origin: WriteOrigin | None = None,
    ) -> Outcome:
        """Apply a batch, or propose it if it requires approval; return errors as outcomes."""
        held = self._held(memory_wording({"operations": list(operations)}))
        if held is None:
            return self._memory.apply(target, operations, origin=origin)
        try:
            changes = self._memory.preview(target, operations)
            write = MemoryWrite(target=target, steps=_with_full_entries(operations, changes))
            made = self._pending.propose(write, _from(origin or WriteOrigin(source="review"), held))
        except (WriteRefusal, Unusable, OSError, NotKept) as error:
            return self._outcome(target, reason_of(error), applied=False)
        return self._outcome(target, KEPT.format(number=made.number), applied=True)

    def preview(self, target: str, operations: Sequence[Mapping[str, Any]]) -> tuple[Entry, ...]:
        """Return the changes that the batch would make."""
        return self._memory.preview(target, operations)

    def _outcome(self, target: str, message: str, *, applied: bool) -> Outcome:
        return Outcome(
            target=target, applied=applied, message=message, usage=self._memory.usage(target)
        )


class ProposedSkills:
    """Makes changes to skills, or proposes those for which `held(action, wording)` is not None."""

    def __init__(
        self,
        library: Library,
        pending: Pending,
        *,
        held: Held,
        origin: WriteOrigin,
    ) -> None:
        self._library, self._pending = library, pending
        self._held, self._origin = held, origin

    def manage(self, action: str, name: str = "", **details: Unpack[Details]) -> SkillOutcome:
        """Make a change, or propose it if it requires approval; return errors as outcomes."""
        change = SkillChange(action=action, name=name.strip(), **details)
        held = self._held(action, skill_wording(details))
        if held is None:
            return self._library.manage(action, name, **details)
        try:
            made = self._propose(change, held)
        except (ToolError, Unusable, OSError, NotKept) as error:
            return SkillOutcome(applied=False, message=reason_of(error), action=action, name=name)
        message = KEPT.format(number=made.number)
        return SkillOutcome(applied=True, message=message, action=action, name=change.name)

    def _propose(self, change: SkillChange, held: str) -> Proposal:
        if (other := self._unborn(change)) is not None:
            raise NotKept(
                f"skill {change.name!r} is itself pending the user's approval, as {other.number}; "
                "it cannot be changed until it is approved"
            )
        self._library.preview(change.action, change.name, **details_of(change))
        if change.action not in ("create", "patch"):  # a patch contains the text it replaces
            change = replace(change, seen=self._library.seen(change))
        origin = _from(replace(self._origin, turn=change.origin.turn), held)
        return self._pending.propose(SkillWrite(change=change), origin)

    def _unborn(self, change: SkillChange) -> Proposal | None:
        """Return the pending proposal that would create the skill to be changed, or None."""
        for each in self._pending.waiting():
            write = each.write
            if (
                isinstance(write, SkillWrite)
                and write.change.action == "create" != change.action
                and write.change.name == change.name
            ):
                return each
        return None


def details_of(change: SkillChange, origin: SkillOrigin | None = None) -> Details:
    """Return a change as keyword arguments for the skill library."""
    return Details(
        content=change.content,
        category=change.category,
        file_path=change.file_path,
        file_content=change.file_content,
        old_string=change.old_string,
        new_string=change.new_string,
        replace_all=change.replace_all,
        seen=change.seen,
        origin=origin or change.origin,
    )


def _proposing_tool(tools: Toolset, name: str, held: Held) -> Tool:
    """Return a tool whose calls count as reads if they only propose a write and save nothing."""
    tool = tools.get(name)
    assert tool is not None  # noqa: S101 - the toolsets above have it
    usual = tool.risk_of or (lambda _: tool.risk)
    wording = tool.wording
    assert wording is not None  # noqa: S101 - both tools have one

    def risk(arguments: Mapping[str, Any]) -> Risk:
        action = str(arguments.get("action")) if name == "skill_manage" else ""
        waits = held(action, wording(arguments)) is not None
        return Risk.READ if waits else usual(arguments)

    return replace(tool, risk_of=risk)


def _from(origin: WriteOrigin, held: str) -> WriteOrigin:
    """Return a proposal's origin, with the origin of its text if known."""
    return replace(origin, source=f"{origin.source}, {held}") if held else origin


def _with_full_entries(
    operations: Sequence[Mapping[str, Any]], changes: Sequence[Entry]
) -> tuple[Operation, ...]:
    """Return the steps, each with the full text of the memory entry to which it applies."""
    return tuple(
        replace(step, old_text=change.before)
        for step, change in zip(operations_of(operations), changes, strict=True)
    )


PROBLEM = 300
"""Maximum length of a failed write's stored error, in characters."""
_MADE = "had already been saved"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionResult:
    """The result of a decision."""

    done: bool
    """Whether it succeeded; if not, the proposal is still pending."""
    message: str
    """A message to the user."""
    proposal: Proposal
    """The proposal that was decided on."""

    def __bool__(self) -> bool:
        """Return whether it succeeded."""
        return self.done


class Approvals:
    """The pending proposals in one Hermes directory."""

    def __init__(self, knowledge: PromptSources) -> None:
        self.pending = Pending(knowledge.settings.home)
        self._known = knowledge

    def waiting(self, kind: Kind | None = None) -> list[Proposal]:
        """Return the pending proposals, oldest first, of one kind or both.

        Raises ConfigError if the queue cannot be read.
        """
        try:
            found = self.pending.waiting()
        except (OSError, Unusable) as error:
            raise ConfigError(f"the pending changes cannot be read: {error}") from error
        return [each for each in found if kind is None or each.kind == kind]

    def shown(self, proposal: Proposal) -> str:
        """Return a proposal's current effect: a diff, new text, or an error."""
        try:
            return self._preview(proposal)
        except (ToolError, WriteRefusal, Unusable, OSError) as error:
            return f"it cannot be saved at present: {error}"

    def approve(
        self, number: int, *, text: str | None = None, shown: str | None = None
    ) -> DecisionResult:
        """Save a pending proposal.

        If it cannot be saved now, or if its effect differs from the displayed one, the proposal
        stays pending and the reason is returned.

        Args:
            number: the proposal's number
            text: replaces the text that the proposal would add to memory
            shown: the displayed effect of the proposal, None to skip the comparison

        Raises:
            ConfigError: no proposal has that number, or it cannot take a `text`
        """
        with self._deciding(number) as decision:
            proposal = decision.proposal
            # A killed process may have saved the write without recording that.
            if proposal.begun and self._is_made(proposal):
                decision.done()
                return DecisionResult(done=True, message=f"{number} {_MADE}", proposal=proposal)
            wanted = proposal if text is None else _reworded(proposal, text)
            problem = self._problem(wanted)
            if shown is not None and not problem and shown != self.shown(wanted):
                problem = "its effect has changed since it was displayed; review it again"
            if not problem:
                decision.begin(wanted)
                applied, message = self._make(wanted)
                problem = "" if applied else message
            if problem:
                decision.put_back(one_line(redact(problem), PROBLEM))
                return DecisionResult(done=False, message=problem, proposal=proposal)
            decision.done()
            return DecisionResult(done=True, message=message, proposal=wanted)

    def reject(self, number: int) -> DecisionResult:
        """Discard a proposal and don't propose it again; raise ConfigError if unknown."""
        with self._deciding(number) as decision:
            proposal = decision.proposal
            if proposal.begun and self._is_made(proposal):
                decision.done()
                message = f"{number} {_MADE}; use undo to revert it"
            else:
                decision.refuse()
                message = f"{number} was rejected: {proposal.gist}"
            return DecisionResult(done=True, message=message, proposal=proposal)

    @contextmanager
    def _deciding(self, number: int) -> Iterator[ProposalDecision]:
        try:
            with self.pending.deciding(number) as decision:
                yield decision
        except LookupError as error:
            raise ConfigError(str(error.args[0])) from error
        except (OSError, Unusable) as error:
            raise ConfigError(f"your decision could not be saved: {reason_of(error)}") from error

    def _problem(self, proposal: Proposal) -> str:
        """Return the reason a proposal cannot be saved now, or "" if it can."""
        try:
            self._preview(proposal)
        except (ToolError, WriteRefusal, Unusable) as error:
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
        if gone := self._missing_entry(write):
            return False, gone
        outcome: Outcome = self._known.memory.apply(
            write.target, write.steps, origin=proposal.origin
        )
        if outcome.applied:
            self._known.written(outcome)
        return outcome.applied, outcome.message

    def _missing_entry(self, write: MemoryWrite) -> str:
        """Return a message if an entry to be changed was itself changed or removed, otherwise "".

        Without this check, a step could match a different entry that contains the same words.
        """
        there = self._known.memory.entries(write.target)
        for step in write.steps:
            new = [earlier.content for earlier in write.steps]
            if step.old_text and step.old_text not in (*there, *new):
                return f"the entry has been changed or removed since: {step.old_text!r}"
        return ""

    def _is_made(self, proposal: Proposal) -> bool:
        """Return whether a process that died while writing had completed the write."""
        write = proposal.write
        if isinstance(write, SkillWrite):
            return self._known.library.has_made(proposal.id)
        there = self._known.memory.entries(write.target)
        new = [step.content for step in write.steps if step.content]
        old = [step.old_text for step in write.steps if step.old_text not in ("", *new)]
        return all(text in there for text in new) and not any(text in there for text in old)

    def _preview(self, proposal: Proposal) -> str:
        write = proposal.write
        if isinstance(write, SkillWrite):
            change = write.change
            return self._known.library.preview(change.action, change.name, **details_of(change))
        if gone := self._missing_entry(write):
            raise WriteRefusal(gone)
        changes = self._known.memory.preview(write.target, write.steps)
        return "\n".join(map(_sides, changes))


def open_approvals(home: str | Path | None = None) -> Approvals:
    """Return the proposals in a Hermes directory (default: `HERMES_HOME`)."""
    settings = load_settings(home=home)
    store = open_store(settings, lambda _: None)
    return Approvals(PromptSources(settings, workdir=Path.cwd(), store=store, tell=lambda _: None))


def _reworded(proposal: Proposal, text: str) -> Proposal:
    """Replace the text in a proposal to add or change one memory entry.

    Raises `ConfigError` for any other proposal.
    """
    write = proposal.write
    steps = write.steps if isinstance(write, MemoryWrite) else ()
    if not isinstance(write, MemoryWrite) or len(steps) != 1 or steps[0].action == "remove":
        raise ConfigError(
            f"{proposal.number} is not a single memory entry, so its text cannot be changed here; "
            "approve it and edit the result, or reject it"
        )
    step = Operation(action=steps[0].action, content=text.strip(), old_text=steps[0].old_text)
    return replace(proposal, write=replace(write, steps=(step,)))


def _sides(change: Entry) -> str:
    sides = ((change.before, "-"), (change.after, "+"))
    return "\n".join(f"{mark}{line}" for text, mark in sides if text for line in text.split("\n"))


def unanswered(request: ApprovalRequest, remedy: str) -> str:
    """Explain that a call was refused because there is no user to ask.

    `remedy` says how to allow such calls.
    """
    if request.in_every_mode:
        return (
            "no one can approve calls here, and this one needs approval in every mode: "
            f"{request.why}"
        )
    if why := policy().why("modes", "all"):
        return f"no one can approve calls here, so it was not run; {why}"
    return f"no one can approve calls here, so it was not run; {remedy} allows such calls"


class RefusingApprover:
    """The approver for non-interactive use: it refuses everything."""

    async def ask(self, request: ApprovalRequest) -> Approval:
        """Refuse the call and explain to the model why."""
        return Approval("deny", unanswered(request, "Hermes(approve='all')"))


def answer_of(typed: str, request: ApprovalRequest) -> Approval:
    """Convert typed text to an answer; anything but an offered approval is a denial."""
    answer = typed.strip()
    if request.choices is not None:
        chosen = dict(zip(map(str, range(1, 100)), request.choices, strict=False))
        return Approval("once", chosen.get(answer, answer)) if answer else Approval("deny")
    word = answer.lower()
    if word in ("y", "yes"):
        return Approval("once")
    if request.runs and word in ("r", "run"):
        return Approval("run")
    if request.turn and word in ("t", "turn"):
        return Approval("turn")
    if request.shape and word in ("a", "always"):
        return Approval("always")
    if request.outside and word in ("o", "outside"):
        return Approval("outside")
    reason = "" if word in ("", "n", "no") else answer
    return Approval("deny", reason)
