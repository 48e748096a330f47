"""What the TAB key offers behind `%hermes` and `%%hermes`.

A matcher of IPython's completer, which terminals and kernels share. It looks at the line alone:
commands and options come from tables, names from an agent that has been used already. It imports
nothing heavy, opens nothing, sends nothing, and a name that cannot be had is not offered.
"""

from __future__ import annotations

import argparse
import glob
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from IPython.core.completer import CompletionContext, SimpleCompletion, context_matcher

from hermes_nb.notebook.commands.table import COMMANDS

LINE = re.compile(r"^\s*(?:[\w.,\[\]'\" ]+=\s*)?%hermes[ \t]+(.*)$", re.DOTALL)
CELL = re.compile(r"^%%hermes[ \t]+(.*)$", re.DOTALL)
OFFERED = {"--model": "models", "--session": "sessions", "--tools": "tools"}
"""Options whose value is one of the agent's names."""
MOST_FILES = 200
"""Files that are offered."""
VARIABLE = ("--image", "--into")
"""Options whose value is, or begins with, one of the user's variables."""


class Bell(Protocol):
    """The magics, as far as their words are completed."""

    @property
    def hermes(self) -> Any:  # noqa: ANN401 - the decorated magic
        """The magic, whose parser knows the options."""
        ...

    @property
    def shell(self) -> Any:  # noqa: ANN401 - IPython's shell
        """The shell with the user's variables."""
        ...

    @property
    def awake(self) -> Any:  # noqa: ANN401 - the agent, imported on first use
        """The agent if it has been used, else None."""
        ...


class Completions:
    """Completes the magics of one shell."""

    def __init__(self, magics: Bell) -> None:
        self._magics = magics
        self.matcher = self._make_matcher()

    def _make_matcher(self) -> Any:  # noqa: ANN401 - IPython's matcher protocol
        @context_matcher(identifier="hermes")
        def match(context: CompletionContext) -> Mapping[str, Any]:
            line = context.full_text.split("\n")[context.cursor_line][: context.cursor_position]
            offered = self.offered(line, first=context.cursor_line == 0)
            if offered is None:
                return {"completions": [], "suppress": False}
            fragment, words = offered
            return {
                "completions": [SimpleCompletion(text=word, type="hermes") for word in words],
                "matched_fragment": fragment,
                "suppress": True,
                "ordered": True,
            }

        match.hermes = True  # how it is found again by `unload`
        return match

    def offered(self, line: str, *, first: bool = True) -> tuple[str, list[str]] | None:
        """Return what the last word begins with and may become; None for a line not ours.

        `line` ends where the cursor stands; `first` says whether it is the cell's first one.
        """
        cell = CELL.match(line) if first else None
        found = cell or LINE.match(line)
        if found is None:
            return None
        typed = found[1]
        words = typed.split()
        fragment = words.pop() if words and not typed[-1:].isspace() else ""
        if (option := _open_option(words, self._options())) is not None:
            return self._value(option, fragment)
        name, _, value = fragment.partition("=")
        if "=" in fragment:
            return self._value(self._options().get(name), value)
        if fragment.startswith("-") and (not words or words[0] not in COMMANDS):
            return fragment, _beginning(self._options(), fragment)
        if cell is None and not words:
            return fragment, _beginning(COMMANDS, fragment)
        if cell is None and words[0] in COMMANDS:
            return self._argument(words[0], typed.lstrip()[len(words[0]) :].lstrip())
        return None

    def _options(self) -> dict[str, argparse.Action]:
        parser = self._magics.hermes.parser
        return {
            name: action
            for action in parser._actions  # noqa: SLF001 - argparse has no public listing
            for name in action.option_strings
            if name.startswith("--")
        }

    def _value(self, option: argparse.Action | None, fragment: str) -> tuple[str, list[str]] | None:
        """Return the values of an option that begin like that."""
        if option is None:
            return None
        if option.option_strings[-1] in VARIABLE:
            return fragment, _beginning(self._variables(), fragment)
        if option.choices is not None:
            return fragment, _beginning(map(str, option.choices), fragment)
        kind = OFFERED.get(option.option_strings[-1], "")
        if kind == "tools":  # several, by commas
            last = fragment.rpartition(",")[2]
            return last, _beginning(self._names(kind), last)
        quoted = (f'"{name}"' if " " in name else name for name in self._names(kind))
        return fragment, _beginning(quoted, fragment)

    def _argument(self, name: str, typed: str) -> tuple[str, list[str]] | None:
        """Return what a command's words, of which these are typed, may become."""
        if name == "map":
            return self._of_a_map(typed)
        command = COMMANDS[name]
        first, blank, rest = typed.partition(" ")
        if blank and first in command.before:
            rest = rest.lstrip()
            return rest, _beginning(self._names(command.names or ""), rest)
        named = [] if name == "skills" else self._names(command.names or "")
        offered = _beginning([*command.words, *named], typed)
        return (typed, offered) if command.words or command.names else None

    def _of_a_map(self, typed: str) -> tuple[str, list[str]] | None:
        """Return what the last word of a map may become: an option, a model's name, a file."""
        words = typed.split()
        fragment = words.pop() if words and not typed[-1:].isspace() else ""
        if fragment.startswith("-"):
            return fragment, _beginning(COMMANDS["map"].words, fragment)
        if words and words[-1] == "--model":
            return fragment, _beginning(self._names("models"), fragment)
        if words and words[-1] == "--executor":
            return fragment, _beginning(("threads", "ipyparallel"), fragment)
        # Before the prompt is closed, words are the prompt's; behind it, they are files.
        if typed.count('"') % 2 or typed.count('"') + typed.count("'") < 2:  # noqa: PLR2004 - both
            return None
        return fragment, _files(fragment)

    def _variables(self) -> list[str]:
        shell: Any = self._magics.shell
        hidden = shell.user_ns_hidden
        return [
            name for name in list(shell.user_ns) if name not in hidden and not name.startswith("_")
        ]

    def _names(self, kind: str) -> Iterable[str]:
        """Return names of a kind; without an agent there are only those that are always there."""
        if kind == "commands":
            return COMMANDS
        resident = self._magics.awake
        if resident is None:
            return ("embedded",) if kind == "models" else ()
        if kind == "jobs":
            return [job.id for job in resident.jobs]
        from hermes_nb.notebook.commands.names import NAMES

        known: Callable[[Any], list[str]] | None = NAMES.get(kind)
        return known(resident) if known is not None else ()


def _files(fragment: str) -> list[str]:
    """Return files and folders that begin like that, a folder with a slash behind it."""
    found = sorted(glob.glob(f"{glob.escape(fragment)}*"))[:MOST_FILES]  # noqa: PTH207 - as it is typed
    named = (f"{each}/" if Path(each).is_dir() else each for each in found)
    return [f'"{name}"' if " " in name else name for name in named]


def _open_option(
    words: list[str], options: Mapping[str, argparse.Action]
) -> argparse.Action | None:
    """Return the option whose value comes next, None if none is waiting for one."""
    if not words or "--" in words[:-1]:
        return None
    leading = _leading(words, options)
    action = options.get(words[-1])
    return action if leading and action is not None and action.nargs != 0 else None


def _leading(words: list[str], options: Mapping[str, argparse.Action]) -> bool:
    """Say whether all words are options and their values: the prompt has not begun."""
    value = False
    for word in words:
        if value:
            value = False
            continue
        name = word.partition("=")[0]
        if name not in options:
            return False
        value = "=" not in word and options[name].nargs != 0
    return True


def _beginning(words: Iterable[str], fragment: str) -> list[str]:
    """Return the words that begin like the fragment, each once, those in its case first."""
    lower = fragment.lower()
    found = dict.fromkeys(word for word in words if word.lower().startswith(lower))
    return sorted(found, key=lambda word: not word.startswith(fragment))
