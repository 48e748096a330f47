"""The part that all engines share: where to cut, and what shortening alone achieves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from hermes_nb.context.archive import Archive
from hermes_nb.context.boundaries import (
    Cut,
    Group,
    divide,
    flat,
    grouped,
    head_end,
    size,
    tail_start,
)
from hermes_nb.context.gauge import Aim, Gauge
from hermes_nb.context.pruning import Pruner, WayBack
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Compression
from hermes_nb.core.text import estimate_tokens

_HEAD_SHARE = 4
"""The head's first exchange is protected as long as it takes less than this part of all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A conversation, cut, before and after pruning; indexes are the same in both.

    `located` gives positions in the store by the `id()` of the messages in `groups`.
    """

    groups: list[Group]
    pruned: list[Group]
    head: int
    tail: int
    aim: Aim
    pruner: Pruner
    located: Mapping[int, int]

    def enough(self) -> bool:
        """Say whether pruning alone makes the conversation small enough."""
        return self.shortened() > 0 and size(self.pruned) <= self.aim.whole

    def shortened(self) -> int:
        """Return how many messages pruning made shorter."""
        return sum(
            new is not old
            for pruned, group in zip(self.pruned, self.groups, strict=True)
            if pruned is not group
            for new, old in zip(pruned.messages, group.messages, strict=True)
        )

    def cut(self) -> tuple[Cut, Cut]:
        """Return the conversation cut: as it was, and pruned."""
        whole = divide(self.groups, self.head, self.tail)
        lifted = {id(group) for group in whole.kept}
        kept = tuple(
            pruned
            for group, pruned in zip(self.groups, self.pruned, strict=True)
            if id(group) in lifted
        )
        pruned = Cut(
            head=tuple(self.pruned[: self.head]),
            middle=tuple(self.pruned[self.head : self.tail]),
            kept=kept,
            tail=tuple(self.pruned[self.tail :]),
        )
        return whole, pruned

    def result(self, groups: Sequence[Group], *, note: str) -> Compression:
        """Return what came out when nothing was dropped."""
        messages = tuple(flat(groups))
        if messages == tuple(flat(self.groups)):
            return Compression(messages=messages)
        made = Compression(messages=messages, phase="pruned", shortened=self.shortened())
        return noted(made, note)


def noted(made: Compression, note: str) -> Compression:
    """Return the compression with its note, also in its system message if it has one."""
    first = made.messages[0] if made.messages else None
    if first is None or first.role != "system" or note in first.text:
        return replace(made, note=note)
    system = replace(first, parts=Message.system(f"{first.text}\n\n{note}").parts)
    return replace(made, note=note, messages=(system, *made.messages[1:]))


def make_plan(
    messages: Sequence[Message], gauge: Gauge, archive: Archive | None, way_back: WayBack
) -> Plan:
    """Return how a conversation is to be compressed."""
    groups = grouped(messages)
    # The prompt that was counted also had what no group has, such as a result without its call.
    aim = gauge.aim(max(estimate_tokens(messages), size(groups)))
    located = archive.locate(flat(groups)) if archive is not None else {}
    head = min(head_end(groups, messages=gauge.limits.protect_first), max(len(groups) - 1, 0))
    tail = tail_start(
        groups, head, tokens=aim.tail, most=aim.most, at_least=gauge.limits.protect_last_n
    )
    pruner = Pruner(lambda message: located.get(id(message)), way_back)
    pruned = [*pruner.prune(groups[:tail]), *groups[tail:]]
    while head > 1 and size(pruned[:head]) * _HEAD_SHARE > aim.hard:
        head -= 1
    return Plan(
        groups=groups,
        pruned=pruned,
        head=head,
        tail=tail,
        aim=aim,
        pruner=pruner,
        located=located,
    )
