"""The project's own instructions for agents, as the prompt carries them.

The first kind that is there wins: `.hermes.md` or `HERMES.md` (from the working directory up to the
root of its repository), `AGENTS.md`, `CLAUDE.md`, then Cursor's rules, these all together. A file
that says nothing, or that may not be read, lets the next one have its turn.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from hermes_nb.prompt.inside import Refused, real_inside, repository
from hermes_nb.prompt.instructions import Accepts, ContextFile, Reader, Skipped, commands, never
from hermes_nb.safety.trust import Trust
from hermes_nb.safety.visible import visible

INTRODUCTION = "Written for agents that work on this project; follow it where it fits the task."
HERMES = (".hermes.md", "HERMES.md")
AGENTS = ("AGENTS.md", "agents.md")
CLAUDE = ("CLAUDE.md", "claude.md")
CURSOR = ".cursorrules"
RULES = Path(".cursor", "rules")
TOTAL = 60_000
"""Characters of all files together; only Cursor's rules are ever more than one file."""
_MOST_ENTRIES = 1_000
_FRONTMATTER = re.compile(r"---[ \t]*\n(?:.*\n)*?(?:---|\.\.\.)[ \t]*(?:\n|\Z)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What was found: the files in the prompt's order, and what was passed over and why."""

    files: tuple[ContextFile, ...] = ()
    skipped: tuple[Skipped, ...] = ()

    @property
    def block(self) -> str:
        """The prompt's layer, "" without files."""
        if not self.files:
            return ""
        sections = [f"## {file.name}\n\n{file.text_loaded}" for file in self.files]
        return "\n\n".join([f"# Project Context\n\n{INTRODUCTION}", *sections])


def context_block(directory: str | Path, *, home: str | Path | None = None) -> str:
    """Return the context files of a working directory as a prompt carries them, "" without any.

    With Hermes' `home`, what the user trusts is loaded as it stands.
    """
    accepts = never if home is None else Trust(Path(home)).accepts
    return find_context(directory, accepts=accepts).block


def find_context(directory: str | Path, *, accepts: Accepts = never) -> Context:
    """Find the context files of a working directory; a text that `accepts` is not scanned."""
    here = Path(os.path.realpath(directory))
    root = repository(here)
    search = _Search(Reader(root=root or here, accepts=accepts))
    upwards = [here]
    if root is not None:
        upwards += [each for each in here.parents if each.is_relative_to(root)]
    files = (
        search.first([each / name for each in upwards for name in HERMES], hermes=True)
        or search.first([here / name for name in AGENTS])
        or search.first([here / name for name in CLAUDE])
        or search.cursor(here)
    )
    return Context(files=tuple(files), skipped=tuple(search.skipped))


@dataclass(slots=True)
class _Search:
    """Reads candidates, and notes which are there and cannot be used."""

    reader: Reader
    skipped: list[Skipped] = field(default_factory=list)

    def first(self, paths: list[Path], *, hermes: bool = False) -> list[ContextFile]:
        """Return the first file that says something, as a list."""
        prepare = without_frontmatter if hermes else str.strip
        found = (self._load(path, path.name, prepare) for path in paths)
        return list(islice(filter(None, found), 1))

    def cursor(self, here: Path) -> list[ContextFile]:
        """Return Cursor's rules that say something, within the total."""
        names = [CURSOR, *(str(RULES / name) for name in self._rules(here))]
        files: list[ContextFile] = []
        room = TOTAL
        for name in names:
            file = self._load(here / name, Path(name).as_posix())
            if file is None:
                continue
            if len(file.text_loaded) > room:
                self._skip(here / name, name, f"the rules are over {TOTAL:,} characters together")
            else:
                room -= len(file.text_loaded)
                files.append(file)
        return files

    def _rules(self, here: Path) -> Iterator[str]:
        """Yield the names of rule files, by code point whatever the locale."""
        directory = here / RULES
        try:
            with os.scandir(real_inside(directory, self.reader.root)) as entries:
                names = [entry.name for entry in islice(entries, _MOST_ENTRIES)]
        except (FileNotFoundError, NotADirectoryError):
            return
        except Refused as refusal:
            self._skip(directory, RULES.as_posix(), str(refusal))
            return
        except OSError as error:
            self._skip(directory, RULES.as_posix(), f"it cannot be read: {error.strerror}".lower())
            return
        for name in sorted(name for name in names if name.endswith(".mdc")):
            if commands(name):
                self._skip(directory / name, name, "its name reads like an instruction")
            else:
                yield name

    def _load(
        self, path: Path, name: str, prepare: Callable[[str], str] = str.strip
    ) -> ContextFile | None:
        try:
            return self.reader.load(path, name, prepare)
        except FileNotFoundError:
            return None
        except Refused as refusal:
            self._skip(path, name, str(refusal))
            return None

    def _skip(self, path: Path, name: str, reason: str) -> None:
        self.skipped.append(Skipped(name=visible(name), path=path, reason=reason))


def without_frontmatter(text: str) -> str:
    """Return the text behind YAML frontmatter; one that is never closed is text."""
    found = _FRONTMATTER.match(text)
    return text[found.end() :] if found else text
