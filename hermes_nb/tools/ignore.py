"""What `.gitignore` files leave out, and a walk over the rest.

The rules are git's as ripgrep applies them: the nearest `.gitignore` that says anything decides,
those above a repository's top do not count, and there need not be a repository. Only `.gitignore`
is read, neither `.ignore` nor the user's global file, so that every machine sees the same files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_RULES_LIMIT = 200_000
_STARS_IN_A_NAME = 3
_STARS_IN_A_RULE = 8


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that hold in `directory` (absolute, `/` as separator), its own first."""

    directory: str
    spec: GitIgnoreSpec | None
    is_top: bool
    parent: Rules | None = None

    def verdict(self, path: str, *, is_directory: bool) -> bool | None:
        """Return True if `path` is left out, False if a rule keeps it, None if none names it."""
        rules: Rules | None = self
        while rules is not None:
            if rules.spec is not None:
                inside = path[len(rules.directory.rstrip("/")) + 1 :]
                found = rules.spec.check_file(inside + "/" if is_directory else inside).include
                if found is not None:
                    return found
            if rules.is_top:
                return None
            rules = rules.parent
        return None


def rules_for(directory: Path) -> Rules:
    """Return the rules that hold in a directory, those of the directories above it included.

    Where the directory is itself left out, somebody asked for it by name, and only its own rules
    count.
    """
    above = _rules_above(directory)
    return rules_in(directory.as_posix(), above)


def counts_above(directory: Path) -> bool:
    """Say whether the rules above a directory hold in it: they do unless they leave it out."""
    return _rules_above(directory) is not None


def _rules_above(directory: Path) -> Rules | None:
    rules: Rules | None = None
    for each in [*reversed(directory.parents), directory]:
        path = each.as_posix()
        if rules is not None and rules.verdict(path, is_directory=True):
            return None
        if each != directory:
            rules = rules_in(path, rules)
    return rules


def rules_in(directory: str, parent: Rules | None) -> Rules:
    """Return the rules of one directory in front of its parent's."""
    spec = _read(f"{directory.rstrip('/')}/.gitignore")
    is_top = os.path.lexists(f"{directory}/.git")
    if spec is None and not is_top and parent is not None:
        return parent  # nothing of its own: the chain stays short in deep trees
    return Rules(directory, spec, is_top, parent)


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory: its absolute path with `/`, its name, and what it is."""

    path: str
    name: str
    is_directory: bool
    is_link: bool
    ignored: bool
    hidden: bool


def entries(directory: str, rules: Rules) -> list[Entry]:
    """Return a directory's entries by name; one that cannot be read is empty.

    An entry whose name begins with a dot is hidden, unless a rule keeps it (`!.github`).
    """
    out: list[Entry] = []
    try:
        with os.scandir(directory) as found:
            for each in found:
                is_link = each.is_symlink()
                is_directory = each.is_dir(follow_symlinks=False)
                path = f"{directory.rstrip('/')}/{each.name}"
                verdict = rules.verdict(path, is_directory=is_directory)
                hidden = each.name.startswith(".") and verdict is not False
                out.append(Entry(path, each.name, is_directory, is_link, bool(verdict), hidden))
    except OSError:
        return out
    out.sort(key=lambda entry: entry.name)
    return out


def walk(directory: Path) -> Iterator[str]:
    """Yield the regular files below a directory that are neither hidden nor ignored.

    Links are not followed. Paths are absolute with `/`; their order is that of the walk.
    """
    pending = [(directory.as_posix(), rules_for(directory))]
    while pending:
        current, rules = pending.pop()
        for entry in entries(current, rules):
            if entry.ignored or entry.hidden or entry.is_link:
                continue
            if not entry.is_directory:
                yield entry.path
            else:
                pending.append((entry.path, rules_in(entry.path, rules)))


def spec_of(lines: list[str]) -> GitIgnoreSpec | None:
    """Return git's patterns as one matcher, without those that are invalid; None if none is left.

    pathspec makes regular expressions of them, and one with many stars can take for ever on a long
    name (each star multiplies): such a pattern comes from no honest file and is left out.
    """
    from pathspec import GitIgnoreSpec

    valid: list[str] = []
    for line in lines:
        text = line.rstrip("\r\n")
        if not text.strip() or text.startswith("#") or is_hostile(text):
            continue
        try:
            GitIgnoreSpec.from_lines([text])
        except ValueError:
            continue
        valid.append(text)
    return GitIgnoreSpec.from_lines(valid) if valid else None


def is_hostile(pattern: str) -> bool:
    """Say whether matching a pattern could take time out of all proportion."""
    if pattern.count("*") > _STARS_IN_A_RULE:
        return True
    names = pattern.split("/")
    return any(len(re.findall(r"\*+", name)) > _STARS_IN_A_NAME for name in names)


def _read(path: str) -> GitIgnoreSpec | None:
    try:
        if not Path(path).is_file():  # opening a FIFO of that name would never return
            return None
        with open(path, encoding="utf-8-sig", errors="replace") as file:  # noqa: PTH123 - a string
            return spec_of(file.read(_RULES_LIMIT).splitlines())
    except OSError:
        return None
