"""The command policy: a shell command runs unasked, asks first, or is refused for good.

The command is parsed like a shell would, and every simple command in it is judged, also those in
substitutions, functions and strings given to another shell. Data is not code: a heredoc for `cat`
or an argument of `echo` says nothing about what runs. Whatever is not understood asks.
"""

from __future__ import annotations

import logging
import re
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hermes_nb.safety.commands.destruction import (
    destruction,
    destruction_by_python,
    destruction_by_redirect,
)
from hermes_nb.safety.commands.embedded import Embedded, embedded
from hermes_nb.safety.commands.python_code import effects
from hermes_nb.safety.commands.readonly import (
    why_assignment_asks,
    why_not_readonly,
    why_redirect_asks,
)
from hermes_nb.safety.commands.shell_script import Simple, output_of
from hermes_nb.safety.commands.shell_syntax import TooLongError, read
from hermes_nb.safety.commands.shell_words import Scope, Word
from hermes_nb.safety.commands.unwrap import unwrap

logger = logging.getLogger(__name__)

LENGTH_LIMIT = 20_000
TIME_LIMIT = 0.2
"""Seconds for one command; a thousandth of that is usual."""
_NESTING = 6
_HIDDEN = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|[\x00-\x08\x0b-\x1f\x7f-\x9f]"
    r"|[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\U000e0000-\U000e007f]"
)
"""Terminal sequences, control, zero-width, direction and tag characters."""


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the policy says about a command, and why in a few words."""

    decision: Literal["allow", "ask", "deny"]
    reason: str = ""


def assess(command: str) -> Assessment:
    """Judge a shell command; never raises.

    `deny` is for what destroys the system, a home or a disk, forks without end or ends the
    machine; `allow` for what is known to only read; everything else is `ask`.
    """
    if len(command) > LENGTH_LIMIT:
        return Assessment("ask", f"it is longer than {LENGTH_LIMIT:,} characters")
    judge = _Judge(time.monotonic() + TIME_LIMIT)
    try:
        judge.script(command)
        if (shown := _disguised(command)) != command:
            judge.doubts.append("it has invisible characters, which can hide what it does")
            judge.script(shown)
    except TooLongError:
        judge.doubts.append("it is too complicated to be checked beforehand")
    except (RecursionError, MemoryError):
        judge.doubts.append("it is too complicated to be checked beforehand")
    except ImportError:
        judge.doubts.append("the shell parser is not installed")
    except _RefusedError as refused:
        return Assessment("deny", str(refused))
    except Exception:  # what cannot be judged asks, whatever the cause
        logger.exception("a command could not be judged")
        judge.doubts.append("it could not be checked beforehand")
    return Assessment("ask", judge.doubts[0]) if judge.doubts else Assessment("allow")


class _RefusedError(Exception):
    """Nothing that follows can change the verdict; the text is the reason."""


def _disguised(command: str) -> str:
    """Return a command without what a terminal would not show, look-alike letters made plain."""
    return unicodedata.normalize("NFKC", _HIDDEN.sub("", command))


@dataclass(slots=True)
class _Judge:
    """Collects doubts, and raises `_RefusedError` on destruction."""

    deadline: float
    doubts: list[str] = field(default_factory=list)
    _depth: int = 0

    def script(self, source: str, directory: str | None = None) -> None:
        """Judge everything in a shell script."""
        script = read(source, deadline=self.deadline, scope=Scope(directory=directory))
        if script.bombs:
            message = "it forks without end"
            raise _RefusedError(message)
        for command in script.commands:
            if time.monotonic() > self.deadline:
                raise TooLongError
            self._command(command)
        self.doubts += script.unsure

    def _command(self, command: Simple) -> None:
        where = command.directory
        for redirect in command.redirects:
            self._refuse(destruction_by_redirect(redirect, where))
            self._doubt(why_redirect_asks(redirect, where))
        for name, _ in command.assigned:
            self._doubt(why_assignment_asks(name))
        if command.words:
            self._words(command.words, command)

    def _words(self, words: Sequence[Word], command: Simple) -> None:
        inner = unwrap(list(words))
        if not inner.words:
            return
        if inner.appended and command.feed is not None:
            given = output_of(command.feed) or ""
            inner.words = [*inner.words, *(Word(text) for text in given.split())]
        self._refuse(destruction(inner.words, command.directory))
        for code in embedded(inner.words, command):
            self._embedded(code, command)
        self._doubt(why_not_readonly(inner, command.directory))

    def _embedded(self, code: Embedded, command: Simple) -> None:
        """Judge code inside of a command; that it is there never makes a command allowed."""
        if self._depth >= _NESTING:
            self.doubts.append("it is too complicated to be checked beforehand")
            return
        self._depth += 1
        match code.kind:
            case "shell":
                self.script(code.text, command.directory)
            case "python":
                self._python(code.text, command.directory)
            case "words":
                self._words(code.words, command)
        self._depth -= 1

    def _python(self, code: str, directory: str | None) -> None:
        for effect in effects(code):
            self._refuse(destruction_by_python(effect, directory))
            if effect.kind == "shell":
                self._embedded(Embedded("shell", effect.target), Simple(directory=directory))
        self.doubts.append("it runs Python")

    def _refuse(self, lost: str) -> None:
        if lost:
            raise _RefusedError(lost)

    def _doubt(self, why: str) -> None:
        if why:
            self.doubts.append(why)
