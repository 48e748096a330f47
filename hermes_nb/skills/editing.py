"""Exact find-and-replace in a skill's text, blind to the difference between LF and CRLF."""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from hermes_nb.core.text import head_tail
from hermes_nb.skills.document import SkillError

_DIFF_LIMIT = 3_000
_NEAR = 0.6
_LINES_COMPARED = 4_000


@dataclass(frozen=True, slots=True)
class Edit:
    """The new text and how many passages changed."""

    text: str
    count: int


def replaced(text: str, old: str, new: str, *, replace_all: bool = False) -> Edit:
    """Return `text` with `old` replaced, once unless `replace_all`, its line ends kept.

    Raises SkillError when `old` is empty, absent, not unique, or the same as `new`.
    """
    crlf = "\r\n" in text
    plain = text.replace("\r\n", "\n")
    old, new = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    if not old:
        message = "`old_string` is empty; give the exact text to replace"
        raise SkillError(message)
    if old == new:
        message = "`old_string` and `new_string` are the same; there is nothing to change"
        raise SkillError(message)
    count = plain.count(old)
    if not count:
        raise SkillError(_absent(plain, old))
    if count > 1 and not replace_all:
        message = (
            f"`old_string` is there {count} times; add lines around it to make it unique, or set "
            "replace_all"
        )
        raise SkillError(message)
    changed = plain.replace(old, new)
    return Edit(changed.replace("\n", "\r\n") if crlf else changed, count)


def diff(before: str, after: str, name: str) -> str:
    """Return a short unified diff of two texts."""
    lines = difflib.unified_diff(
        before.splitlines(), after.splitlines(), f"a/{name}", f"b/{name}", lineterm="", n=2
    )
    return head_tail("\n".join(lines), _DIFF_LIMIT)


def _absent(text: str, old: str) -> str:
    """Return what to say about a passage that is not there: the line most like its first one."""
    first = next((line.strip() for line in old.split("\n") if line.strip()), "")
    lines = [line.strip() for line in text.split("\n")[:_LINES_COMPARED]]
    near = difflib.get_close_matches(first[:300], lines, n=1, cutoff=_NEAR)
    hint = f" The nearest line is {near[0][:200]!r}." if near and near[0] else ""
    return f"`old_string` is not there; skill_view shows the text as it is.{hint}"
