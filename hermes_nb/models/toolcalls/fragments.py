"""Put the fragments of streamed tool calls together.

Servers number them by `index`, by `id`, by both or by neither; repeat or split names; reuse an
index for the next call; send the arguments as an object. Which call a fragment belongs to is
decided here, in one place.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from hermes_nb.core.messages import ToolCall
from hermes_nb.core.text import clean_text
from hermes_nb.models.toolcalls.arguments import dumps_text, parse_arguments

_LONGEST_NAME = 1_000
"""Characters; no tool's name comes near, and it is sent back with every later request."""
_LONGEST_ID = 512
"""Characters; a longer id is replaced by one of ours."""
_MARK = re.compile(r'[{}"\\]')


class _Fragments:
    """One call as far as it has arrived."""

    def __init__(self, call_id: str) -> None:
        self.id = call_id
        self.name = ""
        self._pieces: list[str] = []
        self._depth = 0
        self._quoted = False
        self._escaped = False

    @property
    def begun(self) -> bool:
        """Whether any of the arguments has arrived."""
        return bool(self._pieces)

    @property
    def complete(self) -> bool:
        """Whether the arguments are one whole object by their brackets."""
        return bool(self._pieces) and self._depth == 0 and not self._quoted

    @property
    def arguments(self) -> str:
        """The arguments so far."""
        return "".join(self._pieces)

    def add_name(self, piece: str) -> None:
        """Take a name that comes whole, again, growing, or in pieces."""
        if piece == self.name or (self.begun and self.name) or len(self.name) >= _LONGEST_NAME:
            return
        name = piece if piece.startswith(self.name) else self.name + piece
        self.name = name[:_LONGEST_NAME]

    def add_arguments(self, piece: str) -> None:
        """Take more of the arguments, counting brackets as they come: once a character."""
        if not piece.strip() and not self._pieces:
            return
        self._pieces.append(piece)
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
    """The calls of one reply, in the order in which they began."""

    def __init__(self) -> None:
        self._all: list[_Fragments] = []
        self._by_index: dict[int, _Fragments] = {}
        self._by_id: dict[str, _Fragments] = {}

    def feed(self, fragment: Mapping[str, Any], position: int | None, *, room: int) -> int:
        """Take one fragment, return its size; `position` numbers it where it says nothing.

        Of its arguments `room` characters are taken: what is cut off there is never executed.
        """
        function = fragment.get("function")
        function = function if isinstance(function, Mapping) else fragment
        name = function.get("name")
        name = name if isinstance(name, str) else ""
        arguments = function.get("arguments")
        if isinstance(arguments, (Mapping, list)):
            arguments = dumps_text(arguments)
        arguments = arguments if isinstance(arguments, str) else ""
        call_id = fragment.get("id")
        call_id = call_id if isinstance(call_id, str) and len(call_id) <= _LONGEST_ID else ""
        index = fragment.get("index")
        index = index if isinstance(index, int) else position
        call = self._find(index, call_id, name, arguments)
        if name:
            call.add_name(name)
        if arguments:
            call.add_arguments(arguments[:room])
        return len(name) + len(arguments)

    def calls(self, *, cut: bool) -> list[ToolCall]:
        """Return the calls; of a reply that was `cut` off only whole arguments are taken."""
        out = []
        for fragments in self._all:
            if not fragments.name:
                continue
            read = parse_arguments(clean_text(fragments.arguments), cut=cut)
            out.append(
                ToolCall(
                    id=clean_text(fragments.id),
                    name=clean_text(fragments.name),
                    arguments=read.value,
                    text=read.text,
                    problem=read.problem,
                )
            )
        return out

    def _find(self, index: int | None, call_id: str, name: str, arguments: str) -> _Fragments:
        """Return the call that a fragment continues, or a new one."""
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


def _begins_another(current: _Fragments, call_id: str, name: str, arguments: str) -> bool:
    """Say whether a fragment with the number of `current` is the next call all the same.

    A call always begins with its name. After that, another id tells them apart; without one, the
    arguments that start over when the current ones are whole.
    """
    if not name:
        return False
    if call_id and current.id and call_id != current.id:
        return True
    starts_over = arguments.lstrip().startswith("{") or (not arguments and not call_id)
    return current.complete and (starts_over or name != current.name)
