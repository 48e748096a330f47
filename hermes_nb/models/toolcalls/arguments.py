"""Read the JSON arguments of a tool call, and refuse what could be misread.

Valid JSON is kept byte for byte. Broken JSON is repaired only when there is one way to read it: its
brackets are balanced and the repaired value holds exactly the source's own words in their order.
Anything else becomes a problem that the model reads, never a half-parsed call.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hermes_nb.core.text import clean, dumps, too_deep

_TOO_DEEP = "nested too deeply"
_REPAIRED_UP_TO = 50_000
"""Characters; a repair is a convenience, not worth seconds of a kernel's time."""

_TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*+"|'(?:[^'\\]|\\.)*+')
      | (?P<mark>[{}\[\]:,])
      | (?P<space>\s++|//[^\n]*+|/\*(?:[^*]|\*(?!/))*+(?:\*/|\Z))
      | (?P<word>[^\s{}\[\]:,"'/]++)
      | (?P<other>.)""",
    re.VERBOSE | re.DOTALL,
)
QUOTES = ("'", '"')
_CLOSERS = {"{": "}", "[": "]"}
_WORDS = {"true": True, "True": True, "false": False, "False": False, "null": None, "None": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """The arguments as a value, the JSON text to send back, and why they cannot be used."""

    value: Mapping[str, Any] = field(default_factory=dict)
    text: str = ""
    problem: str = ""


def parse_arguments(text: str, *, cut: bool = False) -> Arguments:
    """Return the arguments in `text`.

    `cut` says that the reply ended early: then nothing is repaired, and no arguments at all are a
    problem too, because they had not been written yet.
    """
    stripped = text.strip()
    if not stripped or stripped in ("null", "None"):
        if cut:
            return _problem("the reply was cut off before the arguments were written; call again")
        return Arguments(text="{}")
    try:
        value = strict_json(stripped)
    except (ValueError, RecursionError) as error:
        return _repaired(stripped, error, cut=cut)
    if isinstance(value, str) and not cut:  # some servers encode the JSON twice
        inner = parse_arguments(value) if value.lstrip().startswith("{") else _not_object(value)
        return (
            inner if inner.problem else Arguments(value=inner.value, text=dumps_text(inner.value))
        )
    if not isinstance(value, dict):
        return _not_object(value)
    return Arguments(value=clean(value), text=stripped)


def dumps_text(value: object) -> str:
    """Return compact JSON text for a value of any origin."""
    return dumps(value).decode("utf-8")


def strict_json(text: str, *, control: bool = False) -> Any:  # noqa: ANN401 - any JSON value
    """Return a JSON value that every reader understands alike; `control` allows bare line ends.

    Raises ValueError or RecursionError on anything else: no JSON, NaN, a number without bounds,
    nesting without end.
    """
    value = json.loads(text, strict=not control, parse_constant=_refuse, parse_float=_finite)
    if too_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


def _refuse(name: str) -> Any:  # noqa: ANN401 - never returns
    message = f"{name} is not JSON"
    raise ValueError(message)


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        message = f"{digits[:20]} is too large a number"
        raise ValueError(message)
    return number


def _problem(text: str) -> Arguments:
    return Arguments(problem=text)


def _not_object(value: object) -> Arguments:
    kinds: dict[type, str] = {list: "an array", str: "a string"}
    kind = kinds.get(type(value), "no object")
    return _problem(f"the arguments are {kind}; they must be one JSON object")


def _repaired(text: str, error: Exception, *, cut: bool) -> Arguments:
    reason = str(error) if isinstance(error, ValueError) else _TOO_DEEP
    if cut or not _balanced(text):
        return _problem(
            f"the arguments' JSON is cut off ({reason}); nothing was run, call again with all of it"
        )
    value = None if len(text) > _REPAIRED_UP_TO else _unambiguous(text)
    if value is None or too_deep(value):
        return _problem(f"the arguments are not valid JSON ({reason}); nothing was run, call again")
    return Arguments(value=clean(value), text=dumps_text(value))


_LENIENT = json.JSONDecoder(strict=False, parse_constant=_refuse, parse_float=_finite)


def _unambiguous(text: str) -> dict[str, Any] | None:
    """Return the one object that broken JSON can mean, or None when there are several."""
    text = _without_fence(text)
    text = text.removeprefix("{}").lstrip() or text  # an empty start, then the real arguments
    try:
        value, end = _LENIENT.raw_decode(text)
        if isinstance(value, dict) and not text[end:].strip(" \t\r\n}]"):
            return value
    except (ValueError, RecursionError):
        pass
    if _doubtful(text):
        return None
    from json_repair import loads  # 25 ms of import that most turns never need

    try:
        value = loads(text)
        if not isinstance(value, dict) or list(_leaves(value)) != list(_words(text)):
            return None
    except (ValueError, RecursionError):
        return None
    return value


def _without_fence(text: str) -> str:
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text, re.DOTALL)
    return fenced[1] if fenced else text


def _balanced(text: str) -> bool:
    """Say whether every bracket and quote that opens also closes; closing too often is no cut."""
    stack: list[str] = []
    for match in _TOKEN.finditer(text):
        mark = match["mark"]
        if mark in _CLOSERS:
            stack.append(_CLOSERS[mark])
        elif (mark in ("}", "]") and stack and stack.pop() != mark) or match["other"] in QUOTES:
            return False
    return not stack


def _doubtful(text: str) -> bool:
    """Say whether two values touch, or a string holds an escape that JSON does not know.

    Two values side by side are what unescaped quotes inside a string look like.
    """
    previous = ""
    for match in _TOKEN.finditer(text):
        kind = match.lastgroup or ""
        if kind == "space":
            continue
        if kind == "other" or (kind == "string" and re.search(r"\\[^\"'\\/bfnrtu]", match[0])):
            return True
        if kind in ("string", "word") and previous in ("string", "word"):
            return True
        previous = kind
    return False


def _words(text: str) -> Iterator[object]:
    """Yield the keys and values of broken JSON in order, as its author wrote them."""
    for match in _TOKEN.finditer(text):
        if match["string"]:
            yield _unquoted(match[0])
        elif match["word"]:
            yield _scalar(match[0])


def _unquoted(token: str) -> object:
    body = token[1:-1].replace("\\'", "'")
    if token[0] == "'":
        body = re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', body)
    return json.loads(f'"{body}"', strict=False)


def _scalar(word: str) -> object:
    if word in _WORDS:
        return _WORDS[word]
    try:
        return strict_json(word)
    except ValueError:
        return word


def _leaves(value: object) -> Iterator[object]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from _leaves(item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
