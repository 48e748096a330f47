"""Takes the wrappers off a command: `sudo -u me nice -n 5 rm x` is `rm x` in the end."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from posixpath import basename

from hermes_nb.safety.commands.command_facts import (
    HARMLESS_WRAPPERS,
    OPERANDS_FIRST,
    PLAIN_OPTIONS,
    STRING_RUNNERS,
    WRAPPERS,
)
from hermes_nb.safety.commands.shell_words import Word

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


@dataclass(slots=True)
class Unwrapped:
    """The command inside, the variables set on the way, and the wrappers that do more than pass.

    `appended` means that more arguments come from somewhere else (xargs, parallel).
    """

    words: list[Word]
    assigned: list[str] = field(default_factory=list)
    serious: list[str] = field(default_factory=list)
    appended: bool = False
    lookup: bool = False


def unwrap(words: list[Word]) -> Unwrapped:
    """Return the command that `words` runs in the end; `words` are not empty."""
    result = Unwrapped(words)
    while result.words:
        name = tool_name(result.words[0])
        if name not in WRAPPERS or len(result.words) == 1:
            break
        if name == "command" and result.words[1].text in ("-v", "-V"):
            result.lookup = True
            break
        if STRING_RUNNERS.get(name) in {word.text for word in result.words}:
            break  # the command is in one string, for whoever reads those
        rest = _inside(result.words[1:], name)
        if not rest:
            break
        own = result.words[1 : len(result.words) - len(rest)]
        _note(result, name, [word.text for word in own if word.text.startswith("-")])
        result.words = rest
        while result.words and _ASSIGNMENT.match(result.words[0].text):
            result.assigned.append(result.words.pop(0).text.split("=")[0])
    return result


def tool_name(word: Word) -> str:
    r"""Return the name of a program as its facts know it: without directory, `\` or `.exe`."""
    return basename(word.text.lstrip("\\")).removesuffix(".exe")


def _note(result: Unwrapped, name: str, options: list[str]) -> None:
    if name in ("xargs", "parallel"):
        result.appended = True
        from_file = any(option.startswith(("-a", "--a")) for option in options)
        result.serious += [name] if from_file or name == "parallel" else []
    elif name not in HARMLESS_WRAPPERS or (name == "time" and options):
        result.serious.append(name)
    elif not all(PLAIN_OPTIONS.fullmatch(option) for option in options):
        result.serious.append(name)  # `env -C` would change what the arguments mean


def _inside(words: list[Word], name: str) -> list[Word]:
    """Return what follows a wrapper's own options and operands."""
    valued = WRAPPERS[name]
    at = 0
    while at < len(words) and (text := words[at].text).startswith("-") and text != "-":
        at += 1
        if text == "--":
            break
        if text in valued or _ends_valued(text, valued):
            at += 1
    return list(words[at + OPERANDS_FIRST.get(name, 0) :])


def _ends_valued(text: str, valued: frozenset[str]) -> bool:
    """Say whether a cluster like `-nu` ends with an option whose value is the next word."""
    cluster = re.fullmatch(r"-[A-Za-z]{2,}", text)
    return cluster is not None and f"-{text[-1]}" in valued and text[:2] not in valued
