"""Reads the tiny part of the shell's language that needs no shell.

Words, quotes without expansion, globs, pipes, `&&`, `||`, `;`, `< file`, and output that is thrown
away or joined. Every other character that a shell would act on refuses the whole command.
"""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fnmatch import translate
from pathlib import Path
from typing import Literal, NoReturn

_TOKEN = re.compile(
    r"""(?P<blank>[ \t]+|\\\n|(?<![^\s;&|])\#[^\n]*)
    | (?<![^\s;&|])(?P<quiet>(?:[12]?>|&>)[ ]?/dev/null(?![^\s;&|])|2>&1|1?>&2)
    | (?P<operator>&&|\|\||\|&|\||;(?!;)|\n)
    | (?P<input><(?![<(&>]))
    | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\$`]|\\[\s\S]|\$(?=["\s|)/\\.,:%]))*+)"
    | \\(?P<escaped>[^\n])
    | (?P<glob>\*|\?|\[[!^]?[^\]\[/\\'"$`^\s!]+\])
    | (?P<bare>(?:[^\s\\'"$`*?\[{}()<>|&;]|\](?!\())++|(?<![^\s;&|])\[(?=[ \t]))
    """,
    re.VERBOSE,
)
_MOST_FILES = 5_000
_MOST_STARS = 30
_MOST_WORDS = 500
_MOST_PROGRAMS = 50
_Stream = Literal["out", "err", "null"]


class NeedsShellError(Exception):
    """A command is not of the tiny grammar; the text says why."""


def needs_shell(why: str) -> NoReturn:
    """Raise what says why a command is not of the tiny grammar."""
    raise NeedsShellError(why)


@dataclass(slots=True)
class Draft:
    """One program of a pipeline as it is written; a pattern is a glob, or "" for a plain word."""

    words: list[str] = field(default_factory=list)
    patterns: list[str] = field(default_factory=list)
    stdin: str | None = None
    out: _Stream = "out"
    err: _Stream = "err"

    def redirect(self, token: str) -> None:
        """Throw a stream away or join it to the other."""
        match token.replace(" ", ""):
            case "2>&1":
                self.err = self.out
            case ">&2" | "1>&2":
                self.out = self.err
            case "2>/dev/null":
                self.err = "null"
            case "&>/dev/null":
                self.out = self.err = "null"
            case _:
                self.out = "null"


Line = tuple[str, list[Draft]]
"""What joins it to the line before, and the programs that pipes join."""


def parse(command: str, home: Path) -> list[Line]:
    """Read a command of the grammar; raise NeedsShellError for any other."""
    reader, at = _Reader(home), 0
    while at < len(command):
        token = _TOKEN.match(command, at)
        if token is None or token.end() == at:
            needs_shell(f"it needs a shell from {command[at : at + 12]!r} on")
        kind = token.lastgroup or ""
        reader.take(kind, token[kind])
        at = token.end()
    return reader.end()


def expand(pattern: str, directory: Path, hurry: Callable[[], None]) -> list[str]:
    """Return the files of a glob as a shell would, none if nothing matches; `hurry` may raise."""
    if pattern.count("*") > _MOST_STARS:
        needs_shell(f"{pattern[:20]!r}… is a very long pattern")
    found = ["/" if pattern.startswith("/") else ""]
    parts = [part for part in pattern.split("/") if part]
    for number, part in enumerate(parts, 1):
        ending = "" if number == len(parts) and not pattern.endswith("/") else "/"
        found = [
            place + name + ending
            for place in found
            for name in _matching(directory / place, part, folders=bool(ending), hurry=hurry)
        ]
        if len(found) > _MOST_FILES:
            needs_shell(f"{part!r} names very many files")
    return sorted(found)


def _matching(place: Path, part: str, *, folders: bool, hurry: Callable[[], None]) -> Iterator[str]:
    hurry()
    plain = re.sub(r"\[([*?\[])\]", r"\1", part)
    if not re.search(r"[*?\[]", re.sub(r"\[[*?\[]\]", "", part)):
        if (place / plain).exists():
            yield plain
        return
    matches = re.compile(translate(part)).match
    try:
        entries = os.scandir(place)
    except OSError:
        return
    with entries:
        for number, entry in enumerate(entries):
            if not number % 1000:
                hurry()
            hidden = entry.name.startswith(".") and not part.startswith(".")
            if not hidden and matches(entry.name) and (entry.is_dir() or not folders):
                yield entry.name


class _Reader:
    """Puts tokens together to words, words to programs."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.draft = Draft()
        self.lines: list[Line] = [("", [self.draft])]
        self.literal: list[str] = []
        self.pattern: list[str] = []
        self.words = 0
        self.in_word = self.is_pattern = self.wants_input = False

    def take(self, kind: str, value: str) -> None:
        if kind in ("blank", "quiet", "operator", "input"):
            self._end_word()
        match kind:
            case "blank":
                pass
            case "quiet":
                self.draft.redirect(value)
            case "input":
                self.wants_input = True
            case "operator":
                self._operator(value)
            case "glob":
                self._add(value, value.replace("[^", "[!"))
                self.is_pattern = True
            case "double":
                value = re.sub(r'\\([\\$`"])|\\\n', r"\1", value)
                self._add(value, glob.escape(value))
            case _:
                if kind == "bare" and not self.in_word and value.startswith("~"):
                    value = self._at_home(value)
                self._add(value, glob.escape(value))

    def end(self) -> list[Line]:
        self._end_word()
        if self.draft == Draft() and len(self.lines) > 1 and self.lines[-1][0] == ";":
            self.lines.pop()
        drafts = [draft for _, drafts in self.lines for draft in drafts]
        if self.wants_input or not all(draft.words for draft in drafts):
            needs_shell("it is incomplete")
        return self.lines

    def _operator(self, value: str) -> None:
        if self.wants_input or len(self.lines) + len(self.lines[-1][1]) > _MOST_PROGRAMS:
            needs_shell("it is incomplete" if self.wants_input else "it runs very many programs")
        if value == "|&":
            self.draft.err = self.draft.out
        if value in ("|", "|&"):
            self.draft = Draft()
            self.lines[-1][1].append(self.draft)
        elif self.lines[-1][1] != [Draft()] or value != "\n":
            self.draft = Draft()
            self.lines.append((";" if value == "\n" else value, [self.draft]))

    def _add(self, literal: str, pattern: str) -> None:
        self.literal.append(literal)
        self.pattern.append(pattern)
        self.in_word = True

    def _end_word(self) -> None:
        if not self.in_word:
            return
        if self.wants_input:
            if self.is_pattern:
                needs_shell("it reads from a pattern")
            self.draft.stdin, self.wants_input = "".join(self.literal), False
        else:
            self.words += 1
            if self.words > _MOST_WORDS:
                needs_shell("it has very many words")
            self.draft.words.append("".join(self.literal))
            self.draft.patterns.append("".join(self.pattern) if self.is_pattern else "")
        self.literal, self.pattern = [], []
        self.in_word = self.is_pattern = False

    def _at_home(self, text: str) -> str:
        if text != "~" and not text.startswith("~/"):
            needs_shell("it names another user's home")
        return str(self.home) + text[1:]
