"""The guard of a child agent: as strict as its parent's, and with nobody to ask."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from hermes_nb.core.messages import Message
from hermes_nb.core.tools import Arguments, Tool
from hermes_nb.safety.guard import Decision, Guard

REPORT_IT = "a child agent cannot ask. Say in the report what should be run"


class ChildGuard(Guard):
    """What its parent would have to ask about is refused; what the user allowed before is not."""

    __slots__ = ()

    asks: ClassVar[bool] = False

    @classmethod
    def under(cls, parent: Guard) -> ChildGuard:
        """Return the guard of a child that is begotten now."""
        return cls(
            parent.mode,
            remembered=dict(parent.remembered),
            required=parent.required,
            sandboxed=parent.sandboxed,
        )

    def decide(
        self, tool: Tool, arguments: Arguments, *, messages: Sequence[Message] = ()
    ) -> Decision:
        """Return the verdict on a call, which is never to ask."""
        decision = super().decide(tool, arguments, messages=messages)
        if decision.verdict != "ask":
            return decision
        return replace(decision, verdict="deny", why=f"{decision.why}, and {REPORT_IT}")
