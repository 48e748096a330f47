"""Finds the code that a command carries: scripts for shells, Python, commands for `find -exec`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from hermes_nb.safety.commands.command_facts import (
    CODE_OPTIONS,
    DELETERS,
    PYTHONS,
    SHELLS,
    STRING_RUNNERS,
)
from hermes_nb.safety.commands.destruction import find_roots, is_restricted
from hermes_nb.safety.commands.shell_script import Simple, given_to
from hermes_nb.safety.commands.shell_words import UNKNOWN, Word
from hermes_nb.safety.commands.unwrap import tool_name

_CALLS = re.compile(
    r"""(?:system|exec\w*|spawn\w*|popen|qx)\s*\(?\s*(["'])(?P<quoted>.{1,2000}?)\1"""
    r"""|`(?P<ticked>[^`]{1,2000})`""",
    re.DOTALL,
)
"""Where other languages start a program: `system("...")`, backticks."""


@dataclass(frozen=True, slots=True)
class Embedded:
    """Code inside a command: a shell script, Python, or the words of another command."""

    kind: Literal["shell", "python", "words"]
    text: str = ""
    words: tuple[Word, ...] = ()


def embedded(words: Sequence[Word], command: Simple) -> Iterator[Embedded]:
    """Yield the code that a command, its wrappers off, would run besides itself."""
    name = tool_name(words[0])
    texts = [word.text for word in words[1:]]
    if " " in words[0].text:
        yield Embedded("shell", " ".join([words[0].text, *texts]))
    if option := STRING_RUNNERS.get(name):
        yield from (Embedded("shell", after) for after in _after(texts, option))
    if name in SHELLS:
        yield from (Embedded("shell", script) for script in _shell_scripts(texts, command))
    elif name == "eval":
        yield Embedded("shell", " ".join(texts))
    elif name == "trap" and texts:
        yield Embedded("shell", next((t for t in texts if not t.startswith("-")), ""))
    elif PYTHONS.fullmatch(name):
        yield from (Embedded("python", code) for code in _python_code(texts, command))
    elif name in CODE_OPTIONS:
        yield from _other_code(name, texts, command)
    elif name == "find":
        yield from _executed(words)


def _after(texts: Sequence[str], option: str) -> Iterator[str]:
    """Yield what follows an option, as the next word or attached."""
    for at, text in enumerate(texts):
        if text == option:
            yield from texts[at + 1 : at + 2]
        elif text.startswith(option) and len(option) == 2:  # noqa: PLR2004 - a letter's option
            yield text[2:]


def _shell_scripts(texts: Sequence[str], command: Simple) -> Iterator[str]:
    for at, text in enumerate(texts):
        if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", text):
            yield from (t for t in texts[at + 1 :][:3] if not t.startswith("-"))
            return
    given = given_to(command)
    if given is not None and all(text.startswith("-") for text in texts):
        yield given


def _python_code(texts: Sequence[str], command: Simple) -> Iterator[str]:
    for at, text in enumerate(texts):
        if re.fullmatch(r"-[A-Za-z]*c", text):
            yield from texts[at + 1 : at + 2]
            return
        if not text.startswith("-"):
            return
    if (given := given_to(command)) is not None:
        yield given


def _other_code(name: str, texts: Sequence[str], command: Simple) -> Iterator[Embedded]:
    """Yield the shell commands in code of languages that are not parsed here."""
    options = CODE_OPTIONS[name]
    if options == ("",):
        codes = [text for text in texts if not text.startswith("-")][:1]
    else:
        codes = [code for option in options for code in _after(texts, option)]
    given = given_to(command)
    if not texts and given is not None:
        codes.append(given)
    for code in codes:
        for match in _CALLS.finditer(code):
            yield Embedded("shell", match["quoted"] or match["ticked"])


def _executed(words: Sequence[Word]) -> Iterator[Embedded]:
    """Yield the commands behind `-exec`, with what they would be given for `{}`."""
    texts = [word.text for word in words[1:]]
    places = [UNKNOWN] if is_restricted(texts) else find_roots(texts)
    for at, text in enumerate(texts):
        if text not in ("-exec", "-execdir", "-ok", "-okdir"):
            continue
        rest = words[at + 2 :]
        end = next((n for n, word in enumerate(rest) if word.text in (";", "+")), len(rest))
        for place in places:
            inner = [Word(w.text.replace("{}", place), w.glob, w.tame) for w in rest[:end]]
            if inner and tool_name(inner[0]) in DELETERS:
                inner.insert(1, Word("-r"))  # find visits all that is below a place
            if inner:
                yield Embedded("words", words=tuple(inner))
