"""The toolset `memory`: save facts for later sessions.

A thin layer: the memory itself checks all writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Literal, NotRequired, Protocol, TypedDict

from hermes_nb.core.errors import ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Arguments, Risk, Tool, ToolContext, Toolset
from hermes_nb.memory.curated import Outcome
from hermes_nb.memory.entries import Action, WriteRefusal
from hermes_nb.memory.history import EntryChange, Unusable, WriteOrigin
from hermes_nb.tools.schema import tool, with_arguments, with_earlier_names

MOST_NOTED = 50_000
"""Maximum characters of a `memory` call. A batch that replaces both memories entirely is far
smaller."""


class MemoryStep(TypedDict):
    """One operation in a batch."""

    action: Action
    """What to do with an entry."""
    content: NotRequired[str]
    """The new text of the entry."""
    old: NotRequired[str]
    """Words that occur only in the entry to change or remove."""


class Notes(Protocol):
    """The storage that the tool writes to: the curated memory or a replacement."""

    def apply(
        self,
        target: str,
        operations: Sequence[Arguments],
        *,
        origin: WriteOrigin | None = None,
    ) -> Outcome:
        """Apply a batch of operations, all or none."""
        ...

    def preview(self, target: str, operations: Sequence[Arguments]) -> tuple[EntryChange, ...]:
        """Return what `apply` would currently change; raise WriteRefusal, Unusable, OSError."""
        ...


def memory_tools(
    memory: Notes,
    *,
    source: str = "agent",
    write_approval: bool = False,
    on_written: Callable[[Outcome], None] = lambda _: None,
) -> Toolset:
    """Return the tool `memory`. A write is recorded together with its call's location.

    Args:
        memory: where the facts are written.
        source: the author, recorded with each write.
        write_approval: if true, each write needs approval, even in modes that allow file edits, and
            the user sees a diff. Otherwise writes are allowed: they are small, recorded, displayed
            and undoable.
        on_written: called after each write, in the thread of the call.
    """
    made = replace(_memory(memory, source, on_written), wording=memory_wording, most=MOST_NOTED)
    if write_approval:

        async def preview(arguments: Arguments) -> str:
            return await asyncio.to_thread(_preview, memory, arguments)

        # A higher risk than a workspace edit, which some modes allow without approval.
        made = replace(made, risk=Risk.WRITE, risk_of=lambda _: Risk.EXECUTE, preview=preview)
    return Toolset([made])


def _memory(memory: Notes, source: str, on_written: Callable[[Outcome], None]) -> Tool:
    # Exclusive: of two calls in one reply, the first may free the space that the second needs.
    @tool(
        name="memory",
        toolset="memory",
        risk=Risk.REMEMBER,
        exclusive=True,
        describe=_memory_gist,
    )
    def memory_tool(
        context: ToolContext,
        action: Action,
        target: Literal["memory", "user"] = "memory",
        content: str = "",
        old: str = "",
        operations: list[MemoryStep] | None = None,
    ) -> str:
        """Save short, lasting facts for later sessions; replace or remove outdated ones.

        Args:
            target: your notes, or the user's profile
            content: the whole new entry
            old: words that only the old entry has
            operations: more steps; all or none are done
        """
        first: MemoryStep = {"action": action, "content": content, "old": old}
        steps = [_stored(step) for step in (first, *(operations or ()))]
        at = context.place
        origin = WriteOrigin(
            session=at.session, turn=at.turn, cell=at.cell, notebook=at.notebook, source=source
        )
        outcome = memory.apply(target, steps, origin=origin)
        if not outcome.applied:
            raise ToolError(outcome.message)
        on_written(outcome)
        return outcome.message

    return with_arguments(with_earlier_names(memory_tool, {"old_text": "old"}), _with_action)


def _with_action(arguments: Arguments) -> Arguments:
    """Return the arguments; if the call itself has no action, use the first of `operations`."""
    operations = arguments.get("operations")
    if not isinstance(operations, list) or not operations or not isinstance(operations[0], Mapping):
        return arguments
    if arguments.get("content") or arguments.get("old") or arguments.get("old_text"):
        return arguments
    own = {key: value for key, value in arguments.items() if key == "target"}
    return {**own, **operations[0], "operations": operations[1:]}


def _stored(step: MemoryStep) -> Arguments:
    """Return a step in the form that the memory accepts."""
    return {
        "action": step["action"],
        "content": step.get("content", ""),
        "old_text": step.get("old", ""),
    }


def _steps(arguments: Arguments) -> list[Arguments]:
    """Return a call's steps, by current or earlier names."""
    given = _with_action(arguments)
    return [
        {**step, "old_text": step.get("old") or step.get("old_text", "")}
        for step in (given, *(given.get("operations") or ()))
    ]


def _preview(memory: Notes, arguments: Arguments) -> str:
    """Return a call's diff for approval."""
    target = str(arguments.get("target", "memory"))
    try:
        changes = memory.preview(target, _steps(arguments))
    except (WriteRefusal, Unusable, OSError) as error:
        raise ToolError(str(error)) from error
    return "\n".join([f"{target}:", *(_diff(change) for change in changes)])


def _diff(change: EntryChange) -> str:
    sides = ((change.before, "-"), (change.after, "+"))
    return "\n".join(f"{mark}{line}" for text, mark in sides if text for line in text.split("\n"))


def memory_wording(arguments: Mapping[str, object]) -> str:
    """Return all text that a call would save."""
    operations = arguments.get("operations")
    steps = [arguments, *(operations if isinstance(operations, Sequence) else ())]
    contents = (step.get("content") for step in steps if isinstance(step, Mapping))
    return "\n\n".join(text for text in contents if isinstance(text, str) and text)


def _memory_gist(arguments: Arguments) -> str:
    steps = _steps(arguments)
    first = steps[0]
    text = one_line(str(first.get("content") or first.get("old_text") or ""), 80)
    more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
    target = arguments.get("target", "memory")
    return visible(f"{first.get('action', '')} {target}: {text}{more}")
