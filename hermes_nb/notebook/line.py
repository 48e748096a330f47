"""Lines of our magics: taken apart, refused where they hold a key, and awaited in what runs.

The prompt behind the options stands as it is. A line with an API key is refused, and taken out of
the history. In a cell's lines our calls are awaited, and not taken for help. Where nothing can be
awaited (below `%%capture` and `%%time`, in a plain function) a turn cannot run: such a cell fails
with one line, and nothing is sent.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import inspect
import re
import sqlite3
from typing import TYPE_CHECKING

from IPython.core.getipython import get_ipython
from IPython.core.inputtransformer2 import make_tokens_by_line
from IPython.core.interactiveshell import InteractiveShell

from hermes_nb.core.errors import ConfigError, HermesError
from hermes_nb.notebook.shell import other
from hermes_nb.safety.redact import redact

if TYPE_CHECKING:
    from hermes_nb.notebook.shell import Foreign, Shell

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
    from difflib import get_close_matches

    near = get_close_matches(name, names, n=1)
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


CALL = re.compile(
    r"^(\s*(?:[\w.,\[\]'\" ]+=\s*)?)(get_ipython\(\)\.run_(?:cell|line)_magic\('hermes',)"
)


QUESTION = re.compile(r"^(\s*)%hermes[ \t]+(\S.*\?)\s*$")


def questions(lines: list[str]) -> list[str]:
    """Turn `%hermes … ?` into the call it stands for.

    IPython takes any line that ends with a question mark for a request for help, so a question to
    the agent would look up its last word. Lines inside a string are left alone.
    """
    rows = [row for row, line in enumerate(lines) if QUESTION.match(line)]
    if not rows or _others():
        return lines
    starts = {
        tokens[0].start[0] - 1
        for group in make_tokens_by_line(lines)
        if (tokens := [token for token in group if token.string.strip()])
        and tokens[0].string == "%"
    }
    return [
        QUESTION.sub(_call, line) if row in starts and row in rows else line
        for row, line in enumerate(lines)
    ]


def _others() -> bool:
    """Say whether the magics are another package's by now, which are not to be awaited."""
    shell: Foreign = get_ipython()
    return shell is not None and bool(other(shell))


def _call(match: re.Match[str]) -> str:
    return f"{match[1]}get_ipython().run_line_magic('hermes', {match[2]!r})\n"


_MAGICS = (InteractiveShell.run_cell_magic.__code__, InteractiveShell.run_line_magic.__code__)
_WHAT = "{} cannot wait for a turn of Hermes; nothing was sent. Instead, {}"
_INSTEAD = (
    "`%%hermes --into NAME --quiet` keeps the answer and shows only a status line, which has the "
    "time"
)


class NotAwaitedError(HermesError):
    """A cell cannot await a turn; it fails, and nothing is sent."""


class _UnheardError(BaseException):
    """The same below a magic that runs its cell and does not look at how that ended.

    Only what is no `Exception` passes through `InteractiveShell.run_cell`.
    """

    def _render_traceback_(self) -> list[str]:
        return [f"{NotAwaitedError.__name__}: {self}"]


def awaited(lines: list[str]) -> list[str]:
    """Put `await` before every call of our magics that IPython generated.

    Raises where nothing can be awaited, so that the cell fails.
    """
    out = [CALL.sub(r"\1await \2", line) for line in lines]
    if out == lines or _others():
        return lines
    if (around := _around()) is not None:
        magic, unheard = around
        raise (_UnheardError if unheard else NotAwaitedError)(_WHAT.format(f"`{magic}`", _INSTEAD))
    try:
        compile("".join(out), "cell", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except (SyntaxError, ValueError) as error:
        if "'await' outside" in str(error):
            message = _WHAT.format("a plain function", "call `Hermes().ask(PROMPT)` there")
            raise NotAwaitedError(message) from None
    return out


def _around() -> tuple[str, bool] | None:
    """Return what runs these lines without awaiting, and whether it hears of no error.

    None if there is none. In a terminal no loop runs yet, and a cell in a cell starts one.
    """
    frame, unheard = inspect.currentframe(), False
    while frame is not None:
        if frame.f_code is InteractiveShell.run_cell.__code__:
            unheard = True
            if asyncio._get_running_loop() is None:  # noqa: SLF001
                return None
        elif unheard and frame.f_code is InteractiveShell.run_code.__code__:
            return "run_cell", True
        elif frame.f_code in _MAGICS:
            return f"%{frame.f_locals['magic_name']}", unheard
        frame = frame.f_back
    return None
