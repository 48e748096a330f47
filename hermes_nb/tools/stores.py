"""The toolsets `memory`, `sessions` and `skills`: what is kept on purpose, and what was once said.

Thin on purpose: what may be loaded or written is for the stores to decide.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Literal, NotRequired, Protocol, TypedDict, Unpack

from hermes_nb.core.errors import StoreError, ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.messages import Origin as TextOrigin
from hermes_nb.core.messages import least_trusted
from hermes_nb.core.protocols import ChatModel
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Arguments, Risk, Tool, ToolContext, ToolOutput, Toolset
from hermes_nb.memory.curated import Outcome
from hermes_nb.memory.entries import Action, Refusal
from hermes_nb.memory.history import Change, Origin, Unusable
from hermes_nb.memory.recall import Passage, Recall, Sort
from hermes_nb.skills.catalogue import GENERAL, Skill
from hermes_nb.skills.document import DESCRIPTION_LIMIT, SkillError, split
from hermes_nb.skills.editing import Details
from hermes_nb.skills.editing import Outcome as SkillOutcome
from hermes_nb.skills.history import Origin as SkillOrigin
from hermes_nb.skills.library import Library, View
from hermes_nb.tools.schema import tool

MOST_NOTED = 50_000
"""Characters of a `memory` call: a batch that replaces all of both memories has far fewer."""


class Step(TypedDict):
    """One operation of a batch."""

    action: Action
    content: NotRequired[str]
    old_text: NotRequired[str]


class Notes(Protocol):
    """What the tool writes to: the curated memory, or what stands in for it."""

    def apply(
        self,
        target: str,
        operations: Sequence[Arguments],
        *,
        origin: Origin | None = None,
    ) -> Outcome:
        """Apply a batch, all of it or nothing."""
        ...

    def preview(self, target: str, operations: Sequence[Arguments]) -> tuple[Change, ...]:
        """Return what `apply` would do now; raise Refusal, Unusable, OSError."""
        ...


def memory_tools(
    memory: Notes,
    *,
    source: str = "agent",
    write_approval: bool = False,
    on_written: Callable[[Outcome], None] = lambda _: None,
) -> Toolset:
    """Return the tool `memory`.

    A write is recorded under the place of its call, as that of a `source`; `on_written` hears of
    each, in the thread of the call. With `write_approval` the guard treats a write like one to a
    file, and what is approved is shown as a diff; without, it counts as harmless: it is small,
    recorded, shown and undoable.
    """
    made = replace(_memory(memory, source, on_written), wording=memory_wording, most=MOST_NOTED)
    if write_approval:

        async def preview(arguments: Arguments) -> str:
            return await asyncio.to_thread(_preview, memory, arguments)

        # More than an edit of the workspace, which some modes allow unasked.
        made = replace(made, risk=Risk.WRITE, risk_of=lambda _: Risk.EXECUTE, preview=preview)
    return Toolset([made])


def _memory(memory: Notes, source: str, on_written: Callable[[Outcome], None]) -> Tool:
    # Exclusive: of two calls in one reply, the first may make room for the second.
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
        operations: list[Step] | None = None,
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
        origin = Origin(
            session=at.session, turn=at.turn, cell=at.cell, notebook=at.notebook, source=source
        )
        outcome = memory.apply(target, steps, origin=origin)
        if not outcome.applied:
            raise ToolError(outcome.message)
        on_written(outcome)
        return outcome.message

    return memory_tool


def session_tools(recall: Recall, *, model: ChatModel | None = None) -> Toolset:
    """Return the tool `session_search`, which has `model` condense what it found.

    The session that a call comes from is left out.
    """

    @tool(toolset="sessions", describe=_search_gist)
    async def session_search(
        context: ToolContext,
        query: str = "",
        limit: Annotated[int, {"minimum": 1, "maximum": 10}] = 3,
        sort: Sort = "relevance",
        session_id: str = "",
        around: int | None = None,
        window: Annotated[int, {"minimum": 1, "maximum": 50}] = 10,
        summarize: bool = False,
    ) -> ToolOutput:
        """Search past sessions; without a query, list the latest; with session_id, read that one.

        Args:
            around: message number
            window: messages before and after it
            summarize: digests, not excerpts
        """
        from hermes_nb.memory.quoting import Condenser, browsed, scrolled, told

        running = tuple(filter(None, [context.place.session]))
        try:
            if session_id:
                page = await asyncio.to_thread(_page, recall, session_id, query, around, window)
                return ToolOutput(scrolled(page), origin=_origin([page]))
            if not query.strip():
                latest = await asyncio.to_thread(
                    recall.browse, limit=max(limit, 3), exclude_lineage=running
                )
                return ToolOutput(browsed(latest))
            found = await asyncio.to_thread(
                recall.discover, query, limit=limit, sort=sort, exclude_lineage=running
            )
            if summarize and model is not None:
                condenser = Condenser(recall=recall, model=model)
                found = await condenser.summarised(query, found, context.emit)
        except LookupError as error:
            raise ToolError(str(error)) from error
        except StoreError as error:
            raise ToolError(f"past sessions cannot be searched now: {error}") from error
        if summarize and model is None:
            found = [replace(each, note="not condensed: no model for it") for each in found]
        text = await asyncio.to_thread(told, found, query)
        return ToolOutput(text, origin=_origin([p for each in found for p in each.passages]))

    return Toolset([session_search])


def _origin(passages: Sequence[Passage]) -> TextOrigin:
    """Return the origin of what is quoted: of what was said then, the least trusted."""
    said = least_trusted(row.message.origin for each in passages for row in each.messages)
    return "outside" if said == "outside" else "workspace"


def _page(recall: Recall, session_id: str, query: str, around: int | None, window: int) -> Passage:
    """Return a stretch of a session: around a message, else around what fits the query."""
    if around is None:
        around = recall.place_in(session_id, query) if query.strip() else 0
    return recall.scroll(session_id, around=max(0, around), window=window)


def _steps(
    action: Action | None, content: str, old_text: str, operations: list[Step] | None
) -> list[Arguments]:
    """Return the operations of a call; raise ToolError unless it says clearly what it wants."""
    if operations and not (content or old_text):
        return [dict(step) for step in operations]
    if operations:
        raise ToolError("give either `operations`, or one action with content and old_text")
    if action is None:
        raise ToolError("what is to be done? give action, or `operations`")
    return [{"action": action, "content": content, "old_text": old_text}]


def _preview(memory: Notes, arguments: Arguments) -> str:
    """Return what a call would change, as the user approves it."""
    target = str(arguments.get("target", "memory"))
    steps = _steps(
        arguments.get("action"),
        arguments.get("content", ""),
        arguments.get("old_text", ""),
        arguments.get("operations"),
    )
    try:
        changes = memory.preview(target, steps)
    except (Refusal, Unusable, OSError) as error:
        raise ToolError(str(error)) from error
    return "\n".join([f"{target}:", *(_diff(change) for change in changes)])


def _diff(change: Change) -> str:
    sides = ((change.before, "-"), (change.after, "+"))
    return "\n".join(f"{mark}{line}" for text, mark in sides if text for line in text.split("\n"))


def memory_wording(arguments: Mapping[str, object]) -> str:
    """Return every text that a call would keep."""
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


def _search_gist(arguments: Arguments) -> str:
    return visible(str(arguments.get("query") or arguments.get("session_id") or "recent sessions"))


Act = Literal["create", "edit", "patch", "delete", "write_file", "remove_file", "undo"]
LISTED = 100
"""Skills of one answer; what is over is counted."""
DESCRIPTION = 160


class Managing(Protocol):
    """What makes changes: the library itself, or what stands in for it."""

    def manage(self, action: str, name: str = "", **details: Unpack[Details]) -> SkillOutcome:
        """Change a skill."""
        ...


def skills(library: Library, *, changes: Managing | None = None) -> Toolset:
    """Return the tools for a library; `changes` makes changes, by default the library."""
    manage = _skill_manage(library, changes or library)
    return Toolset([_skills_list(library), _skill_view(library), manage])


def _skills_list(library: Library) -> Tool:
    def gist(arguments: Arguments) -> str:
        return visible(str(arguments.get("query") or arguments.get("category") or "all"))

    @tool(toolset="skills", describe=gist)
    def skills_list(category: str = "", query: str = "") -> str:
        """Find skills, procedures written down for reuse, by category or words."""
        found = library.list(category, query)
        if not found:
            return _nothing(library, category, query)
        shown = found[:LISTED]
        lines = _by_category(shown) if not query else [_line(skill) for skill in shown]
        if more := len(found) - len(shown):
            lines.append(f"[{more:,} more; narrow it by query or category]")
        return "\n".join(lines)

    return skills_list


def _skill_view(library: Library) -> Tool:
    def gist(arguments: Arguments) -> str:
        parts = (str(arguments.get(key) or "") for key in ("name", "file_path"))
        return visible(" ".join(part for part in parts if part))

    @tool(toolset="skills", describe=gist)
    def skill_view(name: str, file_path: str = "") -> str:
        """Load a skill's instructions, or one of its files; follow them if they fit the task.

        Args:
            file_path: e.g. references/api.md; SKILL.md comes with its frontmatter
        """
        view = library.view(name, file_path or None)
        if file_path:
            return f"{_heading(view)}\n\n{view.text or view.about}"
        library.used(view.skill.name)
        return f"{_heading(view)}\n[{_about(view.skill)}]\n\n{_body(view.text)}"

    return skill_view


def _skill_manage(library: Library, changes: Managing) -> Tool:
    def gist(arguments: Arguments) -> str:
        parts = (str(arguments.get(key) or "") for key in ("action", "name", "file_path"))
        return visible(" ".join(part for part in parts if part))

    def risk(arguments: Arguments) -> Risk:
        # What every later session may follow is no mere edit; a patch of it is small and undoable.
        weighty = arguments.get("action") in ("create", "edit", "delete")
        return Risk.EXECUTE if weighty else Risk.REMEMBER

    @tool(toolset="skills", risk=Risk.WRITE, risk_of=risk, exclusive=True, describe=gist)
    def skill_manage(  # noqa: PLR0913 - a schema says nothing that is plain
        context: ToolContext,
        *,
        action: Act,
        name: str = "",
        content: str | None = None,
        category: str = "",
        file_path: str = "",
        file_content: str | None = None,
        old_string: str | None = None,
        new_string: str | None = None,
        replace_all: bool = False,
    ) -> str:
        """Write down a procedure that worked, or improve a skill: prefer patch to create.

        Args:
            content: whole SKILL.md to create or edit: frontmatter with name (a-z, 0-9, -) and
                description (when to use it), then Markdown
            file_path: below references/, templates/, scripts/, assets/; SKILL.md to patch
            old_string: exact, unique unless replace_all
        """
        outcome = changes.manage(
            action,
            name,
            content=content,
            category=category,
            file_path=file_path,
            file_content=file_content,
            old_string=old_string,
            new_string=new_string,
            replace_all=replace_all,
            origin=SkillOrigin(session=context.place.session, turn=context.place.turn),
        )
        if not outcome.applied:
            raise ToolError(outcome.message)
        return f"{outcome.message}\n{outcome.diff}".rstrip()

    return replace(skill_manage, preview=_skill_preview(library), wording=skill_wording)


def skill_wording(arguments: Mapping[str, object]) -> str:
    """Return every text that a change would keep."""
    given = (arguments.get(key) for key in ("content", "new_string", "file_content"))
    return "\n\n".join(text for text in given if isinstance(text, str) and text)


def _skill_preview(library: Library) -> Callable[[Arguments], Awaitable[str]]:
    """Return what shows a change before it is approved: the new skill, or the diff."""

    async def preview(arguments: Arguments) -> str:
        given = {key: value for key, value in arguments.items() if value is not None}
        action, name = str(given.pop("action")), str(given.pop("name", ""))
        details = Details(**given)  # type: ignore[typeddict-item]
        return await asyncio.to_thread(library.preview, action, name, **details)

    return preview


def _about(skill: Skill) -> str:
    return visible(one_line(skill.description, DESCRIPTION_LIMIT))


def _body(text: str) -> str:
    """Return a document without its frontmatter, of which the model has all it needs."""
    try:
        return split(text).body.strip("\n")
    except SkillError:  # what stood there may have been masked
        return text


def _heading(view: View) -> str:
    """Return what stands above a skill's text: where it is, what else it has, what to mind."""
    skill = view.skill
    lines = [f"[skill {skill.name}, {view.file}; folder {visible(str(view.directory))}]"]
    others = [file for file in view.files if file != view.file]
    if others and view.file == "SKILL.md":
        lines.append(f"[files: {', '.join(map(visible, others))}]")
    lines += [f"[mind: {visible(mark)}]" for mark in view.marks]
    return "\n".join(lines)


def _by_category(found: list[Skill]) -> list[str]:
    lines: list[str] = []
    last = None
    for skill in found:
        if skill.category != last:
            lines.append(f"{visible(skill.category) or GENERAL}:")
            last = skill.category
        lines.append(_line(skill))
    return lines


def _line(skill: Skill) -> str:
    return f"- {skill.name}: {visible(one_line(skill.description, DESCRIPTION))}"


def _nothing(library: Library, category: str, query: str) -> str:
    """Return what to say when nothing fits: what there is instead."""
    there = library.categories()
    if not there:
        return "there are no skills yet; skill_manage creates one"
    what = f"{query!r}" if query else f"the category {category!r}"
    names = ", ".join(f"{name} ({count})" for name, count in sorted(there.items()))
    return f"no skill fits {what}; categories: {names}"
