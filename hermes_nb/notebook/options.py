"""Options at the start of a magic's line; the prompt after them is not changed."""

from __future__ import annotations

import argparse
import re

from hermes_nb.core.errors import ConfigError

_QUOTED = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""")


def split_options(line: str, parser: argparse.ArgumentParser) -> tuple[list[str], str]:
    """Return the option words at the start of a line, and the rest unchanged.

    A prompt is not parsed like a shell command: its apostrophes, quotes and dashes are plain text.
    An option's value follows a space or an equals sign, and may be quoted. `--` ends the options.
    Raises `ConfigError` for an unknown option.
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
    """Return the first word, which may be quoted, and the text after it."""
    if quoted := _QUOTED.match(text):
        plain, escaped = quoted.groups()
        value = plain if plain is not None else re.sub(r'\\(["\\])', r"\1", escaped)
        return value, text[quoted.end() :].lstrip()
    words = text.split(None, 1)
    if not words or text[:1].isspace():
        return "", text.lstrip()
    return words[0], words[1] if len(words) > 1 else ""
