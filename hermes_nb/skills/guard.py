"""Whether a skill may be loaded or written: what is hidden or harmful in its texts.

Two readings of every text: the injection scan for what would steer the agent, and rules on code for
what would harm when the agent follows it. A heuristic that keeps known tricks out; what a skill's
commands may do is decided again, when they run, by the guard in front of every tool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from hermes_nb.core.text import one_line
from hermes_nb.safety.scan import scan
from hermes_nb.safety.scanning.flows import flows
from hermes_nb.safety.scanning.threats import STRONG, Threat, threats
from hermes_nb.safety.visible import visible

Level = Literal["clean", "suspicious", "dangerous"]
_REASONS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a text is. `text` is what may be loaded, neutralised where suspicious, "" if dangerous.

    `reasons` name what was found, each with its passage, fit to be shown.
    """

    level: Level = "clean"
    reasons: tuple[str, ...] = ()
    text: str = ""

    @property
    def why(self) -> str:
        """The reasons on one line."""
        return "; ".join(self.reasons)


def examine(text: str, *, name: str = "", strict: bool = False, code: bool = False) -> Verdict:
    """Return the verdict on a skill's document or, with `code`, on one of its scripts.

    `strict` is for sources nobody vouches for: what would be marked is refused.
    """
    scanned = scan(text, name=name, strict=strict)
    found = [*threats(text, code=code), *flows(text, code=code)]
    reasons = [
        *(_reason(finding.category, finding.passage) for finding in scanned.findings),
        *(_reason(threat.category, threat.passage) for threat in found),
    ]
    reasons = list(dict.fromkeys(reasons))[:_REASONS]
    if scanned.verdict == "blocked" or _dangerous(found):
        return Verdict(level="dangerous", reasons=tuple(reasons))
    if scanned.verdict == "suspicious" or found:
        if strict and scanned.verdict == "suspicious":
            return Verdict(level="dangerous", reasons=tuple(reasons))
        return Verdict(level="suspicious", reasons=tuple(reasons), text=scanned.text)
    return Verdict(text=text)


def _dangerous(found: Iterable[Threat]) -> bool:
    """Say whether one strong or two different weak signs are there."""
    weights = {threat.rule: threat.weight for threat in found}
    return sum(weights.values()) >= STRONG


def _reason(category: str, passage: str) -> str:
    return f"{category}: {visible(one_line(passage, 100))!r}"
