"""Exact find-and-replace that preserves line endings; pure functions.

Matching ignores the difference between LF and CRLF, because models don't see it. Text outside the
matches is unchanged, and a replacement gets the line endings of the passage that it replaces.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from dataclasses import dataclass

from hermes_nb.core.errors import ToolError
from hermes_nb.core.text import head_tail

_CONTEXT = 2
_DIFF_LIMIT = 4_000
_LINES_NAMED = 10
_CANDIDATES = 40
_VOTES = 500_000
"""Maximum number of equal pairs of lines counted in the search for a similar passage; in a file
that repeats one line, all pairs are equal."""
_PASSAGE_LIMIT = 2_000
_PLACES_SHOWN = 10
_HUNK_HEAD = re.compile(r"^@@ -(\d+)((?:,\d+)?) \+(\d+)")
_NUMBERED = re.compile(r"\s*\d+\t")
_ALIKE = 0.4
"""Minimum similarity (0 to 1) of a passage that an error message suggests; below it, difflib's
matches look arbitrary."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The caller's names for the two passages and for its tool, used in error messages."""

    old: str = "`old`"
    """Name of the passage to find."""
    new: str = "`new`"
    """Name of the replacement."""
    look: str = "read_file"
    """Name of the tool that displays the text."""


FILE = Terms()


@dataclass(frozen=True, slots=True)
class Patched:
    """The result of a replacement."""

    text: str
    """The new text."""
    count: int
    """Number of replaced passages."""
    diff: str
    """A short unified diff."""


def patched(
    text: str,
    old: str,
    new: str,
    *,
    name: str,
    replace_all: bool = False,
    terms: Terms = FILE,
) -> Patched:
    """Replace `old` with `new` in `text`: one occurrence, or with `replace_all` every occurrence.

    Args:
        text: The text to change.
        old: The passage to find.
        new: The replacement.
        name: File name for the diff.
        replace_all: Allow several occurrences.
        terms: Names for error messages.

    Raises:
        ToolError: `old` is missing, not unique or equal to `new`. The message helps to correct it.
    """
    old, new = _unix(old), _unix(new)
    plain = _unix(text)
    starts = _occurrences(plain, old)
    if problem := _problem(plain, old, new, starts, replace_all=replace_all, terms=terms):
        raise ToolError(problem)
    pieces: list[str] = []
    crlf = [match.start() for match in re.finditer("\r\n", text)]
    # In the text with LF, the n-th CRLF is n characters earlier.
    shifted = [position - count for count, position in enumerate(crlf)]
    usual = _has_crlf(text)
    done = 0
    for start in starts:
        begin = start + bisect_left(shifted, start)
        end = start + len(old) + bisect_left(shifted, start + len(old))
        replaced = text[begin:end]
        windows = _has_crlf(replaced) if "\n" in replaced else usual
        pieces += [text[done:begin], new.replace("\n", "\r\n") if windows else new]
        done = end
    result = "".join([*pieces, text[done:]])
    return Patched(result, len(starts), _diff(plain, starts, old, new, name))


def _problem(
    text: str, old: str, new: str, starts: list[int], *, replace_all: bool, terms: Terms
) -> str:
    """Return the reason nothing can be replaced, or ""."""
    if not old:
        return f"{terms.old} is empty; give the exact text to replace"
    if old == new:
        return f"{terms.old} and {terms.new} are the same; there is nothing to change"
    if not starts:
        return _no_match(text, old, terms)
    if len(starts) == 1 or replace_all:
        return ""
    lines = [text.count("\n", 0, start) + 1 for start in starts[:_LINES_NAMED]]
    named = ", ".join(map(str, lines)) + (", ..." if len(starts) > _LINES_NAMED else "")
    return (
        f"{terms.old} occurs {len(starts)} times, at lines {named}; add lines around it "
        "to make it unique, or set replace_all"
    )


def _unix(text: str) -> str:
    return text.replace("\r\n", "\n")


def _has_crlf(text: str) -> bool:
    """Return whether most lines end with CRLF."""
    return text.count("\r\n") * 2 > text.count("\n")


def _occurrences(text: str, old: str) -> list[int]:
    starts: list[int] = []
    position = text.find(old) if old else -1
    while position >= 0:
        starts.append(position)
        position = text.find(old, position + len(old))
    return starts


def _diff(text: str, starts: list[int], old: str, new: str, name: str) -> str:
    """Return a unified diff of the first matches, without comparing the entire texts."""
    lines = [f"--- {name}", f"+++ {name}"]
    shift = 0
    for first, last, members in _groups(text, starts[:_PLACES_SHOWN], len(old)):
        before = text[first:last]
        after, done = [], first
        for start in members:
            after += [text[done:start], new]
            done = start + len(old)
        after.append(text[done:last])
        number = text.count("\n", 0, first) + 1
        hunk = _hunk(before, "".join(after), number, number + shift)
        shift += (new.count("\n") - old.count("\n")) * len(members)
        lines += hunk
    if more := len(starts) - _PLACES_SHOWN:
        lines += [f"[and {more:,} more places]"] if more > 0 else []
    return head_tail("\n".join(lines), _DIFF_LIMIT)


def _groups(text: str, starts: list[int], size: int) -> list[tuple[int, int, list[int]]]:
    """Return spans of whole lines around the matches, with context; close matches are merged."""
    groups: list[tuple[int, int, list[int]]] = []
    for start in starts:
        first = _line_start(text, start, _CONTEXT)
        last = _line_end(text, start + size, _CONTEXT)
        if groups and first <= groups[-1][1]:
            begin, _, members = groups[-1]
            members.append(start)
            groups[-1] = (begin, last, members)
        else:
            groups.append((first, last, [start]))
    return groups


def _line_start(text: str, position: int, above: int) -> int:
    for _ in range(above + 1):
        position = text.rfind("\n", 0, position)
        if position < 0:
            return 0
    return position + 1


def _line_end(text: str, position: int, below: int) -> int:
    for _ in range(below + 1):
        position = text.find("\n", position)
        if position < 0:
            return len(text)
        position += 1
    return position


def _hunk(before: str, after: str, old_line: int, new_line: int) -> list[str]:
    """Return a unified diff hunk with line numbers of the whole text."""

    def renumber(match: re.Match[str]) -> str:
        return f"@@ -{int(match[1]) + old_line - 1}{match[2]} +{int(match[3]) + new_line - 1}"

    lines = difflib.unified_diff(_lines(before), _lines(after), lineterm="", n=_CONTEXT)
    return [_HUNK_HEAD.sub(renumber, line) for line in list(lines)[2:]]


def _lines(text: str) -> list[str]:
    return text.removesuffix("\n").split("\n") if text else []


def _no_match(text: str, old: str, terms: Terms) -> str:
    if all(_NUMBERED.match(line) for line in old.splitlines()):
        numbers = f"the line numbers of {terms.look}"
        return f"{terms.old} was not found: it contains {numbers}; leave them out"
    lines = text.split("\n")
    wanted = old.strip("\n").split("\n")
    at, likeness = _nearest(lines, wanted)
    if likeness < _ALIKE:
        return (
            f"{terms.old} was not found, nor anything similar; {terms.look} shows the current text"
        )
    passage = lines[at : at + len(wanted)]
    same = [line.split() for line in passage] == [line.split() for line in wanted]
    why = "; only white space differs" if same else ""
    shown = "\n".join(f"{at + n + 1}\t{line}" for n, line in enumerate(passage))
    shown = head_tail(shown, _PASSAGE_LIMIT)
    return f"{terms.old} was not found. The nearest passage (white space counts{why}):\n{shown}"


def _nearest(lines: list[str], wanted: list[str]) -> tuple[int, float]:
    """Return the first line of the passage most similar to `wanted`, and its similarity."""
    target = "\n".join(line.strip() for line in wanted)[:_PASSAGE_LIMIT]
    best = (0, 0.0)
    for start in _candidates(lines, wanted):
        passage = "\n".join(line.strip() for line in lines[start : start + len(wanted)])
        matcher = difflib.SequenceMatcher(None, passage[:_PASSAGE_LIMIT], target, autojunk=False)
        if matcher.real_quick_ratio() > best[1] and matcher.quick_ratio() > best[1]:
            best = max(best, (start, matcher.ratio()), key=lambda pair: pair[1])
    return best


def _candidates(lines: list[str], wanted: list[str]) -> list[int]:
    """Return the likeliest start lines, by equal stripped lines or else by common words."""
    offsets: dict[str, list[int]] = {}
    for offset, line in enumerate(wanted):
        if line.strip():
            offsets.setdefault(line.strip(), []).append(offset)
    votes: dict[int, int] = {}
    left = _VOTES
    for number, line in enumerate(lines):
        for offset in offsets.get(line.strip(), ())[:left]:
            start = max(0, number - offset)
            votes[start] = votes.get(start, 0) + 1
            left -= 1
    if votes:
        return sorted(votes, key=lambda start: (-votes[start], start))[:_CANDIDATES]
    first = next((line.strip() for line in wanted if line.strip()), "")
    words = set(re.findall(r"\w+", first))
    shared = {n: len(words & set(re.findall(r"\w+", line))) for n, line in enumerate(lines)}
    return sorted((n for n in shared if shared[n]), key=lambda n: (-shared[n], n))[:_CANDIDATES]
