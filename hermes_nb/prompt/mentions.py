"""The paths that a tool call mentions, whatever the tool: by its arguments' names, and in commands.

Arguments come from a model and may be anything; nothing in them raises, and what is looked at is
bounded.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

from hermes_nb.prompt.command_paths import Mention, mention, paths_in

MOST = 64
"""Mentions of one call that are followed."""
_MOST_VALUES = 1_000
_DEEPEST = 6
_LONGEST_PATH = 4_096
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_PATH_KEY = re.compile(
    r"(?:.*_)?(?:path|file|filename|filepath|dir|directory|folder|workdir|cwd|notebook)s?", re.I
)
_LIKELY_KEY = re.compile(r"(?:.*_)?(?:source|src|destination|dest|target|root)s?", re.I)
"""Names that often, but not always, stand for paths."""
_COMMAND_KEY = re.compile(r"command|cmd|script|shell", re.I)
_PLACE_KEY = re.compile(r"work_?dir|cwd|working_directory", re.I)


def mentions(arguments: object) -> list[Mention]:
    """Return what a call's arguments mention, each once, in the order of the arguments.

    Words of a command are relative to the call's `workdir` as well, where it has one.
    """
    place = _place(arguments)
    found: dict[Mention, None] = {}
    for each in islice(_walk(arguments, place), 4 * MOST):
        found.setdefault(each)
    return list(found)[:MOST]


def _walk(arguments: object, place: str) -> Iterator[Mention]:
    """Yield the mentions in nested values, depth first, in order."""
    waiting: list[tuple[str, object, int]] = [("", arguments, 0)]
    for _ in range(_MOST_VALUES):
        if not waiting:
            return
        key, value, depth = waiting.pop()
        if isinstance(value, str):
            yield from _said(key, value, place)
        elif depth < _DEEPEST:
            waiting += [(k, v, depth + 1) for k, v in reversed(_items(key, value))]


def _items(key: str, value: object) -> list[tuple[str, Any]]:
    """Return what a value holds, with the names it goes by; a list's items go by the list's."""
    if isinstance(value, Mapping):
        return [(_CAMEL.sub("_", str(k)[:80]), v) for k, v in islice(value.items(), _MOST_VALUES)]
    if isinstance(value, (list, tuple)):
        return [(key, each) for each in value[:_MOST_VALUES]]
    return []


def _said(key: str, value: str, place: str) -> Iterator[Mention]:
    if _COMMAND_KEY.fullmatch(key):
        for each in paths_in(value):
            if place and each.path[0] != "/":
                yield Mention(f"{place}/{each.path}", each.sure)
            yield each
    elif len(value) <= _LONGEST_PATH:
        sure = _PATH_KEY.fullmatch(key) is not None
        if (sure or _LIKELY_KEY.fullmatch(key)) and (found := mention(value, sure=sure)):
            yield found


def _place(arguments: object) -> str:
    """Return the directory that a call's command runs in, as far as it says."""
    if isinstance(arguments, Mapping):
        for key, value in islice(arguments.items(), _MOST_VALUES):
            known = isinstance(value, str) and len(value) <= _LONGEST_PATH
            if known and _PLACE_KEY.fullmatch(str(key)[:80]) and (found := mention(value)):
                return found.path
    return ""
