"""The toolset `memory`: save facts for later sessions.

A thin layer: the memory itself checks what is written.
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
from hermes_nb.tools.schema import tool

MOST_NOTED = 50_000
"""Largest `memory` call in characters. A batch that replaces everything in both memories is far
smaller."""


class MemoryStep(TypedDict):
    """One operation of a batch."""

    action: Action
    """What to do with an entry."""
    content: NotRequired[str]
    """The new text of the entry."""
    old_text: NotRequired[str]
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
        """Return what `apply` would change now; raise WriteRefusal, Unusable, OSError."""
        ...


def memory_tools(
    memory: Notes,
    *,
    source: str = "agent",
    write_approval: bool = False,
    on_written: Callable[[Outcome], None] = lambda _: None,
) -> Toolset:
    """Return the tool `memory`.

    A write is recorded with the location of its call.

    Args:
        memory: where the facts are written.
        source: who writes, recorded with each write.
        write_approval: if true, each write needs approval, also in modes that allow edits of files,
            and the user sees a diff. Otherwise writes are allowed: they are small, recorded,
            displayed and undoable.
        on_written: called after each write, in the thread of the call.
    """
    made = replace(_memory(memory, source, on_written), wording=memory_wording, most=MOST_NOTED)
    if write_approval:

        async def preview(arguments: Arguments) -> str:
            return await asyncio.to_thread(_preview, memory, arguments)

        # A higher risk than an edit in the workspace, which some modes allow without approval.
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
        action: Action | None = None,
        target: Literal["memory", "user"] = "memory",
        content: str = "",
        old_text: str = "",
        operations: list[MemoryStep] | None = None,
    ) -> str:
        """Keep short, lasting facts for later sessions; replace or remove what has changed.

        Args:
            target: your notes, or the user's profile
            content: the whole new entry
            old_text: words only the old entry has
            operations: steps, all or none
        """
        steps = _steps(action, content, old_text, operations)
        at = context.place
        origin = WriteOrigin(
            session=at.session, turn=at.turn, cell=at.cell, notebook=at.notebook, source=source
        )
        outcome = memory.apply(target, steps, origin=origin)
        if not outcome.applied:
            raise ToolError(outcome.message)
        on_written(outcome)
        return outcome.message

    return memory_tool


def _steps(
    action: Action | None, content: str, old_text: str, operations: list[MemoryStep] | None
) -> list[Arguments]:
    """Return the operations of a call; raise ToolError if the arguments are ambiguous."""
    if operations and not (content or old_text):
        return [dict(step) for step in operations]
    if operations:
        raise ToolError("give either `operations`, or one action with content and old_text")
    if action is None:
        raise ToolError("give `action`, or `operations`")
    return [{"action": action, "content": content, "old_text": old_text}]


def _preview(memory: Notes, arguments: Arguments) -> str:
    """Return the diff of a call for approval."""
    target = str(arguments.get("target", "memory"))
    steps = _steps(
        arguments.get("action"),
        arguments.get("content", ""),
        arguments.get("old_text", ""),
        arguments.get("operations"),
    )
    try:
        changes = memory.preview(target, steps)
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
    steps = arguments.get("operations") or [arguments]
    first = steps[0]
    text = one_line(str(first.get("content") or first.get("old_text") or ""), 80)
    more = f" and {len(steps) - 1} more" if len(steps) > 1 else ""
    target = arguments.get("target", "memory")
    return visible(f"{first.get('action', '')} {target}: {text}{more}")
