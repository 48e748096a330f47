"""What differs between two runs of the same story, and what stands for it in a recorded request.

Three rules hold: what the user wrote is left as it is but for ids and known places; the results of
tools, which run for real each time, lose times, durations, addresses and the like as well; and a
value that names a thing (a cell, a session, a temporary file) is remembered, because a recorded
reply may repeat it and then has to name this run's thing. The rules are in `volatile.toml`; every
pattern works in linear time.
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
    """What a pattern finds becomes `<name>`: its first group if it has one, else all of it.

    `names` says that the value names something, so that it may come back in a reply.
    """

    name: str
    pattern: re.Pattern[str]
    names: bool = False


@dataclass(frozen=True, slots=True)
class Masked:
    """A text without what is volatile, and the (rule, value) of what named something, in order."""

    text: str
    named: tuple[tuple[str, str], ...] = ()


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
"""For what the model said."""
RESULTS = SPOKEN + _rules("results")
CELL_ID = re.compile(r"[0-9a-f]{8}")
"""What a cell is called in an argument: the whole of it."""

TOKEN = re.compile(r"⟦([a-z]+)(?::(\d{1,6}))?⟧")
"""What stands for a value of the run in a recorded reply: `⟦cell:1⟧`, `⟦cwd⟧`."""


def masked(text: str, rules: Iterable[VolatileRule], places: Places | None = None) -> Masked:
    """Return a text with what the rules find replaced; where two find the same, the first wins."""
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
"""What stands for the folder of the skills that ship, wherever hermes_nb is installed."""


@dataclass(frozen=True, slots=True)
class Places:
    """Directories of this run, by path; `pattern` finds them, None when there are none."""

    names: dict[str, str]
    pattern: re.Pattern[str] | None

    @classmethod
    def of(cls, directories: Iterable[tuple[str, str | Path]]) -> Places:
        """Return the places of (name, directory) pairs, and that of the skills that ship.

        The first name of a directory counts. Both the path as it is written and where it leads to
        stand for the directory. A root is no place: its path is in every other.
        """
        names: dict[str, str] = {}
        package = Path(__file__).parents[1]  # they lie in it, or beside it in a checkout
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
        """Return this process's own places: working directory, homes, temporary directory."""
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
        """Return the path of that name as it was first written, of several one that is there."""
        paths = [path for path, known in self.names.items() if known == name]
        there = (path for path in paths if len(paths) > 1 and os.path.exists(path))
        return next(there, paths[0] if paths else None)


class Named:
    """What a request names, numbered by first appearance: recorded replies speak of it so."""

    def __init__(self, places: Places | None = None) -> None:
        self._places = places or Places({}, None)
        self._numbers: dict[tuple[str, str], int] = {}
        self._counts: dict[str, int] = {}

    def number(self, named: Sequence[tuple[str, str]]) -> list[int]:
        """Return the numbers of (rule, value) pairs, new ones counted on."""
        out = []
        for pair in named:
            if pair not in self._numbers:
                self._counts[pair[0]] = self._counts.get(pair[0], 0) + 1
                self._numbers[pair] = self._counts[pair[0]]
            out.append(self._numbers[pair])
        return out

    def pack(self, text: str) -> str:
        """Return a text in which this run's things stand as tokens."""
        tokens = {value: f"⟦{rule}:{n}⟧" for (rule, value), n in self._numbers.items()}
        if tokens:
            longest = sorted(tokens, key=len, reverse=True)
            pattern = rf"(?<!\w)(?:{'|'.join(map(re.escape, longest))})(?!\w)"
            text = re.sub(pattern, lambda match: tokens[match[0]], text)
        if self._places.pattern is not None:
            text = self._places.pattern.sub(lambda m: f"⟦{self._places.names[m[0]]}⟧", text)
        return text

    def unpack(self, text: str) -> str:
        """Return a recorded text with this run's things for its tokens; unknown ones stay."""
        if "⟦" not in text:
            return text
        values = {(rule, number): value for (rule, value), number in self._numbers.items()}

        def value(match: re.Match[str]) -> str:
            if match[2] is None:
                return self._places.path(match[1]) or match[0]
            return values.get((match[1], int(match[2])), match[0])

        return TOKEN.sub(value, text)
