"""What `.gitignore` files leave out, and a walk over the rest.

The rules are git's as ripgrep applies them: the nearest `.gitignore` that says anything decides,
those above a repository's top do not count, and there need not be a repository. Only `.gitignore`
is read, neither `.ignore` nor the user's global file, so that every machine sees the same files.
Known difference: ripgrep reads `{a,b}` in a rule as a choice, which git and this do not.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathspec import GitIgnoreSpec

_RULES_LIMIT = 200_000
_CASSETTE = re.compile(r".+\.hermes\.jsonl(?:\.lock)?")
_STARS_IN_A_NAME = 3
_STARS_IN_A_RULE = 8


@dataclass(frozen=True, slots=True)
class IgnoreRule:
    """One line of a `.gitignore`: what it names is left out, or kept.

    pathspec's expressions also match whatever lies below what a line names. Git looks at each path
    by itself, which makes a difference for what is kept (`!sub` keeps nothing inside of `sub`), so
    a name is matched alone and a path must not match because of a directory above it.
    """

    leaves_out: bool
    matches: Callable[[str], object]
    is_name: bool
    goes_deep: bool

    def names(self, path: str, name: str) -> bool:
        """Say whether this is about `path` (from the rule's directory) with that last `name`."""
        if self.is_name:
            return self.matches(name) is not None
        if self.matches(path) is None:
            return False
        above = path[: len(path) - len(name)]
        return self.goes_deep or not above or self.matches(above) is None


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that hold in `directory` (absolute, `/` as separator), the last line first."""

    directory: str
    own: tuple[IgnoreRule, ...]
    is_top: bool
    parent: Rules | None = None

    def verdict(self, path: str, *, is_directory: bool) -> bool | None:
        """Return True if `path` is left out, False if a rule keeps it, None if none names it."""
        end = "/" if is_directory else ""
        name = path.rpartition("/")[2] + end
        rules: Rules | None = self
        while rules is not None:
            inside = path[len(rules.directory.rstrip("/")) + 1 :] + end
            for rule in rules.own:
                if rule.names(inside, name):
                    return rule.leaves_out
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
    own = _read(f"{directory.rstrip('/')}/.gitignore")
    is_top = os.path.lexists(f"{directory}/.git")
    if not own and not is_top and parent is not None:
        return parent  # nothing of its own: the chain stays short in deep trees
    return Rules(directory, own, is_top, parent)


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """One entry of a directory: its absolute path with `/`, its name, and what it is."""

    path: str
    name: str
    is_directory: bool
    is_link: bool
    ignored: bool
    hidden: bool


def entries(directory: str, rules: Rules) -> list[DirectoryEntry]:
    """Return a directory's entries by name; one that cannot be read is empty.

    An entry whose name begins with a dot is hidden, unless a rule keeps it (`!.github`). Cassettes
    are not there at all: they hold the very answers, and grow while a notebook is recorded.
    """
    out: list[DirectoryEntry] = []
    try:
        with os.scandir(directory) as found:
            for each in found:
                if is_cassette(each.name):
                    continue
                is_link = each.is_symlink()
                is_directory = each.is_dir(follow_symlinks=False)
                path = f"{directory.rstrip('/')}/{each.name}"
                verdict = rules.verdict(path, is_directory=is_directory)
                hidden = each.name.startswith(".") and verdict is not False
                out.append(
                    DirectoryEntry(path, each.name, is_directory, is_link, bool(verdict), hidden)
                )
    except OSError:
        return out
    out.sort(key=lambda entry: entry.name)
    return out


def is_cassette(name: str) -> bool:
    """Say whether a file is a recording of a notebook's answers, or its lock."""
    return _CASSETTE.fullmatch(name) is not None


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


def spec_of(patterns: Iterable[str]) -> GitIgnoreSpec | None:
    """Return git's patterns as one matcher, without the unusable ones; None if none is left."""
    from pathspec import GitIgnoreSpec

    valid = [pattern for pattern in patterns if _rule(pattern) is not None]
    return GitIgnoreSpec.from_lines(valid) if valid else None


def _rule(line: str) -> IgnoreRule | None:
    """Return a line's rule, None if it has none, is invalid, or hostile."""
    from pathspec import GitIgnoreSpec

    text = line.rstrip("\r\n")
    if not text.strip() or text.startswith("#") or is_hostile(text):
        return None
    goes_deep = text.endswith(("/**", "/**/*"))
    if text.endswith("/**"):  # all that is inside, but for pathspec the directory as well
        text = text[:-1]
    try:
        pattern = next(iter(GitIgnoreSpec.from_lines([text]).patterns))
    except ValueError:
        return None
    if pattern.include is None:
        return None
    is_name = "/" not in text.rstrip().removesuffix("/")
    return IgnoreRule(pattern.include, pattern.match_file, is_name, goes_deep)


def is_hostile(pattern: str) -> bool:
    """Say whether matching a pattern could take time out of all proportion.

    pathspec makes a regular expression of it, in which each star multiplies the time that a long
    name takes: one with many stars comes from no honest file.
    """
    if pattern.count("*") > _STARS_IN_A_RULE:
        return True
    names = pattern.split("/")
    return any(len(re.findall(r"\*+", name)) > _STARS_IN_A_NAME for name in names)


def _read(path: str) -> tuple[IgnoreRule, ...]:
    try:
        if not Path(path).is_file():  # opening a FIFO of that name would never return
            return ()
        with open(path, encoding="utf-8-sig", errors="replace") as file:  # noqa: PTH123 - a string
            rules = [_rule(line) for line in file.read(_RULES_LIMIT).splitlines()]
    except OSError:
        return ()
    return tuple(rule for rule in reversed(rules) if rule is not None)
