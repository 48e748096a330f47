"""Instructions of subdirectories, told when the agent first gets there.

A hint is appended to the result of the call that led to it, never to the system prompt: the cached
prefix stays. Which hint goes where depends on calls and files alone, not on threads or hashes.

Paths are found by the names of arguments and in shell commands, read quickly and without a shell:
quotes, heredocs, subshells, `cd` and `pushd`, `--option=path`, and a script behind `-c`. Nothing
depends on a guess being right: a wrong word costs one look at the file system.
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
"""Characters of a command that are looked at, of which `READ` behind its heredocs are read."""
READ = 8_192
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
"""Words behind which a command begins."""


class Mention(NamedTuple):
    """Something that may be a path, relative to the working directory.

    A `sure` one has the shape of a path; any other counts only if it is a directory.
    """

    path: str
    sure: bool = True


def mention(text: str, *, sure: bool = False) -> Mention | None:
    """Return what a word mentions, None for what is no path whatever the file system holds.

    A pattern is a mention like any other: what does not exist leads to what is around it.
    """
    if text.isalnum():
        return Mention(text, sure)
    if not text or text[0] == "-" or _URL.match(text) or "\0" in text or "\n" in text:
        return None
    if text == "~" or text.startswith("~/"):
        text = os.path.expanduser(text)
    return Mention(text, sure or "/" in text)


def paths_in(command: str) -> Iterator[Mention]:
    """Yield what a command mentions, in order; a word behind `cd a` also as one below `a`."""
    yield from _Script().read(_without_heredocs(command[:LONGEST])[:READ])


@dataclass(slots=True)
class _Script:
    """Reads one script; `directory` is where its commands are, as far as `cd` tells."""

    directory: str = ""
    depth: int = 0
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
        """Follow a `cd`; options are passed over, and what is unknown leads nowhere."""
        if found := mention(word, sure=True):
            yield from self._placed(word, sure=True)
            if not _UNKNOWN.search(word):  # else this goes on from where it was
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
    """Return the command without the bodies of its heredocs; one that never ends is no heredoc."""
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
"""Mentions of one call that are followed."""
_MOST_VALUES = 1_000
_DEEPEST = 6
_LONGEST_PATH = 4_096
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PATH_KEY = re.compile(
    r"(?:.*_)?(?:path|file|filename|filepath|dir|directory|folder|workdir|cwd|notebook)s?", re.I
)
_LIKELY_KEY = re.compile(r"(?:.*_)?(?:source|src|destination|dest|target|root)s?", re.I)
"""Names that often, but not always, stand for paths."""
_COMMAND_KEY = re.compile(r"command|cmd|script|shell", re.I)
_PLACE_KEY = re.compile(r"work_?dir|cwd|working_directory", re.I)


def mentions(arguments: object) -> list[Mention]:
    """Return what a call's arguments mention, each once, in the order of the arguments.

    Words of a command are relative to the call's `workdir` as well, where it has one.
    """
    place = _place(arguments)
    found: dict[Mention, None] = {}
    for each in islice(_walk(arguments, place), 4 * MOST):
        found.setdefault(each)
    return list(found)[:MOST]


def _walk(arguments: object, place: str) -> Iterator[Mention]:
    """Yield the mentions in nested values, depth first, in order."""
    waiting: list[tuple[str, object, int]] = [("", arguments, 0)]
    for _ in range(_MOST_VALUES):
        if not waiting:
            return
        key, value, depth = waiting.pop()
        if isinstance(value, str):
            yield from _said(key, value, place)
        elif depth < _DEEPEST:
            waiting += [(k, v, depth + 1) for k, v in reversed(_items(key, value))]


def _items(key: str, value: object) -> list[tuple[str, object]]:
    """Return what a value holds, with the names it goes by; a list's items go by the list's."""
    if isinstance(value, Mapping):
        return [(_CAMEL.sub("_", str(k)[:80]), v) for k, v in islice(value.items(), _MOST_VALUES)]
    if isinstance(value, (list, tuple)):
        return [(key, each) for each in value[:_MOST_VALUES]]
    return []


def _said(key: str, value: str, place: str) -> Iterator[Mention]:
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
"""What is looked for in a directory, the first that says something."""
LIMIT = 8_000
WINDOW = 16_384
ANCESTORS = 5
TOTAL = 32_000
"""Characters of hints in one result; directories beyond that wait for the next call there."""
_REMEMBERED = 4_096
_LINE = re.compile(r"^\[Subdirectory context discovered: (.+)\]$", re.MULTILINE)


class HintTracker:
    """Knows which subdirectories of a working directory the conversation has been told about.

    `after` may be called from several threads. The working directory itself counts as told.
    """

    def __init__(self, directory: str | Path, *, accepts: Accepts = never) -> None:
        self._root = os.path.realpath(directory)
        self._accepts = accepts
        self._reader: ContextFileReader | None = None
        self._visited = {self._root}
        self._told: set[str] = set()
        self._settled = {self._root}
        """Directories that were visited with all their ancestors that count."""
        self._links: dict[str, str] = {}
        self._discovered: list[ContextFile] = []
        self._skipped: list[SkippedFile] = []
        self._lock = threading.Lock()

    @property
    def discovered(self) -> tuple[ContextFile, ...]:
        """The hints given so far, so that the user can be told what was blocked or marked."""
        return tuple(self._discovered)

    @property
    def skipped(self) -> tuple[SkippedFile, ...]:
        """The files that were there and could not be used."""
        return tuple(self._skipped)

    def mark(self, paths: Iterable[str | Path]) -> None:
        """Count files as told: absolute paths, or names as hints call them."""
        with self._lock:
            for path in paths:
                name = str(path)
                self._told.add(os.path.realpath(name) if os.path.isabs(name) else name)

    @staticmethod
    def seen_in(text: str) -> list[str]:
        """Return the names of the hints that a tool result already holds, for `mark`."""
        return _LINE.findall(text)

    def after(
        self,
        tool_name: str,  # noqa: ARG002 - a promise; all tools are alike so far
        arguments: object,
        *,
        earlier: Sequence[object] = (),
    ) -> str:
        """Return what a call's result is to be followed by, "" when there is nothing new.

        `earlier` are the arguments of the calls that run beside this one and come before it: what
        they lead to is theirs to tell, whichever ends first.
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
        """Return the directories a call leads to that are not told yet, in order, each once."""
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
        """Return the directory without links that a mention leads to or lies in, if inside.

        Where that does not exist, the nearest one around it.
        """
        path, sure = where
        path = path if path[0] == "/" else f"{self._root}/{path}"
        if known := self._links.get(path):
            return known
        if sure and "/" in where.path:
            top = where.path[: where.path.index("/")]
            if top not in ("", "..") and not self._real(f"{self._root}/{top}"):
                return None  # most words with a slash are no paths at all
        steps = ANCESTORS if sure else 0
        while not (real := self._real(path)) and steps:
            path, steps = os.path.dirname(path), steps - 1
        return real or None

    def _real(self, path: str) -> str:
        """Return an existing directory without links, "" for anything else and what is outside."""
        if known := self._links.get(path):
            return known
        try:
            if not stat.S_ISDIR(os.stat(path).st_mode):
                return ""
            real = os.path.realpath(path)
        except (OSError, ValueError):  # not there, or a name that the system does not take
            return ""
        if not self._inside(real):
            return ""
        if not NOT_WALKED.isdisjoint(Path(real[len(self._root) :]).parts):
            return ""  # other people's files, which nobody looks through for what is new there
        if len(self._links) < _REMEMBERED:
            self._links[path] = real
        return real

    def _new(self, directory: str) -> Iterator[str]:
        """Yield the directory and its ancestors that were not visited, nearest first."""
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
            path = f"{directory}{os.sep}{name}"  # thirty of these for a new place
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
