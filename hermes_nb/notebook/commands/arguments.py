"""Parse the words after a command according to its `values`.

The keys of `values` are explained in commands.toml. Options that are declared before a value must
come first, as in `fix --cell CELL WISH`, because the rest is text; others can be anywhere.
"""

from __future__ import annotations

import math
import re
import shlex
from argparse import Namespace
from collections.abc import Callable, Mapping

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser

from hermes_nb.core.errors import ConfigError
from hermes_nb.notebook.options import split_options

Keys = dict[str, str]
"""Keys of `values`, by first word without brackets."""


def kinds(values: Mapping[str, str]) -> tuple[Keys, Keys, list[str]]:
    """Return the actions and options by word, and the keys of the other values."""
    actions = {key.split()[0]: key for key in values if key[0].islower()}
    bracketed = [key for key in values if re.match(r"\[(--|[a-z])", key)]
    options = {key.strip("[]").split()[0]: key for key in bracketed}
    return actions, options, [k for k in values if k not in (*actions.values(), *bracketed)]


def parsed(name: str, values: Mapping[str, str], line: str) -> Namespace:
    """Return a line's values by lower-case name; "", 0 or False if omitted.

    `action` is the action, and `rest` the text after it. If a command's first value is quoted,
    `words` are the values, split as by a shell. Raises `ConfigError`.
    """
    try:
        return _parsed(name, values, line.strip())
    except (UsageError, ConfigError, ValueError) as error:
        raise ConfigError(f"{error}; `%hermes help {name}` explains the command") from None


def _parsed(name: str, values: Mapping[str, str], line: str) -> Namespace:
    actions, options, others = kinds(values)
    parser = _parser(options)
    if others and others[0].startswith('"'):
        parser.add_argument("words", nargs="*")
        return parser.parse_intermixed_args(shlex.split(line))
    first, *more = line.split(None, 1) or [""]
    action = first if first in actions or others else first.lower()
    rest = more[0] if more else ""
    # An action without arguments only counts if it is alone: `trust kernel-notes.md and more`.
    if action not in actions or (rest and others and actions[action] == action):
        action, rest = "", line
    if first and not action and not (others or first in options):
        known = ", ".join([*actions, *options]) or "no values"
        raise UsageError(
            f"there is no `%hermes {name} {first}`; the command takes {known}. "
            f"`%hermes -- {name} {line}` sends it as a prompt"
        )
    tokens = _tokens(actions[action]) if action else [t for key in others for t in _tokens(key)]
    keys = list(values)
    if options and others and keys.index(next(iter(options.values()))) < keys.index(others[0]):
        words, rest = split_options(rest, parser)
    else:
        words, rest = _take_options(rest, options)
    given = parser.parse_args(words)
    for token in (t for key in (*actions.values(), *others) for t in _tokens(key)):
        setattr(given, _name(token), "")
    given.action, given.rest = action, rest
    for token in tokens:
        rest = _bound(given, token, rest)
        if "…" in token:  # it consumed the rest
            break
    if rest:
        raise UsageError(f"{rest.split()[0]!r} is not understood")
    return given


def _tokens(key: str) -> list[str]:
    """Return a key's values, without its action."""
    return re.findall(r"\[[^\]]*\]|[A-Z\"]\S*", key)


def _name(token: str) -> str:
    word = re.search(r"[A-Z]+", token)
    return word[0].lower() if word else "which"


def _bound(given: Namespace, token: str, text: str) -> str:
    """Set a token's value from the start of a text, and return the rest."""
    if " or " in token:  # `[memory or user]`
        first = next(iter(text.split(None, 1)), "")
        given.which = first if first in token.strip("[]").split(" or ") else ""
        return text.removeprefix(given.which).lstrip()
    first, *more = [text] if "…" in token else text.split(None, 1) or [""]
    if not first and "[" not in token:
        raise UsageError(f"{token.strip('…')} is missing")
    kind = TYPES.get(_name(token).upper(), str)
    setattr(given, _name(token), kind(first) if first else "")
    return more[0] if more else ""


def _parser(options: Keys) -> MagicArgumentParser:
    parser = MagicArgumentParser("%hermes", add_help=False)
    for word, key in options.items():
        _, *metavar = key.strip("[]").split()
        flag = f"--{word.removeprefix('--')}"
        if metavar:
            kind = TYPES.get(metavar[0], str)
            parser.add_argument(flag, type=kind, default="" if kind is str else None)
        else:
            parser.add_argument(flag, action="store_true")
    return parser


def _take_options(text: str, options: Keys) -> tuple[list[str], str]:
    """Return the options in a text, and the text without them."""
    if not options:
        return [], text
    found: list[str] = []
    left: list[str] = []
    words = iter(text.split())
    for word in words:
        name, _, value = word.partition("=")
        if name not in options:
            if name.startswith("--"):
                raise UsageError(f"there is no option {name}")
            left.append(word)
            continue
        flag, takes = f"--{name.removeprefix('--')}", " " in options[name]
        if takes and "…" in options[name]:
            value = " ".join(words)
        elif takes:
            value = value or next(words, "")
        found.append(f"{flag}={value}" if takes else flag)
    return found, " ".join(left)


def _turns(text: str) -> int:
    """Parse a number of turns, or of days (`90d`)."""
    digits = text.removesuffix("d")
    if not (digits.isascii() and digits.isdigit()):
        raise ValueError(f"{text!r} is not a number")
    return int(digits[:9])


def _count(text: str) -> int:
    """Parse an integer above 0."""
    if (number := int(text)) < 1:
        raise ValueError
    return number


def _amount(text: str) -> float:
    """Parse a number above 0."""
    if not 0 < (number := float(text)) < math.inf:
        raise ValueError
    return number


_count.__name__, _amount.__name__, _turns.__name__ = (
    "integer above 0",
    "number above 0",
    "number",
)
TYPES: Mapping[str, Callable[[str], object]] = {
    "TURN": _turns, "TURNS": _turns, "DAYS": _turns, "N": _count, "USD": _amount,
}  # fmt: skip
"""Numeric values, by their word in `values`."""
