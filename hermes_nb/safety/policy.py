"""The command policy: a shell command runs unasked, asks first, or is refused for good.

This is the verdict of the grammar where there is no sandbox.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hermes_nb.safety.grammar import LENGTH_LIMIT, Place, judge

__all__ = ["LENGTH_LIMIT", "Assessment", "assess"]


@dataclass(frozen=True, slots=True)
class Assessment:
    """What the policy says about a command, and why in a few words."""

    decision: Literal["allow", "ask", "deny"]
    reason: str = ""


def assess(command: str, *, directory: Path | None = None) -> Assessment:
    """Judge a shell command that would run in `directory` (default: the process's); never raises.

    `deny` is for what names the destruction of a system, a home or a disk; `allow` for what is
    known to only read, and reads no secret; everything else is `ask`.
    """
    try:
        place = directory or Path.cwd()
    except OSError:
        return Assessment("ask", "its directory is gone")
    verdict = judge(command, Place(workspace=place, directory=place, home=Path.home()))
    decision = "ask" if verdict.decision == "confine" else verdict.decision
    return Assessment(decision, verdict.reason)
