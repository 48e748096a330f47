"""Parse, validate and assemble the arguments of tool calls.

Valid JSON is stored byte for byte. Broken JSON is only repaired if there is exactly one way to
interpret it: its brackets are balanced, and the repaired value contains exactly the keys and values
of the source in the same order. Anything else becomes a problem text for the model, never a
partially parsed call.

Servers number the fragments of streamed calls by `index`, by `id`, by both or by neither. They
repeat or split names, reuse an index for the next call, or send the arguments as an object.
`CallFragments` alone decides which call a fragment belongs to.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NoReturn

from hermes_nb.core.json_values import clean, clean_text, dumps, too_deep
from hermes_nb.core.messages import Json, ToolCall

_TOO_DEEP = "nested too deeply"
_REPAIRED_UP_TO = 50_000
"""Maximum characters of arguments to repair, so that repairs never block the kernel for seconds.
"""

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
    """A call's arguments: parsed value, JSON text and parse problem."""

    value: Mapping[str, Json] = field(default_factory=dict)
    """The parsed object; empty if there is a problem."""
    text: str = ""
    """JSON text to send back to the model; "" if there is a problem."""
    problem: str = ""
    """The reason the arguments cannot be used, for the model to read; "" if they are valid."""

    def call(self, name: str, call_id: str = "") -> ToolCall:
        """Return a call with these arguments."""
        return ToolCall(
            id=call_id, name=name, arguments=self.value, text=self.text, problem=self.problem
        )


def parse_arguments(text: str, *, cut: bool = False) -> Arguments:
    """Parse the arguments in `text`.

    Set `cut` if the reply was cut off. In that case nothing is repaired, and empty arguments are
    also a problem, since the model had not written them yet.
    """
    stripped = text.strip()
    if not stripped or stripped in ("null", "None"):
        early = "the reply was cut off before the arguments were written; call again"
        return Arguments(problem=early) if cut else Arguments(text="{}")
    try:
        value = strict_json(stripped)
    except (ValueError, RecursionError) as error:
        return _repaired(stripped, error, cut=cut)
    if isinstance(value, dict):
        return Arguments(value=clean(value), text=stripped)
    if isinstance(value, str) and not cut and value.lstrip().startswith("{"):
        inner = parse_arguments(value)  # some servers encode the JSON twice
        return inner if inner.problem else replace(inner, text=dumps_text(inner.value))
    kind = "an array" if isinstance(value, list) else "not an object"
    kind = "a string" if isinstance(value, str) else kind
    return Arguments(problem=f"the arguments are {kind}; they must be one JSON object")


def dumps_text(value: object) -> str:
    """Return compact JSON text for a value from any source."""
    return dumps(value).decode("utf-8")


def strict_json(text: str, *, control: bool = False) -> Json:
    """Parse JSON that all parsers agree on; `control` allows unescaped line breaks in strings.

    Raises:
        ValueError: invalid JSON, NaN, an infinite number, or nesting that is too deep.
        RecursionError: nesting that exceeds the parser's own limit.
    """
    value: Json = json.loads(text, strict=not control, parse_constant=_refuse, parse_float=_finite)
    if too_deep(value):
        raise ValueError(_TOO_DEEP)
    return value


def _refuse(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def _finite(digits: str) -> float:
    number = float(digits)
    if math.isinf(number):
        raise ValueError(f"{digits[:20]} is too large a number")
    return number


def _repaired(text: str, error: Exception, *, cut: bool) -> Arguments:
    reason = str(error) if isinstance(error, ValueError) else _TOO_DEEP
    if cut or not _balanced(text):
        problem = (
            f"the arguments' JSON is cut off ({reason}); nothing was run, call again with "
            "the complete arguments"
        )
        return Arguments(problem=problem)
    value = None if len(text) > _REPAIRED_UP_TO else _unambiguous(text)
    if value is None or too_deep(value):
        problem = f"the arguments are not valid JSON ({reason}); nothing was run, call again"
        return Arguments(problem=problem)
    return Arguments(value=clean(value), text=dumps_text(value))


_LENIENT = json.JSONDecoder(strict=False, parse_constant=_refuse, parse_float=_finite)


def _unambiguous(text: str) -> dict[str, Json] | None:
    """Return the only object that broken JSON can mean, or None if there are several."""
    fenced = re.fullmatch(r"```(?:json)?\s*(.*?)\s*```", text, re.DOTALL)
    text = fenced[1] if fenced else text
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


def _balanced(text: str) -> bool:
    """Return whether every opened bracket and quote is closed.

    Surplus closing brackets are accepted.
    """
    stack: list[str] = []
    for match in _TOKEN.finditer(text):
        mark = match["mark"]
        if mark in _CLOSERS:
            stack.append(_CLOSERS[mark])
        elif (mark in ("}", "]") and stack and stack.pop() != mark) or match["other"] in QUOTES:
            return False
    return not stack


def _doubtful(text: str) -> bool:
    """Return whether two values touch or a string has an escape that is invalid in JSON.

    Two adjacent values usually indicate unescaped quotes inside a string.
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
    """Yield the keys and values of broken JSON in source order."""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if match["string"]:
            body = token[1:-1].replace("\\'", "'")
            if token[0] == "'":
                body = re.sub(r'(?<!\\)((?:\\\\)*)"', r'\1\\"', body)
            yield json.loads(f'"{body}"', strict=False)
        elif match["word"] and token in _WORDS:
            yield _WORDS[token]
        elif match["word"]:
            try:
                yield strict_json(token)
            except ValueError:
                yield token


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


_LONGEST_NAME = 1_000
"""Maximum characters of a tool name, which is sent back with every later request."""
_LONGEST_ID = 512
"""Maximum characters of a call id. Longer ids are replaced with generated ones."""
_MARK = re.compile(r'[{}"\\]')


class _Fragments:
    """The fragments of a call received so far."""

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.name = ""
        self.extra: Json = None
        self.pieces: list[str] = []
        self._depth = 0
        self._quoted = False
        self._escaped = False

    @property
    def complete(self) -> bool:
        """Whether the brackets of the arguments are balanced: the object is complete."""
        return bool(self.pieces) and self._depth == 0 and not self._quoted

    def add_name(self, piece: str) -> None:
        """Add a name, which may arrive whole, repeated, cumulatively or in pieces."""
        if piece == self.name or (self.pieces and self.name) or len(self.name) >= _LONGEST_NAME:
            return
        name = piece if piece.startswith(self.name) else self.name + piece
        self.name = name[:_LONGEST_NAME]

    def add_arguments(self, piece: str) -> None:
        """Add a piece of the arguments and count its brackets; each character is read once."""
        if not piece.strip() and not self.pieces:
            return
        self.pieces.append(piece)
        position = 0
        if self._escaped:
            self._escaped, position = False, 1
        while found := _MARK.search(piece, position):
            position = found.end()
            mark = found[0]
            if mark == "\\" and self._quoted:
                self._escaped = position >= len(piece)
                position += 1
            elif mark == '"':
                self._quoted = not self._quoted
            elif not self._quoted and mark in "{}":
                self._depth += 1 if mark == "{" else -1


class CallFragments:
    """The calls in a reply, in the order in which they started."""

    def __init__(self) -> None:
        self._all: list[_Fragments] = []
        self._by_index: dict[int, _Fragments] = {}
        self._by_id: dict[str, _Fragments] = {}
        self._latest: _Fragments | None = None

    @property
    def latest(self) -> tuple[int, str]:
        """Number and name of the call that the last fragment belongs to."""
        if self._latest is None:
            return 0, ""
        return self._all.index(self._latest), clean_text(self._latest.name)

    def feed(self, fragment: Mapping[str, Json], position: int | None, *, room: int) -> int:
        """Add one fragment and return its size in characters.

        Args:
            fragment: One item of `tool_calls` in a delta.
            position: Index to use if the fragment has none.
            room: Maximum characters of arguments to store. The rest is dropped, so the call is
                incomplete and never runs.
        """
        inner = fragment.get("function")
        function = inner if isinstance(inner, Mapping) else fragment
        name, said = _text(function.get("name")), function.get("arguments")
        arguments = dumps_text(said) if isinstance(said, (Mapping, list)) else _text(said)
        call_id, index = _text(fragment.get("id")), fragment.get("index")
        call_id = call_id if len(call_id) <= _LONGEST_ID else ""
        index = index if isinstance(index, int) else position
        call = self._latest = self._find(index, call_id, name, arguments)
        if name:
            call.add_name(name)
        call.extra = fragment.get("extra_content") or call.extra
        if arguments:
            call.add_arguments(arguments[:room])
        return len(name) + len(arguments)

    def calls(self, *, cut: bool) -> list[ToolCall]:
        """Return the calls. If the reply was `cut` off, only complete arguments are accepted."""
        return [
            parse_arguments(clean_text("".join(each.pieces)), cut=cut).call(
                clean_text(each.name), clean_text(each.id)
            )
            for each in self._all
            if each.name
        ]

    def extras(self) -> list[Json]:
        """Return the provider's own data about each call, or None where there is none."""
        return [each.extra for each in self._all if each.name]

    def _find(self, index: int | None, call_id: str, name: str, arguments: str) -> _Fragments:
        """Return the call that a fragment continues, or start a new one."""
        if index is not None:
            current = self._by_index.get(index)
        elif call_id:
            current = self._by_id.get(call_id)
        else:
            current = self._all[-1] if self._all else None
        if current is None or _begins_another(current, call_id, name, arguments):
            current = _Fragments(call_id)
            self._all.append(current)
        if index is not None:
            self._by_index[index] = current
        if call_id:
            self._by_id.setdefault(call_id, current)
            current.id = current.id or call_id
        return current


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _begins_another(current: _Fragments, call_id: str, name: str, arguments: str) -> bool:
    """Return whether a fragment with the index of `current` starts another call.

    A call always starts with its name. After that, a different id marks a new call. Without an id,
    a new call starts when the current arguments are complete and new ones begin.
    """
    if not name:
        return False
    if call_id and current.id and call_id != current.id:
        return True
    starts_over = arguments.lstrip().startswith("{") or (not arguments and not call_id)
    return current.complete and (starts_over or name != current.name)
