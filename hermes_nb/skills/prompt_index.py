"""The list of skills in the prompt: one line per skill, by category, within a token budget.

If not all of them fit, those that match the query best and are used the most are listed, and the
others counted. The same skills produce the same bytes, so that the prompt can be cached.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache

from hermes_nb.core.escapes import visible
from hermes_nb.core.text import CHARACTERS_PER_TOKEN, one_line
from hermes_nb.skills.catalogue import Skill

GENERAL = "general"
"""The heading for skills without a category."""
_SHOWN = 60
"""Maximum length of a description in the list, in characters."""
_HEADING = "Skills (skill_view loads one; load it before a task that it fits):"


def render(skills: Sequence[Skill], fitting: Mapping[str, float], *, budget_tokens: int) -> str:
    """Return the list, or "" if there are no skills; `fitting` has the skills' scores by name."""
    if not skills:
        return ""
    room = budget_tokens * CHARACTERS_PER_TOKEN
    shortest = sum(len(skill.name) for skill in skills)
    if shortest <= room and len(whole := _grouped(skills)) <= room:
        return whole
    # Reserve space for the line that counts the skills left out.
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
    """Return a description's first sentence, or as much as fits.

    Cached, because checking every character of a thousand descriptions takes 20 ms.
    """
    line = visible(one_line(description, _SHOWN))
    sentence, stop, _ = line.partition(". ")
    return f"{sentence}{stop.strip()}"


def _rest(count: int) -> str:
    return f"{count:,} more: skills_list(query) finds them."
