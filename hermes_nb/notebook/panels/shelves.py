"""What the Skills tab shows: the library, in the order and with the headings of a search."""

from __future__ import annotations

from dataclasses import dataclass

from hermes_nb.agent.prompt_sources import Knowledge
from hermes_nb.skills.catalogue import GENERAL, Skill, Skipped
from hermes_nb.skills.document import SkillError

FROM = {
    "workdir": "project",
    "home": "yours",
    "external": "external",
    "admin": "site",
    "shipped": "shipped",
}
"""How the kinds of places are called; the words of `skills.roots.Source`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shelves:
    """The skills that fit, all categories with their sizes, and what the last change was."""

    skills: tuple[tuple[str, Skill], ...] = ()
    total: int = 0
    categories: tuple[tuple[str, int], ...] = ()
    skipped: tuple[Skipped, ...] = ()
    undoable: str = ""


def look(known: Knowledge, query: str, category: str) -> Shelves:
    """Read the library; each skill comes with the heading that belongs above it, or ""."""
    library = known.library
    every = library.list(all_of_them=True)
    counts: dict[str, int] = {}
    for skill in every:
        counts[skill.category or GENERAL] = counts.get(skill.category or GENERAL, 0) + 1
    fitting = library.list(category, query, all_of_them=True) if query or category else every
    headed: list[tuple[str, Skill]] = []
    above = ""
    for skill in fitting:
        group = skill.category or GENERAL
        headed.append(("" if query.strip() or group == above else group, skill))
        above = group
    try:
        undoable = library.preview("undo")
    except SkillError:
        undoable = ""
    return Shelves(
        skills=tuple(headed),
        total=len(every),
        categories=tuple(sorted(counts.items())),
        skipped=tuple(library.skipped()),
        undoable="" if undoable == "nothing to undo" else undoable,
    )
