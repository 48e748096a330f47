"""The skills index of the system prompt: a line a skill, by category, within a budget of tokens.

A skill is offered here and now by its platforms, and by the tools it needs or stands in for. One
whose gates do not open is left out; whoever names it can still read it.

When not all fit, those that fit the query best and were used most stay, and the rest is counted.
Equal skills give equal bytes: the prompt is cached.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hermes_nb.core.text import CHARACTERS_PER_TOKEN, one_line
from hermes_nb.safety.visible import visible
from hermes_nb.skills.document import Gates
from hermes_nb.skills.ranking import Text, scores
from hermes_nb.skills.skill import Skill

SHOWN = 60
"""Characters of a description."""
GENERAL = "general"
"""What skills without a category are listed under."""
_HEADING = "Skills (skill_view loads one; load it before a task that it fits):"
_PLATFORMS = {
    "macos": "darwin",
    "mac": "darwin",
    "osx": "darwin",
    "win": "windows",
    "win32": "windows",
    "cygwin": "windows",
    "linux2": "linux",
    "wsl": "linux",
}
_ANYWHERE = frozenset({"all", "any", "*"})


def render(
    skills: Sequence[Skill], texts: Mapping[str, Text], *, budget_tokens: int, query: str = ""
) -> str:
    """Return the index, "" without skills; `texts` are the skills' terms by name."""
    if not skills:
        return ""
    room = budget_tokens * CHARACTERS_PER_TOKEN
    shortest = sum(len(skill.name) for skill in skills)
    if shortest <= room and len(whole := _grouped(skills)) <= room:
        return whole
    # The count of what is left out needs room as well.
    room -= len(_HEADING) + len(_rest(len(skills))) + 1
    chosen: list[Skill] = []
    categories: set[str] = set()
    for skill in _by_worth(skills, texts, query):
        cost = len(_line(skill)) + 1
        if skill.category not in categories:
            cost += len(_category(skill)) + 1
        if cost > room:
            break
        room -= cost
        categories.add(skill.category)
        chosen.append(skill)
    return f"{_grouped(chosen)}\n{_rest(len(skills) - len(chosen))}"


def _by_worth(skills: Sequence[Skill], texts: Mapping[str, Text], query: str) -> list[Skill]:
    """Return the skills, those first that fit the query and were used much."""
    fitting = scores(texts, query) if query else {}
    best = max(fitting.values(), default=1.0)
    busiest = max((math.log1p(skill.usage.uses) for skill in skills), default=0.0) or 1.0

    def worth(skill: Skill) -> float:
        used = math.log1p(skill.usage.uses) / busiest
        return fitting.get(skill.name, 0.0) / best + used / 2

    return sorted(skills, key=lambda skill: (-worth(skill), skill.category, skill.name))


def _grouped(skills: Sequence[Skill]) -> str:
    lines = [_HEADING]
    last = None
    for skill in sorted(skills, key=lambda skill: (skill.category, skill.name)):
        if skill.category != last:
            lines.append(_category(skill))
            last = skill.category
        lines.append(_line(skill))
    return "\n".join(lines)


def _category(skill: Skill) -> str:
    return f"{visible(skill.category) or GENERAL}:"


def _line(skill: Skill) -> str:
    return f"- {skill.name}: {_gist(skill.description)}"


@lru_cache(4_096)
def _gist(description: str) -> str:
    """Return how a description is shown: its first sentence, or as much of it as fits.

    It is kept: looking at each character of a thousand descriptions takes 20 ms.
    """
    line = visible(one_line(description, SHOWN))
    sentence, stop, _ = line.partition(". ")
    return f"{sentence}{stop.strip()}"


def _rest(count: int) -> str:
    return f"{count:,} more: skills_list(query) finds them."


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What skills are offered in: `sys.platform`, and the tools and toolsets that are on.

    `None` says that they are not known, and then no gate closes because of them.
    """

    platform: str = sys.platform
    tools: Collection[str] | None = None
    toolsets: Collection[str] | None = None

    def closed(self, gates: Gates) -> str:
        """Return why a skill with these gates is not offered, "" where it is."""
        here = _platform(self.platform)
        wanted = {_platform(name) for name in gates.platforms}
        if wanted and here not in wanted and not wanted & _ANYWHERE:
            return f"it is for {', '.join(gates.platforms)}"
        for needed, instead, there, kind in (
            (gates.requires_tools, gates.fallback_for_tools, self.tools, "tool"),
            (gates.requires_toolsets, gates.fallback_for_toolsets, self.toolsets, "toolset"),
        ):
            if there is None:
                continue
            if missing := [name for name in needed if name not in there]:
                return f"it needs the {kind} {missing[0]}"
            if present := [name for name in instead if name in there]:
                return f"it stands in for the {kind} {present[0]}, which is there"
        return ""


def _platform(name: str) -> str:
    lower = name.strip().lower()
    return _PLATFORMS.get(lower, lower)
