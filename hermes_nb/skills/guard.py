"""Whether a skill may be loaded or written: what is hidden or harmful in its texts.

Two readings of every text: the injection scan for what would steer the agent, and rules on code for
what would harm when the agent follows it. A heuristic that keeps known tricks out; what a skill's
commands may do is decided again, when they run, by the guard in front of every tool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain
from typing import Literal

from hermes_nb.core.text import one_line
from hermes_nb.safety.language.rules import MARKS
from hermes_nb.safety.reading.patterns import Late, deadline
from hermes_nb.safety.scan import Finding, neutralised, scan
from hermes_nb.safety.scanning.flows import flows
from hermes_nb.safety.scanning.threats import PASSAGE, STRONG, Threat, piped, threats
from hermes_nb.safety.visible import visible

Level = Literal["clean", "suspicious", "dangerous"]
_REASONS = 4
_GUIDES = {
    "remote_code": 1.0,
    "remote-code": 2.0,
    "persistence": 2.5,
    "privilege": 2.0,
    "tampering": 1.0,
    "destructive": 1.5,
    "destruction": 2.0,
    "cover-up": 2.0,
    "secret_access": 2.0,
    "secret-access": 2.0,
}
"""Up to which score commands of a category are what honest guides show."""


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

    What orders the agent is refused. A command that a guide shows is pointed out and left where it
    stands: whether it runs is decided when it is to be run. `strict` is for sources nobody vouches
    for: what would be marked in its words is refused.
    """
    scanned = scan(text, name=name, strict=strict)
    harm = chain(threats(text, code=code, guide=True), flows(text, code=code))
    found = _in_time(text, harm)
    reasons = [
        *(_reason(finding.category, finding.passage) for finding in scanned.findings),
        *(_reason(threat.category, threat.passage) for threat in found),
    ]
    reasons = list(dict.fromkeys(reasons))[:_REASONS]
    meant = [each for each in scanned.findings if not _shown(text, each, code=code)]
    blocked = scanned.verdict == "blocked" and sum(each.score for each in meant) >= MARKS
    if blocked or _dangerous(found):
        return Verdict(level="dangerous", reasons=tuple(reasons))
    if scanned.findings or found:
        return Verdict(level="suspicious", reasons=tuple(reasons), text=neutralised(text, meant))
    return Verdict(text=text)


def examine_own(text: str, *, name: str = "", code: bool = False, before: str = "") -> Verdict:
    """Return the verdict on a text that is to be written into a skill, in the place of `before`.

    It is held to more than what others wrote: a download that goes into a shell or is evaluated is
    refused, unless it stood there before.
    """
    known = {each.passage for each in _in_time(before, piped(before, code=code))}
    now = _in_time(text, piped(text, code=code))
    if found := [each for each in now if each.passage not in known]:
        reasons = dict.fromkeys(_reason(each.category, each.passage) for each in found)
        return Verdict(level="dangerous", reasons=tuple(reasons)[:_REASONS])
    return examine(text, name=name, code=code)


def _in_time(text: str, found: Iterable[Threat]) -> list[Threat]:
    """Return threats as they are found; a text that takes too long to read is one."""
    try:
        with deadline(len(text)):
            return [*found]
    except Late:
        return [Threat("too_dense", "unread", STRONG, text[:PASSAGE])]


def _shown(text: str, finding: Finding, *, code: bool) -> bool:
    """Say whether a finding is a command in a guide's code, no worse than guides have."""
    if finding.score > _GUIDES.get(finding.category, -1.0):
        return False
    line = text.rfind("\n", 0, finding.start) + 1
    fenced = text.count("```", 0, line) % 2 == 1
    return code or fenced or text.count("`", line, finding.start) % 2 == 1


def _dangerous(found: Iterable[Threat]) -> bool:
    """Say whether one strong or two different weak signs are there."""
    weights: dict[str, int] = {}
    for threat in found:
        weights[threat.rule] = max(threat.weight, weights.get(threat.rule, 0))
    return sum(weights.values()) >= STRONG


def _reason(category: str, passage: str) -> str:
    return f"{category}: {visible(one_line(passage, 100))!r}"
