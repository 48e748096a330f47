"""What cassette files hold, read with whatever is wrong in them."""

from __future__ import annotations

import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from hermes_nb.models.replay.canonical import Canonical, Link, counted_digest, digest_of
from hermes_nb.models.replay.recording import Recording, read

LARGEST = 512 * 2**20
"""Bytes of a file that is read: far beyond any notebook's, below what would hurt a kernel."""


@dataclass(slots=True)
class Reel:
    """Recordings by their lines, in order; messages by their digests; what could not be read.

    `by_said` has the recordings of form 1 by what was said in the messages that they hold.
    """

    made: dict[bytes, Recording] = field(default_factory=dict)
    by_key: dict[str, list[bytes]] = field(default_factory=dict)
    by_said: dict[str, list[bytes]] = field(default_factory=dict)
    links: dict[str, Link] = field(default_factory=dict)
    edited: dict[bytes, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, files: Iterable[Path]) -> Reel:
        """Return what is in the files; what is wrong with one of them is a problem."""
        reel = cls()
        for file in files:
            try:
                lines = lines_of(file)
            except OSError as error:
                reel.problems.append(f"{file.name}: {error.strerror or error}")
                continue
            for number, line in enumerate(lines, 1):
                reel.take(line, f"{file.name}, line {number}")
        reel.key_anew()
        return reel

    def take(self, line: bytes, where: str = "") -> None:
        """Read a line; a damaged one becomes a problem, a second copy is nothing new."""
        if line in self.made or not line.strip():
            return
        try:
            thing = read(line)
        except ValueError as error:
            self.problems.append(f"{where}: {error}")
            return
        if isinstance(thing, Link):
            self.links.setdefault(thing.digest, thing)
            return
        self.made[line] = thing
        if thing.edited:
            self.edited[line] = where
        lines = self.by_key.setdefault(thing.key, [])
        lines.append(line)
        if len(lines) > 1:  # in the order of their run, and then in the file's
            lines.sort(key=lambda each: self.made[each].nth)

    def key_anew(self) -> None:
        """Key the recordings of form 1 by what was said in the messages that they hold."""
        digests = {digest: counted_digest(link.said) for digest, link in self.links.items()}
        for line, made in self.made.items():
            links = self.conversation(made) if made.form == 1 else []
            if links and not links[0].before:
                said = digest_of([each for link in links if (each := digests[link.digest])])
                self.by_said.setdefault(said, []).append(line)

    def find(self, now: Canonical) -> list[bytes]:
        """Return the lines that answer a request, in the order of their run."""
        return [*self.by_said.get(now.said, ()), *self.by_key.get(now.key, ())]

    def conversation(self, recording: Recording) -> list[Link]:
        """Return the messages that a recording answered, as far as they are there, in order."""
        out: dict[str, Link] = {}
        link = self.links.get(recording.head)
        while link is not None and link.digest not in out:
            out[link.digest] = link
            link = self.links.get(link.before)
        return list(out.values())[::-1]

    def needed(self, used: set[bytes]) -> set[str]:
        """Return the digests of the messages that these recordings answered."""
        needed: set[str] = set()
        for line, made in self.made.items():
            link = self.links.get(made.head) if line in used else None
            while link is not None and link.digest not in needed:
                needed.add(link.digest)
                link = self.links.get(link.before)
        return needed


def lines_of(path: Path) -> list[bytes]:
    """Return a file's lines without their ends; [] where there is no file.

    Only a line feed ends a line. Raises OSError for what is no regular file, or is far too large.
    """
    try:
        status = path.stat()
    except FileNotFoundError:
        return []
    if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST:
        message = "it is not a regular file, or too large"
        raise OSError(message)
    lines = path.read_bytes().split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.removesuffix(b"\r") for line in lines]
