"""Which stored rows make up a conversation after it was compressed, and in which order.

A row's position in its session never changes, yet a summary written last stands between messages
written long before. So each compression leaves an arrangement: the positions, in order, that the
conversation then consisted of. What is appended later follows by position. The arrangements of a
session form a stack; undoing a compression takes the uppermost one off.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """One compression: it added the rows from position `start` up to, not including, `stop`.

    `order` are the positions of the conversation it made.
    """

    start: int
    stop: int
    order: tuple[int, ...]

    def following(self, active: Sequence[int]) -> list[int]:
        """Return the conversation's positions, in order, out of the `active` ones, ascending."""
        kept = set(active)
        ordered = [position for position in self.order if position in kept]
        return ordered + [position for position in active if position >= self.stop]


def matched(before: Sequence[str], after: Sequence[str]) -> list[int | None]:
    """Return for each text of `after` the index of the same text in `before`, each used once.

    Where a text occurs several times, a common beginning and a common end stay in place: that is
    what a compression keeps.
    """
    out: list[int | None] = [None] * len(after)
    shorter = min(len(before), len(after))
    head = 0
    while head < shorter and before[head] == after[head]:
        out[head] = head
        head += 1
    tail = 0
    while tail < shorter - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
        out[-tail] = len(before) - tail
    left: dict[str, list[int]] = defaultdict(list)
    for index in range(len(before) - tail - 1, head - 1, -1):
        left[before[index]].append(index)
    for index in range(head, len(after) - tail):
        if left[after[index]]:
            out[index] = left[after[index]].pop()
    return out


def packed(order: Sequence[int]) -> str:
    """Return positions as JSON, each run of neighbours as `[first, last]`: few bytes for many."""
    runs: list[list[int]] = []
    for position in order:
        if runs and position == runs[-1][1] + 1:
            runs[-1][1] = position
        else:
            runs.append([position, position])
    return json.dumps(runs, separators=(",", ":"))


def unpacked(text: str) -> tuple[int, ...]:
    """Return the positions that `packed` wrote."""
    return tuple(p for first, last in json.loads(text) for p in range(first, last + 1))
