"""Changes of a skill's text: exact replacement in the words of `skill_manage`, and diffs."""

from __future__ import annotations

import difflib

from hermes_nb.core.errors import ToolError
from hermes_nb.core.patching import Patched, Terms, patched
from hermes_nb.core.text import head_tail
from hermes_nb.skills.document import SkillError

_DIFF_LIMIT = 3_000
_TERMS = Terms(old="`old_string`", new="`new_string`", look="skill_view")


def replaced(text: str, old: str, new: str, *, replace_all: bool = False) -> Patched:
    """Return `text` with `old` replaced, once unless `replace_all`, its line ends kept.

    Raises SkillError when `old` is empty, absent, not unique, or the same as `new`.
    """
    try:
        return patched(text, old, new, name="", replace_all=replace_all, terms=_TERMS)
    except ToolError as error:
        raise SkillError(str(error)) from error


def diff(before: str, after: str, name: str) -> str:
    """Return a short unified diff of two texts."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", lineterm="", n=2
    )
    return head_tail("\n".join(lines), _DIFF_LIMIT)
