"""The changes made by a turn: one value per file or cell, with its text before and after.

A cell is identified by the execution count that the notebook displays or, if it has none, by its
position, counted from 1.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from pathlib import Path
from typing import Literal

from hermes_nb.core.messages import Json

Kind = Literal["added", "edited", "removed", "moved", "run"]
"""How a file or a cell changed; for `run`, only a cell's outputs changed."""
MOST_CHARACTERS = 400_000
"""Maximum length of a compared text, in characters: difflib takes quadratic time."""
CONTEXT = 2
"""Unchanged lines displayed around a difference."""
_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_ALIKE = 0.5
"""Minimum similarity (0 to 1) of two lines for marking the words that differ."""
_LONGEST_LINE = 400
"""Maximum length of a line, in characters, for marking the words that differ."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One file or cell that a turn changed."""

    name: str
    """The file's path or the cell's name, for display."""
    kind: Kind
    """How it changed."""
    notebook: str = ""
    """The cell's notebook, or "" for a file."""
    place: int = 0
    """The cell's position in the notebook from 1, or 0 for a file."""
    before: str = ""
    """The text before, or "" if it did not exist."""
    after: str = ""
    """The text after, or "" if it was removed."""
    note: str = ""
    """Why there are no texts to compare, or "" if there are."""


@dataclass(frozen=True, slots=True)
class DiffRow:
    """One line of a comparison."""

    mark: str
    """`+`, `-`, " " or, for omitted lines, `⋯`."""
    words: tuple[tuple[str, bool], ...]
    """The pieces of the line; each one's second value is True if it differs."""

    @property
    def text(self) -> str:
        return "".join(word for word, _ in self.words)


def called(count: int | None, place: int) -> str:
    """Return a cell's name: its execution count, or its position from 1."""
    return f"[{count}]" if count else f"cell {place}"


def shown_path(path: str, root: Path | None) -> str:
    """Return a path for display, relative to `root` or the user's home directory if inside it.

    Symbolic links are resolved.
    """
    real = Path(os.path.realpath(path))
    if root is not None and real.is_relative_to(inside := os.path.realpath(root)):
        return real.relative_to(inside).as_posix()
    home = os.path.realpath(os.path.expanduser("~"))  # noqa: PTH111 - does not raise without a home
    return f"~/{real.relative_to(home).as_posix()}" if real.is_relative_to(home) else path


def file_change(name: str, before: bytes | None, after: bytes | None) -> Change | None:
    """Return how a file changed, or None if it did not; None as content means a missing file."""
    if before == after:
        return None
    kind: Kind = "added" if before is None else "removed" if after is None else "edited"
    old, new = _text(before), _text(after)
    if old is None or new is None:
        note = f"binary or large, not compared: {_size(before)} → {_size(after)}"
        return Change(name=name, kind=kind, note=note)
    return Change(name=name, kind=kind, before=old, after=new)


def cell_changes(
    notebook: str, before: Sequence[Mapping[str, Json]], after: Sequence[Mapping[str, Json]]
) -> list[Change]:
    """Return the changes to a notebook's cells, in order; outputs are not compared in detail."""
    old = {str(cell["id"]): (place, cell) for place, cell in enumerate(before, 1)}
    new = {str(cell["id"]): (place, cell) for place, cell in enumerate(after, 1)}
    found: list[Change] = []
    for cell_id in dict.fromkeys((*new, *old)):
        place, cell = new.get(cell_id) or old[cell_id]
        was, is_ = (
            str(cells[cell_id][1]["source"]) if cell_id in cells else None for cells in (old, new)
        )
        kind: Kind
        if was is None or is_ is None:
            kind = "added" if was is None else "removed"
        elif was != is_:
            kind = "edited"
        elif any(old[cell_id][1].get(k) != cell.get(k) for k in ("outputs", "execution_count")):
            kind = "run"
        else:
            continue
        # The user has not yet seen the execution count of a new cell.
        count = None if kind == "added" else cell.get("execution_count")
        found.append(
            Change(
                name=called(count, place),
                kind=kind,
                notebook=notebook,
                place=place,
                before=was or "",
                after=is_ or "",
            )
        )
    if _order(old, new) != _order(new, old):
        found.append(Change(name="cells", kind="moved", notebook=notebook))
    return found


def _order(cells: Mapping[str, object], others: Mapping[str, object]) -> list[str]:
    return [cell_id for cell_id in cells if cell_id in others]


def summary(changes: Sequence[Change]) -> list[str]:
    """Return a short description of each change: `cells 5–7 added`, `clean.py +3 −1`."""
    parts = []
    for (notebook, kind), group in groupby(
        sorted(changes, key=_sorting), key=lambda change: (change.notebook, change.kind)
    ):
        if not notebook:
            parts += [_file(change) for change in group]
        else:
            parts.append(f"{_cells(list(group))} {kind}")
    return parts


_KINDS = ("added", "edited", "run", "removed", "moved")


def _sorting(change: Change) -> tuple[bool, str, int, int, str]:
    kind = _KINDS.index(change.kind)
    return (not change.notebook, change.notebook, kind, change.place, change.name)


def _cells(changes: Sequence[Change]) -> str:
    numbered = [change.name for change in changes if change.name.startswith("[")]
    places = [change.place for change in changes if change.place and change.name[0] != "["]
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    spans = [f"{run[0]}–{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    named = [f"cell{'s' if len(places) > 1 else ''} {', '.join(spans)}"] if spans else []
    return ", ".join([*dict.fromkeys(numbered), *named]) or "cells"


def _file(change: Change) -> str:
    added, removed = sizes(change)
    parts = [change.name]
    parts += [change.kind] if change.kind != "edited" or change.note else []
    parts += [f"+{added}"] if added else []
    parts += [f"−{removed}"] if removed else []
    return " ".join(parts)


def sizes(change: Change) -> tuple[int, int]:
    """Return the number of lines that a change added and the number it removed."""
    marks = [mark for mark, _ in _compared(change.before, change.after)]
    return marks.count("+"), marks.count("-")


def rows(change: Change) -> list[DiffRow]:
    """Return a change's lines for display, leaving out lines far from any difference.

    If a line replaces a similar one, the words that differ are marked.
    """
    lines = _compared(change.before, change.after)
    near = _near([mark != " " for mark, _ in lines])
    found: list[DiffRow] = []
    hidden = 0
    for at, (mark, text) in enumerate(lines):
        if not near[at]:
            hidden += 1
            continue
        found += _left_out(hidden)
        hidden = 0
        found.append(DiffRow(mark, ((text, False),)))
    return _with_words([*found, *_left_out(hidden)])


def _left_out(count: int) -> list[DiffRow]:
    text = f"{count} line{'s' if count > 1 else ''} as before"
    return [DiffRow("⋯", ((text, False),))] if count else []


def _near(differs: Sequence[bool]) -> list[bool]:
    return [any(differs[max(at - CONTEXT, 0) : at + CONTEXT + 1]) for at in range(len(differs))]


def _compared(before: str, after: str) -> list[tuple[str, str]]:
    """Return the lines of both texts, each with its mark."""
    old, new = (text.removesuffix("\n").split("\n") if text else [] for text in (before, after))
    found: list[tuple[str, str]] = []
    matcher = difflib.SequenceMatcher(None, old, new)
    for tag, i, j, k, m in matcher.get_opcodes():
        if tag == "equal":
            found += [(" ", line) for line in old[i:j]]
        else:
            found += [("-", line) for line in old[i:j]] + [("+", line) for line in new[k:m]]
    if not any(mark != " " for mark, _ in found) and before != after:
        found += [("⋯", "the line end behind the last line")]
    return found


def _with_words(found: Sequence[DiffRow]) -> list[DiffRow]:
    """Mark the words that differ, in blocks that replace the same number of lines."""
    blocks = [list(group) for _, group in groupby(found, key=lambda row: row.mark)]
    for gone, came in pairwise(blocks):
        if (gone[0].mark, came[0].mark) != ("-", "+") or len(gone) != len(came):
            continue
        for at, (was, is_) in enumerate(zip(gone, came, strict=True)):
            gone[at], came[at] = _paired(was, is_)
    return [row for block in blocks for row in block]


def _paired(was: DiffRow, is_: DiffRow) -> tuple[DiffRow, DiffRow]:
    """Return two lines with the differing words marked, or unchanged if they are not similar."""
    if max(len(was.text), len(is_.text)) > _LONGEST_LINE:
        return was, is_
    old, new = _WORD.findall(was.text), _WORD.findall(is_.text)
    matcher = difflib.SequenceMatcher(None, old, new, autojunk=False)
    if matcher.ratio() < _ALIKE:
        return was, is_
    codes = matcher.get_opcodes()
    gone = [("".join(old[i:j]), tag != "equal") for tag, i, j, _, _ in codes if j > i]
    came = [("".join(new[k:m]), tag != "equal") for tag, _, _, k, m in codes if m > k]
    return DiffRow("-", tuple(gone)), DiffRow("+", tuple(came))


def _text(data: bytes | None) -> str | None:
    """Return content as text, or None if it is binary or too large to compare."""
    if data is None:
        return ""
    if len(data) > MOST_CHARACTERS or b"\0" in data:
        return None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        return None


def _size(data: bytes | None) -> str:
    return "not there" if data is None else f"{len(data):,} bytes"
