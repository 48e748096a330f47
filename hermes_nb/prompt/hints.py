"""Instructions of subdirectories, told when the agent first gets there.

A hint is appended to the result of the call that led to it, never to the system prompt: the cached
prefix stays. Which hint goes where depends on calls and files alone, not on threads or hashes.
"""

from __future__ import annotations

import os
import re
import stat
import threading
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hermes_nb.prompt.command_paths import Mention
from hermes_nb.prompt.inside import Refused, repository
from hermes_nb.prompt.instructions import Accepts, ContextFile, Reader, Skipped, never
from hermes_nb.prompt.mentions import mentions
from hermes_nb.safety.visible import visible

NAMES = ("AGENTS.md", "agents.md", "CLAUDE.md", "claude.md", ".cursorrules")
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
        self._reader: Reader | None = None
        self._visited = {self._root}
        self._told: set[str] = set()
        self._settled = {self._root}
        """Directories that were visited with all their ancestors that count."""
        self._links: dict[str, str] = {}
        self._discovered: list[ContextFile] = []
        self._skipped: list[Skipped] = []
        self._lock = threading.Lock()

    @property
    def discovered(self) -> tuple[ContextFile, ...]:
        """The hints given so far, so that the user can be told what was blocked or marked."""
        return tuple(self._discovered)

    @property
    def skipped(self) -> tuple[Skipped, ...]:
        """The files that were there and could not be used."""
        return tuple(self._skipped)

    def mark(self, paths: Iterable[str | Path]) -> None:
        """Count files as told: absolute paths, or names as hints call them."""
        with self._lock:
            for path in paths:
                name = str(path)
                self._told.add(os.path.realpath(name) if os.path.isabs(name) else name)  # noqa: PTH117

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
                    self._note(file)
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
            path, steps = os.path.dirname(path), steps - 1  # noqa: PTH120
        return real or None

    def _real(self, path: str) -> str:
        """Return an existing directory without links, "" for anything else and what is outside."""
        if known := self._links.get(path):
            return known
        try:
            if not stat.S_ISDIR(os.stat(path).st_mode):  # noqa: PTH116 - in the fast path
                return ""
            real = os.path.realpath(path)
        except (OSError, ValueError):  # not there, or a name that the system does not take
            return ""
        if not self._inside(real):
            return ""
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
            directory = os.path.dirname(directory)  # noqa: PTH120

    def _inside(self, path: str) -> bool:
        return path == self._root or path.startswith(self._root.rstrip(os.sep) + os.sep)

    def _hint(self, directory: str) -> ContextFile | None:
        """Return what the directory has to say, None when that is nothing new."""
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
            self._reader = Reader(
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
            self._skip(name, path, str(refusal))
            return None

    def _skip(self, name: str, path: Path, reason: str) -> None:
        self._skipped.append(Skipped(name=visible(name), path=path, reason=reason))

    def _note(self, file: ContextFile) -> None:
        self._told.add(str(file.path))
        self._discovered.append(file)
