"""A magic's line taken apart: its options, and the prompt behind them as it stands.

An API key on a line is refused, and the line is taken out of the history.
"""

from __future__ import annotations

import argparse
import difflib
import keyword
import re
import sqlite3
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hermes_nb.core.budget import Limits
from hermes_nb.core.errors import ConfigError
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:  # what every kernel imports stays small
    from hermes_nb.core.protocols import Effort
    from hermes_nb.notebook.shell import Shell
    from hermes_nb.safety.guard import Mode

KEY_OPTION = re.compile(r"--?(?:api[-_]?key|token|secret)\b", re.IGNORECASE)
REMOVED = "# (a line with an API key was removed)"
ADVICE = (
    "an API key does not belong in a notebook; this line was removed from the history. "
    "`%hermes key` asks for one without showing it. Delete the key from the cell, and make a new "
    "one at the provider: this one has been seen"
)


def refuse_key(shell: Shell, line: str) -> None:
    """Raise `ConfigError` if a line holds a key, and forget the line."""
    if KEY_OPTION.search(line) or redact(line) != line:
        forget(shell)
        raise ConfigError(ADVICE)


def forget(shell: Shell) -> None:
    """Take the running cell's input out of the history: the lists, the cache and the database."""
    manager = shell.history_manager
    number = len(manager.input_hist_raw) - 1
    if number < 1:
        return
    manager.input_hist_raw[number] = REMOVED
    manager.input_hist_parsed[number] = REMOVED
    shell.user_ns["_i"] = manager._i00 = REMOVED  # noqa: SLF001 - IPython's copy of the last input
    shell.user_ns[f"_i{number}"] = REMOVED
    cache = manager.db_input_cache
    cache[:] = [
        (n, REMOVED, REMOVED) if n == number else (n, parsed, raw) for n, parsed, raw in cache
    ]
    if not manager.enabled:
        return
    manager.writeout_cache()
    try:
        with manager.db:
            manager.db.execute(
                "UPDATE history SET source = ?, source_raw = ? WHERE session = ? AND line = ?",
                (REMOVED, REMOVED, manager.session_number, number),
            )
    except sqlite3.Error as error:
        message = f"the key is still in IPython's history ({error}); `%history -g` shows where"
        raise ConfigError(message) from error


_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""")


def split_options(line: str, parser: argparse.ArgumentParser) -> tuple[list[str], str]:
    """Return the option words at the start of a line, and the rest untouched.

    A prompt is no shell command: its apostrophes, quotes and dashes mean nothing here. The value
    of an option may be quoted, behind a blank or an equals sign. `--` ends the options. Raises
    `ConfigError` for an option that does not exist.
    """
    words: list[str] = []
    rest = line.strip()
    takes_value = {
        name: action.nargs != 0
        for action in parser._actions  # noqa: SLF001 - argparse has no public listing
        for name in action.option_strings
    }
    while rest.startswith("-"):
        word = rest.split(None, 1)[0]
        if word == "--":
            return words, rest[len(word) :].lstrip()
        name, equals, _ = word.partition("=")
        if name not in takes_value:
            raise _unknown(name, takes_value)
        rest = rest[len(name) + len(equals) :]
        if not equals and not takes_value[name]:
            words.append(name)
            rest = rest.lstrip()
            continue
        value, rest = _first_word(rest if equals else rest.lstrip())
        words.append(f"{name}={value}" if value or equals else name)
    return words, rest


def _unknown(name: str, known: dict[str, bool]) -> ConfigError:
    names = [each for each in known if each.startswith("--")]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"the options are {', '.join(names)}"
    return ConfigError(f"there is no option {name}; {hint} (`--` starts a prompt)")


def _first_word(text: str) -> tuple[str, str]:
    """Return the first word, which may be quoted, and what follows it."""
    if quoted := _QUOTED.match(text):
        plain, escaped = quoted.groups()
        value = plain if plain is not None else re.sub(r'\\(["\\])', r"\1", escaped)
        return value, text[quoted.end() :].lstrip()
    words = text.split(None, 1)
    if not words or text[:1].isspace():
        return "", text.lstrip()
    return words[0], words[1] if len(words) > 1 else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnOptions:
    """One turn's wishes; None, "" and () mean: as it is.

    `images` are expressions, `into` is the name of a variable. `limits` hold for this turn alone.
    """

    model: str = ""
    tools: str = ""
    session: str = ""
    new: bool = False
    context: bool = True
    max_requests: int | None = None
    limits: Limits = field(default_factory=Limits)
    approve: Mode | None = None
    effort: Effort = ""
    images: tuple[str, ...] = ()
    into: str = ""
    quiet: bool = False
    dry_run: bool = False

    def check(self, prompt: str) -> None:
        """Raise `ConfigError` for what can be seen to be wrong before anything happens."""
        if not prompt.strip():
            raise ConfigError("the prompt is empty; write it below %%hermes or behind %hermes")
        if self.into and (not self.into.isidentifier() or keyword.iskeyword(self.into)):
            raise ConfigError(f"--into {self.into!r} is not a variable's name; nothing was sent")
