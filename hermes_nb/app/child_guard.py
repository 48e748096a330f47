"""The guard of a child agent: as strict as its parent's, and with nobody to ask."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hermes_nb.core.tools import Tool
from hermes_nb.safety.guard import Decision, Guard

REPORT_IT = "a child agent cannot ask. Say in the report what should be run"


class ChildGuard(Guard):
    """What its parent would have to ask about is refused; what the user allowed before is not."""

    __slots__ = ()

    @classmethod
    def under(cls, parent: Guard) -> ChildGuard:
        """Return the guard of a child that is begotten now."""
        return cls(parent.mode, remembered=set(parent.remembered), tainted=parent.tainted)

    def may_ask(self, tool: Tool) -> bool:  # noqa: ARG002 - whichever it is
        """Say that no call asks."""
        return False

    def decide(self, tool: Tool, arguments: Mapping[str, Any]) -> Decision:
        """Return the verdict on a call, which is never to ask."""
        decision = super().decide(tool, arguments)
        if decision.verdict != "ask":
            return decision
        return replace(decision, verdict="deny", why=f"{decision.why}, and {REPORT_IT}")
