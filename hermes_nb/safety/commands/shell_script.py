"""The simple commands of a shell script as values, and what the plainest of them print."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from hermes_nb.safety.commands.shell_words import Word


@dataclass(frozen=True, slots=True)
class Redirect:
    """`operator` (`>`, `<`, `&>`, `>&`, ...) and where it leads."""

    operator: str
    target: Word


@dataclass(slots=True)
class Simple:
    """A simple command. `given` is its standard input where that is constant text."""

    words: list[Word] = field(default_factory=list)
    assigned: list[tuple[str, Word]] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    given: str | None = None
    feed: Simple | None = None
    directory: str | None = None

    @property
    def name(self) -> str:
        """The first word, or ""."""
        return self.words[0].text if self.words else ""


@dataclass(slots=True)
class Script:
    """What was read: commands, what could not be understood, and functions that multiply."""

    commands: list[Simple] = field(default_factory=list)
    unsure: list[str] = field(default_factory=list)
    bombs: list[str] = field(default_factory=list)


def output_of(command: Simple) -> str | None:
    """Return what a command prints, where that is plain: echo, printf, cat of constant text."""
    words = command.words[1:]
    if not all(word.known and not word.glob for word in command.words):
        return None
    texts = [word.text for word in words]
    match command.name:
        case "echo":
            while texts and re.fullmatch(r"-[neE]+", texts[0]):
                texts = texts[1:]
            return " ".join(texts) + "\n"
        case "printf" if texts and "%" not in texts[0]:
            return texts[0].replace("\\n", "\n")
        case "printf" if texts and re.fullmatch(r"%s(\\n)?", texts[0]):
            return "\n".join(texts[1:]) + "\n"
        case "cat" if not texts or texts == ["-"]:
            return given_to(command)
    return None


def given_to(command: Simple) -> str | None:
    """Return the constant text that a command reads, from a heredoc or a pipe."""
    if command.given is not None:
        return command.given
    return output_of(command.feed) if command.feed is not None else None
