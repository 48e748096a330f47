"""Memory and skills as a review writes them where the user has the last word: it only proposes.

Both objects stand in for what they wrap, in front of the very same tools. What is proposed is
checked as if it were written now, so that the model hears at once what is wrong with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Unpack

from hermes_nb.core.errors import ToolError
from hermes_nb.core.tools import Risk, Tool, Toolset
from hermes_nb.learning.pending import NotKept, Pending
from hermes_nb.learning.proposals import MemoryWrite, Proposal, SkillWrite
from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.memory.curation.history import Change as Entry
from hermes_nb.memory.curation.history import Origin
from hermes_nb.memory.curation.notefile import Unusable
from hermes_nb.memory.curation.operations import Operation, Refusal, operations_of
from hermes_nb.memory.curation.outcome import Outcome, reason_of
from hermes_nb.skills.editing import Change, Details
from hermes_nb.skills.editing import Outcome as SkillOutcome
from hermes_nb.skills.ledger import Origin as SkillOrigin
from hermes_nb.skills.library import Library
from hermes_nb.tools.skill_tools import skill_wording, skills
from hermes_nb.tools.stores import memory_tools, memory_wording

Held = Callable[[str, str], str | None]
"""Says whether a write is to wait, by the action of a change of skills (else "") and its wording.

None lets it through. A text says where the wording comes from, "" that it waits in any case.
"""
KEPT = "not saved yet: it waits for the user's approval as number {number}"


def proposing(
    tools: Toolset,
    *,
    memory: CuratedMemory,
    library: Library,
    pending: Pending,
    held: Held,
    origin: Callable[[int], Origin],
    on_written: Callable[[Outcome], None] = lambda _: None,
) -> Toolset:
    """Return `tools` with those that write memory and skills proposing what is `held`.

    `origin(turn)` says where a write comes from.
    """
    held = cache(held)
    notes = ProposedMemory(memory, pending, held=lambda wording: held("", wording))
    changes = ProposedSkills(library, pending, held=held, origin=origin)
    made = memory_tools(notes, where=lambda at: origin(at.turn), on_written=on_written)
    made += skills(library, session=lambda: origin(0).session, changes=changes)
    writing = {name: _kept(made, name, held) for name in ("memory", "skill_manage")}
    return tools.map(lambda tool: writing.get(tool.name, tool))


class ProposedMemory:
    """The curated memory with every write kept for the user, as far as `held(wording)` says so."""

    def __init__(
        self, memory: CuratedMemory, pending: Pending, *, held: Callable[[str], str | None]
    ) -> None:
        self._memory, self._pending, self._held = memory, pending, held

    def apply(
        self,
        target: str,
        operations: Sequence[Mapping[str, Any]],
        *,
        origin: Origin | None = None,
    ) -> Outcome:
        """Propose a batch, or apply it where nothing is held; a refusal is an outcome."""
        held = self._held(memory_wording({"operations": list(operations)}))
        if held is None:
            return self._memory.apply(target, operations, origin=origin)
        try:
            changes = self._memory.preview(target, operations)
            write = MemoryWrite(target=target, steps=_settled(operations, changes))
            made = self._pending.propose(write, _from(origin or Origin(source="review"), held))
        except (Refusal, Unusable, OSError, NotKept) as error:
            return self._outcome(target, reason_of(error), applied=False)
        return self._outcome(target, KEPT.format(number=made.number), applied=True)

    def preview(self, target: str, operations: Sequence[Mapping[str, Any]]) -> tuple[Entry, ...]:
        """Return what the batch would do."""
        return self._memory.preview(target, operations)

    def _outcome(self, target: str, message: str, *, applied: bool) -> Outcome:
        return Outcome(
            target=target, applied=applied, message=message, usage=self._memory.usage(target)
        )


class ProposedSkills:
    """Changes of skills kept for the user, as far as `held(action, wording)` says so."""

    def __init__(
        self,
        library: Library,
        pending: Pending,
        *,
        held: Held,
        origin: Callable[[int], Origin],
    ) -> None:
        self._library, self._pending = library, pending
        self._held, self._origin = held, origin

    def manage(self, action: str, name: str = "", **details: Unpack[Details]) -> SkillOutcome:
        """Propose a change, or make it where nothing is held; a refusal is an outcome."""
        change = Change(action=action, name=name.strip(), **details)
        held = self._held(action, skill_wording(details))
        if held is None:
            return self._library.manage(action, name, **details)
        try:
            made = self._propose(change, held)
        except (ToolError, Unusable, OSError, NotKept) as error:
            return SkillOutcome(applied=False, message=reason_of(error), action=action, name=name)
        message = KEPT.format(number=made.number)
        return SkillOutcome(applied=True, message=message, action=action, name=change.name)

    def _propose(self, change: Change, held: str) -> Proposal:
        if (other := self._unborn(change)) is not None:
            message = (
                f"skill {change.name!r} itself waits for the user's approval, as {other.number}; "
                "it cannot be changed before"
            )
            raise NotKept(message)
        self._library.preview(change.action, change.name, **details_of(change))
        if change.action not in ("create", "patch"):  # a patch says itself what it is for
            change = replace(change, seen=self._library.seen(change))
        origin = _from(self._origin(change.origin.turn), held)
        return self._pending.propose(SkillWrite(change=change), origin)

    def _unborn(self, change: Change) -> Proposal | None:
        """Return what would make the skill that a change is about, if that waits, too."""
        for each in self._pending.waiting():
            write = each.write
            if (
                isinstance(write, SkillWrite)
                and write.change.action == "create" != change.action
                and write.change.name == change.name
            ):
                return each
        return None


def details_of(change: Change, origin: SkillOrigin | None = None) -> Details:
    """Return a change as the library takes it."""
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


def _kept(tools: Toolset, name: str, held: Held) -> Tool:
    """Return a tool whose calls only read where they are held: nothing was saved by them."""
    tool = tools.get(name)
    assert tool is not None  # noqa: S101 - the toolsets above have it
    usual = tool.risk_of or (lambda _: tool.risk)
    wording = tool.wording
    assert wording is not None  # noqa: S101 - both tools say theirs

    def risk(arguments: Mapping[str, Any]) -> Risk:
        action = str(arguments.get("action")) if name == "skill_manage" else ""
        waits = held(action, wording(arguments)) is not None
        return Risk.READ if waits else usual(arguments)

    return replace(tool, risk_of=risk)


def _from(origin: Origin, held: str) -> Origin:
    """Return the origin of a write that waits; it says where the wording comes from, if known."""
    return replace(origin, source=f"{origin.source}, {held}") if held else origin


def _settled(
    operations: Sequence[Mapping[str, Any]], changes: Sequence[Entry]
) -> tuple[Operation, ...]:
    """Return steps that mean the whole entries which they were found to be about."""
    return tuple(
        replace(step, old_text=change.before)
        for step, change in zip(operations_of(operations), changes, strict=True)
    )
