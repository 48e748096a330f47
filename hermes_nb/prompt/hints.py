"""Load subdirectories' instruction files when the agent first uses those directories.

A hint is appended to the tool call's result, not to the system prompt, so the cached prefix stays
valid. Which result gets a hint depends only on calls and files, not on threads or hashes.

Paths are found by argument name and in shell commands. Commands are parsed quickly without a shell:
quotes, heredocs, subshells, `cd` and `pushd`, `--option=path`, and a script after `-c`. Wrong
guesses are harmless: each costs one file system access.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from hermes_nb.core.escapes import visible
from hermes_nb.core.regular_files import Refused, repository
from hermes_nb.prompt.context_files import (
    AGENTS,
    CLAUDE,
    CURSOR,
    Accepts,
    ContextFile,
    ContextFileReader,
    SkippedFile,
    never,
)
from hermes_nb.safety.protected import NOT_WALKED

LONGEST = 32_768
"""Number of characters of a command to search for heredocs.

If there are none, only the first `READ` are parsed.
"""
READ = 8_192
"""Number of characters to parse in a command without heredocs."""
_DEPTH = 2
_TOKEN = re.compile(
    r"\d*[<>]+(?:&[\d-])?|([\n;&|()`]+)"
    r"|((?:[^\s;&|()<>`'\"\\]+|\\.|'[^']*'|\"(?:[^\"\\]|\\.)*\"|['\"\\])+)",
    re.DOTALL,
)
_QUOTED = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|\\(.)", re.DOTALL)
_ESCAPE = re.compile(r"\\([\n\"$`\\])")
_HEREDOC = re.compile(r"(?<!<)<<(?!<)-?[ \t]*(?:'([^'\n]+)'|\"([^\"\n]+)\"|\\?([\w.-]+))")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://|[\w.-]+@[\w.-]+:")
_ASSIGNED = re.compile(r"(--[\w-]+|\w+)=(.+)", re.DOTALL)
_UNKNOWN = re.compile(r"[*?\[{$`]")
_SCRIPT_FLAG = re.compile(r"-[a-z]*c")
_LEADING = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "{", "time"})
"""Words before a command."""


class Mention(NamedTuple):
    """A possible path, relative to the working directory."""

    path: str
    """The path."""
    sure: bool = True
    """Whether it looks like a path. Otherwise, it counts only if it is a directory."""


def mention(text: str, *, sure: bool = False) -> Mention | None:
    """Return the path that a word may mention, or None if it cannot be a path.

    A pattern counts too: for a missing path, the nearest existing parent is used.
    """
    if text.isalnum():
        return Mention(text, sure)
    if not text or text[0] == "-" or _URL.match(text) or "\0" in text or "\n" in text:
        return None
    if text == "~" or text.startswith("~/"):
        text = os.path.expanduser(text)
    return Mention(text, sure or "/" in text)


def paths_in(command: str) -> Iterator[Mention]:
    """Yield the paths in a command, in order. After `cd a`, a path is also tried under `a`."""
    yield from _Script().read(_without_heredocs(command[:LONGEST])[:READ])


@dataclass(slots=True)
class _Script:
    """Parses one script."""

    directory: str = ""
    """The current directory, if known from `cd`."""
    depth: int = 0
    """Nesting depth of scripts."""
    _outer: list[str] = field(default_factory=list)
    _command: list[str] = field(default_factory=list)

    def read(self, text: str) -> Iterator[Mention]:
        comment = False
        for operator, word in _TOKEN.findall(text):
            comment = (comment or word[:1] == "#") and "\n" not in operator
            if operator and not comment:
                self._pass(operator)
            elif word and not comment:
                yield from self._word(_QUOTED.sub(_content, word))

    def _pass(self, operator: str) -> None:
        for character in operator:
            if character == "(":
                self._outer.append(self.directory)
            elif character == ")" and self._outer:
                self.directory = self._outer.pop()
        self._command = []

    def _word(self, word: str) -> Iterator[Mention]:
        before = self._command[-1] if self._command else ""
        assigned = _ASSIGNED.fullmatch(word) if "=" in word else None
        if not self._command and (word in _LEADING or (assigned and word[0] != "-")):
            if assigned:
                yield from self._placed(assigned[2])
            return
        self._command.append(word)
        if " " in word and _SCRIPT_FLAG.fullmatch(before) and self.depth < _DEPTH:
            yield from _Script(self.directory, self.depth + 1).read(word)
        elif self._command[0] in ("cd", "pushd") and len(self._command) > 1:
            yield from self._changed(word)
        elif len(self._command) > 1 or "/" in word:
            if assigned:
                yield from self._placed(assigned[2])
            yield from self._placed(word)

    def _changed(self, word: str) -> Iterator[Mention]:
        """Yield the directory of `cd WORD`; make it the current one unless WORD is a pattern."""
        if found := mention(word, sure=True):
            yield from self._placed(word, sure=True)
            if not _UNKNOWN.search(word):  # otherwise stay in the current directory
                place = found.path.rstrip("/") or "/"
                self.directory = os.path.join(self.directory, place)

    def _placed(self, word: str, *, sure: bool = False) -> Iterator[Mention]:
        if found := mention(word, sure=sure):
            if self.directory and found.path[0] != "/":
                yield Mention(f"{self.directory}/{found.path}", found.sure)
            yield found


def _content(quoted: re.Match[str]) -> str:
    single, double, escaped = quoted.groups()
    if single is not None:
        return single
    return _ESCAPE.sub(r"\1", double) if double is not None else escaped.strip("\n")


def _without_heredocs(command: str) -> str:
    """Return the command without the bodies of heredocs. An unclosed one is kept."""
    if "<<" not in command:
        return command
    lines = command.split("\n")
    places: dict[str, list[int]] = {}
    for number, line in enumerate(lines):
        places.setdefault(line.strip("\t "), []).append(number)
    kept: list[str] = []
    position = 0
    while position < len(lines):
        line = lines[position]
        kept.append(line)
        position += 1
        for found in _HEREDOC.finditer(line):
            ends = places.get(next(filter(None, found.groups())), [])
            index = bisect_left(ends, position)
            position = ends[index] + 1 if index < len(ends) else position
    return "\n".join(kept)


MOST = 64
"""Maximum number of a call's paths to use."""
_MOST_VALUES = 1_000
"""Maximum number of a call's values to search."""
_DEEPEST = 6
"""Maximum nesting depth of values."""
_LONGEST_PATH = 4_096
"""Maximum length of a path, in characters."""
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PATH_KEY = re.compile(
    r"(?:.*_)?(?:path|file|filename|filepath|dir|directory|folder|workdir|cwd|notebook)s?", re.I
)
"""Argument names for paths."""
_LIKELY_KEY = re.compile(r"(?:.*_)?(?:source|src|destination|dest|target|root)s?", re.I)
"""Argument names that are often, but not always, for paths."""
_COMMAND_KEY = re.compile(r"command|cmd|script|shell", re.I)
"""Argument names for shell commands."""
_PLACE_KEY = re.compile(r"work_?dir|cwd|working_directory", re.I)
"""Argument names for the working directory."""


def mentions(arguments: object) -> list[Mention]:
    """Return the possible paths in a call's arguments, without duplicates, in order.

    Paths in a command are also tried relative to the call's `workdir`, if it has one.
    """
    place = _place(arguments)
    found: dict[Mention, None] = {}
    for each in islice(_walk(arguments, place), 4 * MOST):
        found.setdefault(each)
    return list(found)[:MOST]


def _walk(arguments: object, place: str) -> Iterator[Mention]:
    """Yield the possible paths in nested values, depth first, in order."""
    waiting: list[tuple[str, object, int]] = [("", arguments, 0)]
    for _ in range(_MOST_VALUES):
        if not waiting:
            return
        key, value, depth = waiting.pop()
        if isinstance(value, str):
            yield from _argument_mentions(key, value, place)
        elif depth < _DEEPEST:
            waiting += [(k, v, depth + 1) for k, v in reversed(_items(key, value))]


def _items(key: str, value: object) -> list[tuple[str, object]]:
    """Return the names and values inside a value. A list's items get the list's name."""
    if isinstance(value, Mapping):
        return [(_CAMEL.sub("_", str(k)[:80]), v) for k, v in islice(value.items(), _MOST_VALUES)]
    if isinstance(value, (list, tuple)):
        return [(key, each) for each in value[:_MOST_VALUES]]
    return []


def _argument_mentions(key: str, value: str, place: str) -> Iterator[Mention]:
    if _COMMAND_KEY.fullmatch(key):
        for each in paths_in(value):
            if place and each.path[0] != "/":
                yield Mention(f"{place}/{each.path}", each.sure)
            yield each
    elif len(value) <= _LONGEST_PATH:
        sure = _PATH_KEY.fullmatch(key) is not None
        if (sure or _LIKELY_KEY.fullmatch(key)) and (found := mention(value, sure=sure)):
            yield found


def _place(arguments: object) -> str:
    if isinstance(arguments, Mapping):
        for key, value in islice(arguments.items(), _MOST_VALUES):
            known = isinstance(value, str) and len(value) <= _LONGEST_PATH
            if known and _PLACE_KEY.fullmatch(str(key)[:80]) and (found := mention(value)):
                return found.path
    return ""


NAMES = (*AGENTS, *CLAUDE, CURSOR)
"""File names to look for in a directory. The first non-empty file is used."""
LIMIT = 8_000
"""Maximum number of characters to load from a file."""
WINDOW = 16_384
"""Number of characters to scan at each end of a long file."""
ANCESTORS = 5
"""Maximum number of parent directories to search."""
TOTAL = 32_000
"""Maximum number of characters of hints in one result.

Hints for other directories wait for the next call that uses those.
"""
_REMEMBERED = 4_096
"""Maximum number of cached directories."""
_LINE = re.compile(r"^\[Subdirectory context discovered: (.+)\]$", re.MULTILINE)


class HintTracker:
    """Tracks for which subdirectories the conversation already contains hints.

    `after` may be called from several threads. The working directory itself doesn't need a hint.
    """

    def __init__(self, directory: str | Path, *, accepts: Accepts = never) -> None:
        self._root = os.path.realpath(directory)
        self._accepts = accepts
        self._reader: ContextFileReader | None = None
        self._visited = {self._root}
        self._told: set[str] = set()
        self._settled = {self._root}
        """Directories that have been visited, along with their relevant ancestors."""
        self._links: dict[str, str] = {}
        self._discovered: list[ContextFile] = []
        self._skipped: list[SkippedFile] = []
        self._lock = threading.Lock()

    @property
    def discovered(self) -> tuple[ContextFile, ...]:
        """The hints so far, to inform the user of blocked or suspicious ones."""
        return tuple(self._discovered)

    @property
    def skipped(self) -> tuple[SkippedFile, ...]:
        """The existing files that could not be used."""
        return tuple(self._skipped)

    def mark(self, paths: Iterable[str | Path]) -> None:
        """Record files as already in the conversation: absolute paths, or names from hints."""
        with self._lock:
            for path in paths:
                name = str(path)
                self._told.add(os.path.realpath(name) if os.path.isabs(name) else name)

    @staticmethod
    def seen_in(text: str) -> list[str]:
        """Return the names of the hints in a tool result, for `mark`."""
        return _LINE.findall(text)

    def after(
        self,
        tool_name: str,  # noqa: ARG002 - part of the interface; all tools are treated alike
        arguments: object,
        *,
        earlier: Sequence[object] = (),
    ) -> str:
        """Return the hints to append to a call's result, or "" if there are no new ones.

        `earlier` are the arguments of preceding calls that run in parallel. Hints for their
        directories are appended to their results, whichever call ends first.
        """
        with self._lock:
            theirs = {each for other in earlier for each in self._directories(other)}
            parts: list[str] = []
            room = TOTAL
            for directory in self._directories(arguments):
                if directory in self._visited or directory in theirs:
                    continue
                file = self._hint(directory)
                if file is not None and len(file.text_loaded) > room:
                    break
                self._visited.add(directory)
                if file is not None:
                    room -= len(file.text_loaded)
                    self._told.add(str(file.path))
                    self._discovered.append(file)
                    line = f"[Subdirectory context discovered: {file.name}]"
                    parts.append(f"\n\n{line}\n{file.text_loaded}")
            return "".join(parts)

    def _directories(self, arguments: object) -> list[str]:
        """Return a call's directories that have no hint yet, in order, without duplicates."""
        found: dict[str, None] = {}
        for each in mentions(arguments):
            directory = self._directory(each)
            if directory is None or directory in self._settled:
                continue
            new = list(self._new(directory))
            if not new:
                self._settled.add(directory)
            found.update(dict.fromkeys(new))
        return list(found)

    def _directory(self, where: Mention) -> str | None:
        """Return a path's directory without links, or None if it is outside.

        For a missing path, this is the nearest existing parent.
        """
        path, sure = where
        path = path if path[0] == "/" else f"{self._root}/{path}"
        if known := self._links.get(path):
            return known
        if sure and "/" in where.path:
            top = where.path[: where.path.index("/")]
            if top not in ("", "..") and not self._real(f"{self._root}/{top}"):
                return None  # most words with a slash are not paths
        steps = ANCESTORS if sure else 0
        while not (real := self._real(path)) and steps:
            path, steps = os.path.dirname(path), steps - 1
        return real or None

    def _real(self, path: str) -> str:
        """Return an existing directory without links, or "" for other paths and for one outside."""
        if known := self._links.get(path):
            return known
        try:
            if not stat.S_ISDIR(os.stat(path).st_mode):
                return ""
            real = os.path.realpath(path)
        except (OSError, ValueError):  # missing, or an invalid name
            return ""
        if not self._inside(real):
            return ""
        if not NOT_WALKED.isdisjoint(Path(real[len(self._root) :]).parts):
            return ""  # third-party files
        if len(self._links) < _REMEMBERED:
            self._links[path] = real
        return real

    def _new(self, directory: str) -> Iterator[str]:
        """Yield the directory and its unvisited ancestors, nearest first."""
        for _ in range(ANCESTORS + 1):
            if directory == self._root or not self._inside(directory):
                return
            if directory not in self._visited:
                yield directory
            directory = os.path.dirname(directory)

    def _inside(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root.rstrip(os.sep) + os.sep)

    def _hint(self, directory: str) -> ContextFile | None:
        for name in NAMES:
            path = f"{directory}{os.sep}{name}"  # as a string for speed: about 30 per directory
            file = self._load(Path(path)) if os.path.lexists(path) else None
            if file is not None:
                known = file.name in self._told or str(file.path) in self._told
                return None if known else file
        return None

    def _load(self, path: Path) -> ContextFile | None:
        name = path.relative_to(self._root).as_posix()
        if self._reader is None:
            here = Path(self._root)
            self._reader = ContextFileReader(
                root=repository(here) or here,
                accepts=self._accepts,
                limit=LIMIT,
                window=WINDOW,
                named=True,
            )
        try:
            return self._reader.load(path, name)
        except FileNotFoundError:
            return None
        except Refused as refusal:
            self._skipped.append(SkippedFile(name=visible(name), path=path, reason=str(refusal)))
            return None
