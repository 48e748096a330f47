"""A directory as text: names and sizes, directories first, a level's content indented below it."""

from __future__ import annotations

import os
from pathlib import Path

from hermes_nb.safety.visible import visible
from hermes_nb.tools.ignore import Entry, Rules, entries, rules_for, rules_in
from hermes_nb.tools.workspace import size_text

ENTRIES_SHOWN = 500


def listing(directory: Path, *, depth: int, hidden: bool, ignored: bool) -> str:
    """Return the content of a directory as text, at most `ENTRIES_SHOWN` lines and a note.

    `.git` is named but never opened, and links are shown with their target but not followed.
    """
    tree = _Tree(hidden=hidden, ignored=ignored)
    tree.add(directory.as_posix(), rules_for(directory), depth, "")
    lines = tree.lines or ["(empty)"]
    if note := tree.note():
        lines = [*lines, note]
    return "\n".join(lines)


class _Tree:
    """Collects lines and counts what it leaves out."""

    def __init__(self, *, hidden: bool, ignored: bool) -> None:
        self.lines: list[str] = []
        self._hidden = hidden
        self._ignored = ignored
        self._left_out = {"more": 0, "hidden": 0, "ignored": 0}

    def add(self, directory: str, rules: Rules, depth: int, indent: str) -> None:
        """Add a directory's entries, and what is in them down to `depth` levels."""
        chosen = [entry for entry in entries(directory, rules) if self._wanted(entry)]
        for entry in sorted(chosen, key=lambda entry: (not entry.is_directory, entry.name)):
            if len(self.lines) >= ENTRIES_SHOWN:
                self._left_out["more"] += 1
                continue
            self.lines.append(indent + _line(entry))
            if entry.is_directory and depth > 1 and entry.name != ".git":
                self.add(entry.path, rules_in(entry.path, rules), depth - 1, indent + "  ")

    def note(self) -> str:
        """Return a line on what is not shown, or nothing."""
        parts = [f"{count:,} {what}" for what, count in self._left_out.items() if count]
        return f"[not shown: {', '.join(parts)}]" if parts else ""

    def _wanted(self, entry: Entry) -> bool:
        if entry.hidden and not self._hidden:
            self._left_out["hidden"] += 1
            return False
        if entry.ignored and not self._ignored:
            self._left_out["ignored"] += 1
            return False
        return True


def _line(entry: Entry) -> str:
    name = visible(entry.name)
    if entry.is_link:
        try:
            return f"{name} -> {visible(os.readlink(entry.path))}"  # noqa: PTH115 - a string
        except OSError:
            return f"{name} -> ?"
    if entry.is_directory:
        return f"{name}/"
    try:
        return f"{name}  {size_text(os.lstat(entry.path).st_size)}"
    except OSError:
        return name
