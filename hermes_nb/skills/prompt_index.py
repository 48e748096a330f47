"""The index of skills in the prompt: a line a skill, by category, within a budget of tokens.

When not all fit, those that fit the query best and were used most stay, and the rest is counted.
Equal skills give equal bytes: the prompt is cached.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from hermes_nb.core.escapes import visible
from hermes_nb.core.text import CHARACTERS_PER_TOKEN, one_line
from hermes_nb.skills.catalogue import Skill

GENERAL = "general"
"""What skills without a category are listed under."""
_SHOWN = 60
"""Characters of a description in the index."""
_HEADING = "Skills (skill_view loads one; load it before a task that it fits):"


def render(skills: Sequence[Skill], fitting: Mapping[str, float], *, budget_tokens: int) -> str:
    """Return the index, "" without skills; `fitting` says by name what fits the occasion."""
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
    for skill in _by_worth(skills, fitting):
        cost = len(_line(skill)) + 1
        if skill.category not in categories:
            cost += len(_category(skill)) + 1
        if cost > room:
            break
        room -= cost
        categories.add(skill.category)
        chosen.append(skill)
    return f"{_grouped(chosen)}\n{_rest(len(skills) - len(chosen))}"


def _by_worth(skills: Sequence[Skill], fitting: Mapping[str, float]) -> list[Skill]:
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
    line = visible(one_line(description, _SHOWN))
    sentence, stop, _ = line.partition(". ")
    return f"{sentence}{stop.strip()}"


def _rest(count: int) -> str:
    return f"{count:,} more: skills_list(query) finds them."
