"""The toolset `skills`: find, load and write skills.

A thin layer: the library checks all loads and writes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Literal, Protocol, Unpack

from hermes_nb.core.errors import ToolError
from hermes_nb.core.escapes import visible
from hermes_nb.core.text import one_line
from hermes_nb.core.tools import Arguments, Risk, Tool, ToolContext, Toolset
from hermes_nb.skills.catalogue import Skill
from hermes_nb.skills.document import DESCRIPTION_LIMIT, SkillError, split
from hermes_nb.skills.editing import Details, SkillOutcome
from hermes_nb.skills.history import SkillOrigin
from hermes_nb.skills.library import Library, SkillView
from hermes_nb.skills.prompt_index import GENERAL
from hermes_nb.tools.schema import tool, with_earlier_names

Act = Literal["create", "edit", "patch", "delete", "write_file", "remove_file", "undo"]
EARLIER = {"old_string": "old", "new_string": "new"}
"""Earlier names of arguments."""
LISTED = 100
"""Maximum number of skills in a list, which ends with a count of the rest."""
DESCRIPTION = 160


class Managing(Protocol):
    """Changes skills: the library, or a replacement."""

    def manage(self, action: str, name: str = "", **details: Unpack[Details]) -> SkillOutcome:
        """Change a skill."""
        ...


def skills(library: Library, *, changes: Managing | None = None) -> Toolset:
    """Return the tools for a library; `changes` makes the changes (default: the library)."""
    manage = _skill_manage(library, changes or library)
    return Toolset([_skills_list(library), _skill_view(library), manage])


def _skills_list(library: Library) -> Tool:
    def gist(arguments: Arguments) -> str:
        return visible(str(arguments.get("query") or arguments.get("category") or "all"))

    @tool(toolset="skills", describe=gist)
    def skills_list(category: str = "", query: str = "") -> str:
        """Find skills (saved procedures) by category or words."""
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
        """Load a skill's instructions, or one of its files. Follow them if they fit the task.

        Args:
            file_path: e.g. references/api.md; default: SKILL.md without frontmatter
        """
        if not file_path:
            return instructions(library, name)
        view = library.view(name, file_path)
        return f"{_heading(view)}\n\n{view.text or view.about}"

    return skill_view


def instructions(library: Library, name: str) -> str:
    """Return a skill's instructions for the model, and count the use; raise SkillError."""
    view = library.view(name)
    library.used(view.skill.name)
    return f"{_heading(view)}\n[{_about(view.skill)}]\n\n{_body(view.text)}"


def _skill_manage(library: Library, changes: Managing) -> Tool:
    def gist(arguments: Arguments) -> str:
        parts = (str(arguments.get(key) or "") for key in ("action", "name", "file_path"))
        return visible(" ".join(part for part in parts if part))

    def risk(arguments: Arguments) -> Risk:
        # A skill affects every later session, so most changes need approval. A patch is small and
        # undoable.
        weighty = arguments.get("action") in ("create", "edit", "delete")
        return Risk.EXECUTE if weighty else Risk.REMEMBER

    @tool(toolset="skills", risk=Risk.WRITE, risk_of=risk, exclusive=True, describe=gist)
    def skill_manage(  # noqa: PLR0913 - the arguments of the tool
        context: ToolContext,
        *,
        action: Act,
        name: str = "",
        content: str | None = None,
        category: str = "",
        file_path: str = "",
        file_content: str | None = None,
        old: str | None = None,
        new: str | None = None,
        replace_all: bool = False,
    ) -> str:
        """Save a procedure that worked as a skill, or improve one: prefer patch to create.

        Args:
            content: whole SKILL.md to create or edit: frontmatter with name (a-z, 0-9, -) and
                description (when to use it), then Markdown
            file_path: in references/, templates/, scripts/ or assets/; default to patch: SKILL.md
            old: exact, unique unless replace_all
        """
        outcome = changes.manage(
            action,
            name,
            content=content,
            category=category,
            file_path=file_path,
            file_content=file_content,
            old_string=old,
            new_string=new,
            replace_all=replace_all,
            origin=SkillOrigin(session=context.place.session, turn=context.place.turn),
        )
        if not outcome.applied:
            raise ToolError(outcome.message)
        return f"{outcome.message}\n{outcome.diff}".rstrip()

    skill_manage = with_earlier_names(skill_manage, EARLIER)
    return replace(skill_manage, preview=_skill_preview(library), wording=skill_wording)


def skill_wording(arguments: Mapping[str, object]) -> str:
    """Return all text that a change would save."""
    given = (arguments.get(key) for key in ("content", "new", "new_string", "file_content"))
    return "\n\n".join(text for text in given if isinstance(text, str) and text)


def _skill_preview(library: Library) -> Callable[[Arguments], Awaitable[str]]:
    """Return the function that previews a change for approval: the new skill, or a diff."""

    async def preview(arguments: Arguments) -> str:
        given = {key: value for key, value in arguments.items() if value is not None}
        for earlier, now in EARLIER.items():
            if now in given:
                given[earlier] = given.pop(now)
        action, name = str(given.pop("action")), str(given.pop("name", ""))
        details = Details(**given)  # type: ignore[typeddict-item]
        return await asyncio.to_thread(library.preview, action, name, **details)

    return preview


def _about(skill: Skill) -> str:
    return visible(one_line(skill.description, DESCRIPTION_LIMIT))


def _body(text: str) -> str:
    """Return a document without its frontmatter, which the model doesn't need."""
    try:
        return split(text).body.strip("\n")
    except SkillError:  # the frontmatter may have been masked
        return text


def _heading(view: SkillView) -> str:
    """Return the lines above a skill's text: its location, other files, warnings."""
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
    """Return the message for a search without results, listing the categories."""
    there = library.categories()
    if not there:
        return "there are no skills yet; skill_manage creates one"
    what = f"{query!r}" if query else f"the category {category!r}"
    names = ", ".join(f"{name} ({count})" for name, count in sorted(there.items()))
    return f"no skill matches {what}; categories: {names}"
