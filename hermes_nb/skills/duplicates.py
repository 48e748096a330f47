"""Find the skill that a new one nearly duplicates, by common words and word sequences."""

from __future__ import annotations

import re

from hermes_nb.skills.catalogue import Skill, SkillSnapshot
from hermes_nb.skills.discovery import decoded, read_regular
from hermes_nb.skills.document import Document, SkillError, read_document
from hermes_nb.skills.matching import likeness, same_name, stems, text_of

_ALIKE = 0.6
"""Fraction of common words in names and descriptions above which two skills are duplicates."""
_RELATED = 0.25
"""Fraction of common words above which the bodies are compared."""
_COPIED = 0.7
"""Fraction of common word sequences, in the shorter body, that makes it a copy."""
_RUN = 5
_SHORTEST_BODY = 20
_COMPARED = 5


def near_duplicate(document: Document, snapshot: SkillSnapshot) -> Skill | None:
    """Return the skill that a new document nearly duplicates, under any name, or None.

    Skills whose names differ by a number are never duplicates.
    """
    own = text_of(document.name, document.description, document.tags)
    digits = re.findall(r"\d+", document.name)
    alike = [
        (likeness(own, skill.terms), skill)
        for name, skill in snapshot.skills.items()
        if re.findall(r"\d+", name) == digits
    ]
    alike.sort(key=lambda pair: (-pair[0], pair[1].name))
    for share, skill in alike:
        if share >= _ALIKE or same_name(document.name, skill.name):
            return skill
    for share, skill in alike[:_COMPARED]:
        if share >= _RELATED and _copies(document.body, skill):
            return skill
    return None


def _copies(body: str, skill: Skill) -> bool:
    try:
        other = read_document(decoded(read_regular(skill.file))[0]).body
    except (OSError, SkillError):  # it has been removed in the meantime
        return False
    one, two = _runs(body), _runs(other)
    smaller = min(len(one), len(two))
    return smaller >= _SHORTEST_BODY and len(one & two) / smaller >= _COPIED


def _runs(text: str) -> set[tuple[str, ...]]:
    words = stems(text)
    return {tuple(words[n : n + _RUN]) for n in range(len(words) - _RUN + 1)}
