"""Mask values that differ between runs of the same notebook or script.

There are three cases. In the user's messages, only ids and known directories are masked. Tool
results, whose tools run for real each time, also lose times, durations, addresses and similar
values. Values that identify something (a cell, a session, a temporary file) are remembered: a
recorded reply may repeat such a value and must then use this run's name.

The patterns are in `volatile.toml`; each runs in linear time.
"""

from __future__ import annotations

import os
import re
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class VolatileRule:
    """Replaces each match of a pattern with `<name>`."""

    name: str
    """Name of the rule and of its replacement."""
    pattern: re.Pattern[str]
    """Its first group is replaced, or the whole match if it has none."""
    names: bool = False
    """Whether the value identifies something, such as a cell, that a reply may mention."""


@dataclass(frozen=True, slots=True)
class Masked:
    """A masked text."""

    text: str
    """The text with volatile values replaced."""
    named: tuple[tuple[str, str], ...] = ()
    """(rule, value) pairs of the values that identify something, in order."""


_TABLES = tomllib.loads(Path(__file__).with_name("volatile.toml").read_text(encoding="utf-8"))
_LOOKS = {
    "DAY": "(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)",
    "MONTH": "(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)",
    "CLOCK": r"\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?",
}


def _rules(table: str) -> tuple[VolatileRule, ...]:
    rules = []
    for row in _TABLES[table]:
        pattern = row["pattern"]
        for name, looks in _LOOKS.items():
            pattern = pattern.replace(name, looks)
        rules.append(VolatileRule(row["name"], re.compile(pattern), names=row.get("names", False)))
    return tuple(rules)


EVERYWHERE = _rules("everywhere")
SYSTEM = _rules("system") + EVERYWHERE
SPOKEN = _rules("spoken") + EVERYWHERE
"""Rules for the model's own texts."""
RESULTS = SPOKEN + _rules("results")
CELL_ID = re.compile(r"[0-9a-f]{8}")
"""A cell's id; matches an argument that consists of nothing else."""

TOKEN = re.compile(r"⟦([a-z]+)(?::(\d{1,6}))?⟧")
"""Placeholder in a recorded reply for one of the run's values: `⟦cell:1⟧`, `⟦cwd⟧`."""


def masked(text: str, rules: Iterable[VolatileRule], places: Places | None = None) -> Masked:
    """Return a text with the rules' matches replaced. If matches overlap, the first one wins."""
    found: list[tuple[int, int, int, VolatileRule, str]] = []
    if places is not None and places.pattern is not None:
        found += [
            (m.start(), -1, m.end(), _PLACE, places.names[m[0]])
            for m in places.pattern.finditer(text)
        ]
    for order, rule in enumerate(rules):
        group = 1 if rule.pattern.groups else 0
        for match in rule.pattern.finditer(text):
            start, end = match.span(group)
            found.append((start, order, end, rule, rule.name))
    if not found:
        return Masked(text)
    found.sort(key=lambda item: item[:3])
    pieces: list[str] = []
    named: list[tuple[str, str]] = []
    done = 0
    for start, _, end, rule, name in found:
        if start < done:
            continue
        pieces += [text[done:start], f"<{name}>"]
        if rule.names:
            named.append((rule.name, text[start:end]))
        done = end
    return Masked("".join(pieces) + text[done:], tuple(named))


_PLACE = VolatileRule("place", re.compile(""))
SKILLS = "skills"
"""Name for the folder of the shipped skills, regardless of where hermes_nb is installed."""


@dataclass(frozen=True, slots=True)
class Places:
    """Named directories of this run."""

    names: dict[str, str]
    """Directory name by path. Several paths can have the same name."""
    pattern: re.Pattern[str] | None
    """Matches all the paths; None if there are none."""

    @classmethod
    def of(cls, directories: Iterable[tuple[str, str | Path]]) -> Places:
        """Return the places for (name, directory) pairs and for the shipped skills.

        Both the path as written and its real path are recognised. If a directory is given twice,
        its first name counts. A root directory is skipped, since its path is part of every other.
        """
        names: dict[str, str] = {}
        package = Path(__file__).parents[1]  # in the package, or next to it in a checkout
        shipped = [(SKILLS, package / "shipped_skills"), (SKILLS, package.parent / "skills")]
        for name, directory in [*directories, *shipped]:
            for path in (str(directory), os.path.realpath(directory)):
                if len(Path(path).parts) > 1:
                    names.setdefault(path.rstrip("/\\"), name)
        if not names:
            return cls({}, None)
        longest = sorted(names, key=len, reverse=True)
        alternatives = "|".join(map(re.escape, longest))
        return cls(names, re.compile(rf"(?<![\w.-])(?:{alternatives})(?![\w-]|\.\w)"))

    @classmethod
    def here(cls, hermes_home: Path | None = None) -> Places:
        """Return this process's working directory, home directories and temporary directory."""
        directories: list[tuple[str, str | Path]] = []
        try:
            directories.append(("cwd", os.getcwd()))
        except OSError:
            directories = []
        if hermes_home is not None:
            directories.append(("hermes", hermes_home))
        home = os.path.expanduser("~")
        directories += [("home", home), ("tmp", tempfile.gettempdir())]
        return cls.of(directories)

    def path(self, name: str) -> str | None:
        """Return the first path with that name, preferring an existing one if there are several."""
        paths = [path for path, known in self.names.items() if known == name]
        there = (path for path in paths if len(paths) > 1 and os.path.exists(path))
        return next(there, paths[0] if paths else None)


class Named:
    """The cells, sessions and files named in a request, numbered by first appearance.

    Recorded replies contain the numbers instead of the names.
    """

    def __init__(self, places: Places | None = None) -> None:
        self._places = places or Places({}, None)
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}

    def number(self, named: Sequence[tuple[str, str]]) -> list[int]:
        """Return the number of each (rule, value) pair; a new pair gets the next free number."""
        out = []
        for pair in named:
            if pair not in self._numbers:
                self._counts[pair[0]] = self._counts.get(pair[0], 0) + 1
                self._numbers[pair] = self._counts[pair[0]]
            out.append(self._numbers[pair])
        return out

    def pack(self, text: str) -> str:
        """Return a text with values that differ between runs replaced by placeholders."""
        tokens = {value: f"⟦{rule}:{n}⟧" for (rule, value), n in self._numbers.items()}
        if tokens:
            longest = sorted(tokens, key=len, reverse=True)
            pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)"
            text = re.sub(pattern, lambda match: tokens[match[0]], text)
        if self._places.pattern is not None:
            text = self._places.pattern.sub(lambda m: f"⟦{self._places.names[m[0]]}⟧", text)
        return text

    def unpack(self, text: str) -> str:
        """Return recorded text with tokens replaced by this run's names; unknown tokens remain."""
        if "⟦" not in text:
            return text
        values = {(rule, number): value for (rule, value), number in self._numbers.items()}

        def value(match: re.Match[str]) -> str:
            if match[2] is None:
                return self._places.path(match[1]) or match[0]
            return values.get((match[1], int(match[2])), match[0])

        return TOKEN.sub(value, text)
