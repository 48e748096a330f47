"""One value put into a JSON text that people edit, and taken out again, the rest byte for byte.

The text is never written anew. What is added goes behind the last member, in the style of the
members before it, so that taking it out gives the text that was. Objects that were made for it go
with it; one that was there before stays, also when it was empty.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hermes_nb.core.errors import ConfigError

_BLANK = " \t\n\r"
_decode: Callable[[str, int], tuple[Any, int]] = json.JSONDecoder().raw_decode


@dataclass(frozen=True, slots=True)
class _Member:
    """A member of an object or array: where it begins, where its value does, and where it ends."""

    key: str | None
    start: int
    at: int
    end: int


def parsed(text: str) -> Any:  # noqa: ANN401 - JSON
    """Return the document; raise `ConfigError` with the place of what is wrong."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        message = f"it is not valid JSON: {error.msg} in line {error.lineno}"
        raise ConfigError(message) from error
    except (ValueError, RecursionError) as error:  # numbers and nesting beyond all bounds
        message = f"it cannot be read as JSON: {error}"
        raise ConfigError(message) from error


def with_member(text: str, path: Sequence[str], value: str) -> str:
    """Return a JSON object with `value` at a path of keys; an equal one is there already.

    Raises `ConfigError` for a text that is no JSON object, or has another value there.
    """
    parsed(text)
    at = _start(text)
    for depth, key in enumerate(path):
        _need_object(text, at, path[:depth])
        members = _members(text, at)
        found = _last(members, key)
        if found is None:
            added = f"{json.dumps(key)}: {_nested(path[depth + 1 :], value)}"
            return _appended(text, at, members, added)
        at = found.at
    there = _decode(text, at)[0]
    if there != value:
        message = f"{'.'.join(path)} is {there!r} there; take that out first"
        raise ConfigError(message)
    return text


def without_member(text: str, path: Sequence[str], value: str) -> str:
    """Return a JSON object without `value` at a path of keys; where it is not, nothing changes.

    Raises `ConfigError` for a text that is no JSON.
    """
    parsed(text)
    at = _start(text)
    way: list[tuple[list[_Member], _Member, int]] = []
    for key in path:
        members = _members(text, at) if text[at] == "{" else []
        found = _last(members, key)
        if found is None:
            return text
        way.append((members, found, at))
        at = found.at
    if _decode(text, at)[0] != value:
        return text
    depth = len(path) - 1
    while depth and _made_for_it(text, way[depth - 1][1], path[depth:], value):
        depth -= 1
    return _taken_out(text, *way[depth])


def with_items(text: str, key: str, items: Sequence[str]) -> str:
    """Return a JSON object with texts at the end of the array that it has under a key."""
    array = _array(text, key)
    for item in items:
        members = _members(text, array)
        if item not in [_decode(text, each.at)[0] for each in members]:
            text = _appended(text, array, members, json.dumps(item))
    return text


def without_items(text: str, key: str, items: Sequence[str]) -> str:
    """Return a JSON object without texts of the array that it has under a key."""
    array = _array(text, key)
    for item in reversed(items):
        members = _members(text, array)
        found = [each for each in members if _decode(text, each.at)[0] == item]
        if found:
            text = _taken_out(text, members, found[-1], array)
    return text


def _array(text: str, key: str) -> int:
    """Return where the array under a key of the top level begins."""
    parsed(text)
    at = _start(text)
    _need_object(text, at, ())
    found = _last(_members(text, at), key)
    if found is None or text[found.at] != "[":
        message = f"it has no list {key!r}"
        raise ConfigError(message)
    return found.at


def _members(text: str, at: int) -> list[_Member]:
    """Return the members of the object or array that begins at a place; the text is valid JSON."""
    keyed = text[at] == "{"
    members: list[_Member] = []
    at = _skip(text, at + 1)
    while text[at] not in "}]":
        start, key = at, None
        if keyed:
            key, at = _decode(text, at)
            at = _skip(text, _skip(text, at) + 1)  # a colon
        value_at = at
        _, at = _decode(text, at)
        members.append(_Member(key, start, value_at, at))
        at = _skip(text, at)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return members


def _last(members: Sequence[_Member], key: str) -> _Member | None:
    """Return the member of that key; of several the last one, as all readers of JSON do."""
    return next((each for each in reversed(members) if each.key == key), None)


def _appended(text: str, at: int, members: Sequence[_Member], added: str) -> str:
    """Return the text with a new last member in the object or array at a place."""
    if not members:
        return f"{text[: at + 1]} {added}{text[at + 1 :]}"
    end, last = members[-1].end, members[-1].start
    start = last
    while text[start - 1] in _BLANK:
        start -= 1
    return f"{text[:end]},{text[start:last]}{added}{text[end:]}"


def _taken_out(text: str, members: Sequence[_Member], gone: _Member, at: int) -> str:
    """Return the text without a member of the object or array at a place."""
    place = members.index(gone)
    if place:
        return text[: members[place - 1].end] + text[gone.end :]
    if len(members) > 1:
        return text[: gone.start] + text[members[1].start :]
    return text[: at + 1] + text[gone.end :]


def _made_for_it(text: str, member: _Member, path: Sequence[str], value: str) -> bool:
    """Say whether an object is as `with_member` makes it, and not one that it was put into."""
    return text[member.at : member.end] == _nested(path, value)


def _nested(path: Sequence[str], value: str) -> str:
    nested: Any = value
    for key in reversed(path):
        nested = {key: nested}
    return json.dumps(nested)


def _need_object(text: str, at: int, path: Sequence[str]) -> None:
    if text[at] != "{":
        message = f"{'.'.join(path) or 'its top level'} is no object with keys and values"
        raise ConfigError(message)


def _start(text: str) -> int:
    return _skip(text, 0)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _BLANK:
        at += 1
    return at
