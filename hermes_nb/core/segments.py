"""Group the tool calls of a reply into segments that may run in parallel.

A segment is a maximal run of adjacent calls that don't conflict: calls that only read, and writes
to paths that no other call in the segment touches. A call that runs code, edits the notebook or may
ask the user gets a segment to itself. The order is kept, so results match their calls.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import Risk, Tool, Toolset


def segments(calls: Sequence[ToolCall], tools: Toolset) -> list[list[ToolCall]]:
    """Split the calls into segments, in order."""
    out: list[list[ToolCall]] = []
    current = _Segment()
    for call in calls:
        footprint = _footprint(call, tools.get(call.name))
        if footprint is None:
            out += [current.calls, [call]]
            current = _Segment()
            continue
        if not current.admits(footprint):
            out.append(current.calls)
            current = _Segment()
        current.add(call, footprint)
    out.append(current.calls)
    return [segment for segment in out if segment]


@dataclass(frozen=True, slots=True)
class _Footprint:
    """The canonical paths that a call touches, and whether it writes to them."""

    paths: tuple[str, ...]
    writes: bool


@dataclass(slots=True)
class _Segment:
    calls: list[ToolCall] = field(default_factory=list)
    read: list[str] = field(default_factory=list)
    written: list[str] = field(default_factory=list)

    def admits(self, footprint: _Footprint) -> bool:
        rivals = self.read + self.written if footprint.writes else self.written
        return not any(_overlap(mine, rival) for mine in footprint.paths for rival in rivals)

    def add(self, call: ToolCall, footprint: _Footprint) -> None:
        self.calls.append(call)
        (self.written if footprint.writes else self.read).extend(footprint.paths)


def _footprint(call: ToolCall, tool: Tool | None) -> _Footprint | None:
    """Return the paths that a call touches, or None if it must run alone.

    A call to an unknown tool touches nothing. A call with unreadable arguments runs alone, since
    its purpose is unknown and later calls may depend on it. A tool that writes without declaring
    its paths runs alone, too.
    """
    if call.problem:
        return None
    if tool is None:
        return _Footprint((), writes=False)
    if tool.exclusive or tool.risk in (Risk.EXECUTE, Risk.NETWORK):
        return None
    if tool.asks is not None and not tool.check(call.arguments) and tool.asks(call.arguments):
        return None
    writes = tool.risk in (Risk.WRITE, Risk.REMEMBER)
    if writes and not tool.paths:
        return None
    return _Footprint(tuple(_canonical(call, tool)), writes=writes)


def _canonical(call: ToolCall, tool: Tool) -> Iterable[str]:
    """Yield a call's paths, absolute and without symlinks; the default is the root."""
    root = tool.root or Path()
    for name in tool.paths:
        value = call.arguments.get(name, ".")
        if isinstance(value, str):
            try:
                yield os.path.normcase(os.path.realpath(root / _named(value)))
            except (OSError, ValueError):
                yield os.path.normcase(str(root))


def _named(value: str) -> str:
    """Expand a leading `~/` as the tools do; other forms of `~` are literal."""
    value = value.replace("\0", "")
    home = value == "~" or value.startswith("~/")
    return os.path.expanduser(value) if home else value  # noqa: PTH111


def _overlap(a: str, b: str) -> bool:
    """Return whether two paths are equal, or one contains the other."""
    return (
        a == b or a.startswith(b.rstrip(os.sep) + os.sep) or b.startswith(a.rstrip(os.sep) + os.sep)
    )
