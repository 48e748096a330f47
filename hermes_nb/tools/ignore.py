"""Apply `.gitignore` rules, and list the files that they do not ignore.

The rules are git's as ripgrep applies them: the nearest `.gitignore` with a matching line decides,
a `.gitignore` above a repository's root has no effect, and a repository is not required. Only
`.gitignore` is read, not `.ignore` or the user's global file, so the result is the same on every
machine. Known difference: ripgrep reads `{a,b}` in a rule as alternatives; git and this module do
not.
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
    """One line of a `.gitignore`.

    A pathspec expression also matches everything under its path. Git matches each path separately,
    which matters for negated rules (`!sub` does not re-include the files inside `sub`). So each
    path is tested without its parents, and must not match only because a directory above it does.
    """

    leaves_out: bool
    """True for a rule that ignores paths, False for one that re-includes them (`!`)."""
    matches: Callable[[str], object]
    """The pattern's match function; its result is None if a path does not match."""
    is_name: bool
    """True if the pattern has no slash: it is matched against the last part of a path."""
    goes_deep: bool
    """True if the pattern ends with `/**` or `/**/*`, so that it matches at any depth."""

    def names(self, path: str, name: str) -> bool:
        """Return whether the rule matches a path relative to it, whose last part is `name`."""
        if self.is_name:
            return self.matches(name) is not None
        if self.matches(path) is None:
            return False
        above = path[: len(path) - len(name)]
        return self.goes_deep or not above or self.matches(above) is None


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules that apply in a directory, including those from parent directories."""

    directory: str
    """Absolute path with `/` as separator."""
    own: tuple[IgnoreRule, ...]
    """The rules of this directory's `.gitignore`, its last line first."""
    is_top: bool
    """True for a repository's root (with a `.git`), where rules from above do not apply."""
    parent: Rules | None = None
    """The rules of the nearest parent directory that has any, or None."""

    def verdict(self, path: str, *, is_directory: bool) -> bool | None:
        """Return True if `path` is ignored, False if re-included, None if no rule matches it."""
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
    """Return the rules that apply in a directory, including those from parent directories.

    If the directory itself is ignored, the user must have specified it explicitly, so only its own
    rules apply.
    """
    above = _rules_above(directory)
    return rules_in(directory.as_posix(), above)


def counts_above(directory: Path) -> bool:
    """Return whether rules from above apply in a directory, which they don't if they ignore it."""
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
    """Return the rules of one directory, chained to those of its parent."""
    own = _read(f"{directory.rstrip('/')}/.gitignore")
    is_top = os.path.lexists(f"{directory}/.git")
    if not own and not is_top and parent is not None:
        return parent  # no own rules: the chain stays short in deep trees
    return Rules(directory, own, is_top, parent)


@dataclass(frozen=True, slots=True)
class DirectoryEntry:
    """A directory entry."""

    path: str
    """Absolute path with `/` as separator."""
    name: str
    """The last part of the path."""
    is_directory: bool
    """True for a directory, not for a link to one."""
    is_link: bool
    """True for a symbolic link."""
    ignored: bool
    """True if a rule ignores it."""
    hidden: bool
    """True if the name begins with a dot and no rule re-includes it."""


def entries(directory: str, rules: Rules) -> list[DirectoryEntry]:
    """Return a directory's entries sorted by name, or none if the directory cannot be read.

    An entry whose name begins with a dot is hidden, unless a rule re-includes it (`!.github`).
    Cassettes are omitted: they contain the recorded answers and grow during a recording.
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
    """Return whether a file is a cassette (a recording of a notebook's answers) or its lock."""
    return _CASSETTE.fullmatch(name) is not None


def walk(directory: Path) -> Iterator[str]:
    """Yield the regular files under a directory that are neither hidden nor ignored.

    Links are not followed. Paths are absolute with `/` as separator, in no particular order.
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
    """Return one matcher for the usable git patterns; None if none are usable."""
    from pathspec import GitIgnoreSpec

    valid = [pattern for pattern in patterns if _rule(pattern) is not None]
    return GitIgnoreSpec.from_lines(valid) if valid else None


def _rule(line: str) -> IgnoreRule | None:
    """Return a line's rule; None if the line is blank, a comment, invalid or hostile."""
    from pathspec import GitIgnoreSpec

    text = line.rstrip("\r\n")
    if not text.strip() or text.startswith("#") or is_hostile(text):
        return None
    goes_deep = text.endswith(("/**", "/**/*"))
    if text.endswith("/**"):  # everything inside; pathspec would match the directory as well
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
    """Return whether matching a pattern could take excessive time.

    pathspec compiles a pattern to a regular expression, in which each star multiplies the time to
    match a long name. Patterns with so many stars do not occur in practice.
    """
    if pattern.count("*") > _STARS_IN_A_RULE:
        return True
    names = pattern.split("/")
    return any(len(re.findall(r"\*+", name)) > _STARS_IN_A_NAME for name in names)


def _read(path: str) -> tuple[IgnoreRule, ...]:
    try:
        if not Path(path).is_file():  # opening a FIFO of this name would block forever
            return ()
        with open(path, encoding="utf-8-sig", errors="replace") as file:  # noqa: PTH123 - a string
            rules = [_rule(line) for line in file.read(_RULES_LIMIT).splitlines()]
    except OSError:
        return ()
    return tuple(rule for rule in reversed(rules) if rule is not None)
