"""One child agent as its user sees it: a line below the call that begot it."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from hermes_nb.core.events import ChildEvent, ChildFinished, ChildProgress, ChildStarted
from hermes_nb.core.messages import Usage
from hermes_nb.core.text import number_of, one_line
from hermes_nb.safety.markup import code_span, escape
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible

MARKS = {"": "◌", "done": "✓", "budget": "◔", "failed": "✗", "stopped": "■"}
ENDS = {"budget": "out of budget", "failed": "failed", "stopped": "stopped"}
GOAL = 80
"""Characters of what a child is asked, as shown."""
DOING = 70
SHOWN = 6
"""Children below a running call; the ones that are over are counted first."""


@dataclass(slots=True)
class ChildView:
    """A child and how it goes; `status` is "" while it runs."""

    number: int
    goal: str
    started: float = field(default_factory=time.monotonic)
    status: str = ""
    seconds: float = 0.0
    doing: str = ""
    usage: Usage = field(default_factory=Usage)

    def take(self, event: ChildProgress | ChildFinished) -> None:
        """Take in what it says of itself."""
        self.usage = event.usage
        if isinstance(event, ChildProgress):
            self.doing = one_line(visible(redact(event.doing)), DOING)
        else:
            self.status, self.seconds = event.status, event.seconds

    def line(self) -> str:
        """Return the child as one Markdown line."""
        seconds = self.seconds if self.status else time.monotonic() - self.started
        parts = [] if not self.doing or self.status else [code_span(self.doing)]
        parts += [ENDS[self.status]] if self.status in ENDS else []
        if count := self.usage.requests:
            parts.append(number_of(count, "request"))
        parts.append(f"{seconds:.1f} s")
        return " · ".join([f"↳ {MARKS[self.status]} {escape(self.goal)}", *parts])


def child_of(event: ChildStarted) -> ChildView:
    """Return a child that has just begun."""
    return ChildView(event.number, one_line(visible(redact(event.goal)), GOAL))


def take_in(children: dict[int, ChildView], event: ChildEvent) -> None:
    """Take an event into a call's children; one of a child that is not known is left out."""
    if isinstance(event, ChildStarted):
        children[event.number] = child_of(event)
    elif event.number in children:
        children[event.number].take(event)


def running_lines(children: Iterable[ChildView]) -> list[str]:
    """Return the lines below a call that runs: the latest children, the earlier ones counted."""
    known = list(children)
    over = [child for child in known if child.status]
    hidden = over[: max(len(known) - SHOWN, 0)]
    lines = [child.line() for child in known if child not in hidden]
    return [f"↳ … {len(hidden)} that are over", *lines] if hidden else lines
