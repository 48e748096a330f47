"""The words of a shell command that look like paths, read quickly and without a shell.

This guesses, and nothing depends on its being right: a wrong word costs one look at the file
system. It knows quotes, heredocs, subshells, `cd` and `pushd`, `--option=path`, and a script behind
`-c`. (The command policy parses properly; that costs more than a hint may.)
"""

from __future__ import annotations

import os
import re
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

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
        text = os.path.expanduser(text)  # noqa: PTH111 - text that may be no path at all
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
                yield from self._word(_unquoted(word))

    def _pass(self, operator: str) -> None:
        """Go over an operator; behind it a new command begins."""
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
                self.directory = os.path.join(self.directory, place)  # noqa: PTH118

    def _placed(self, word: str, *, sure: bool = False) -> Iterator[Mention]:
        if found := mention(word, sure=sure):
            if self.directory and found.path[0] != "/":
                yield Mention(f"{self.directory}/{found.path}", found.sure)
            yield found


def _unquoted(word: str) -> str:
    if "'" in word or '"' in word or "\\" in word:
        return _QUOTED.sub(_content, word)
    return word


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
