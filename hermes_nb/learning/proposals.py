"""What the agent would like to save and the user has yet to allow: values, to and from JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from hashlib import sha256
from typing import Any, Literal

from hermes_nb.core.text import canonical_json, one_line
from hermes_nb.memory.curation.duplicates import same_fact
from hermes_nb.memory.curation.history import Origin
from hermes_nb.memory.curation.operations import ACTIONS, Operation
from hermes_nb.safety.redact import redact
from hermes_nb.safety.visible import visible
from hermes_nb.skills.editing import Change
from hermes_nb.skills.ledger import Origin as SkillOrigin

Kind = Literal["memory", "skills"]
GIST = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWrite:
    """Steps on one memory, all or none; an `old_text` is the whole entry as it stood then."""

    target: str
    steps: tuple[Operation, ...]

    @property
    def gist(self) -> str:
        """What it would do, in one line."""
        step = self.steps[0]
        more = f" and {len(self.steps) - 1} more" if len(self.steps) > 1 else ""
        return f"{step.action} {self.target}: {step.content or step.old_text}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillWrite:
    """A change of one skill, made for the file as it stood then."""

    change: Change

    @property
    def gist(self) -> str:
        """What it would do, in one line."""
        change = self.change
        return " ".join(filter(None, (change.action, change.name, change.file_path)))


Write = MemoryWrite | SkillWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A write that waits, under a number that stays its own; `at` is in seconds since the epoch.

    `begun` says that somebody allowed it and may have died while it was made, `problem` why it
    could not be made when it was allowed.
    """

    id: str
    number: int
    at: float
    write: Write
    origin: Origin
    begun: bool = False
    problem: str = ""

    @property
    def kind(self) -> Kind:
        """What it is about."""
        return "memory" if isinstance(self.write, MemoryWrite) else "skills"

    @property
    def gist(self) -> str:
        """What it would do, in one line that may be shown."""
        return one_line(visible(redact(self.write.gist)), GIST)


def texts_of(write: Write) -> tuple[str, ...]:
    """Return every text that a write brings along."""
    if isinstance(write, MemoryWrite):
        return tuple(text for step in write.steps for text in (step.content, step.old_text))
    change = write.change
    given = (change.content, change.file_content, change.old_string, change.new_string)
    return (change.name, change.category, change.file_path, *(text for text in given if text))


def mark_of(write: Write) -> str:
    """Return a digest that is equal for writes that would do the same."""
    plain: Write = write
    if isinstance(write, SkillWrite):
        plain = SkillWrite(change=replace(write.change, origin=SkillOrigin(), seen=None))
    return sha256(canonical_json(asdict(plain)).encode("utf-8", "replace")).hexdigest()[:32]


def alike(write: Write, other: Write) -> bool:
    """Say whether two writes want the same, but for words that carry nothing."""
    if mark_of(write) == mark_of(other):
        return True
    if isinstance(write, SkillWrite) or isinstance(other, SkillWrite):
        return False
    if write.target != other.target or len(write.steps) != len(other.steps):
        return False
    return all(
        one.action == two.action
        and one.old_text == two.old_text
        and (one.content == two.content or same_fact(one.content, two.content))
        for one, two in zip(write.steps, other.steps, strict=True)
    )


def to_json(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal as JSON would have it."""
    made = asdict(proposal)
    made["kind"] = proposal.kind
    return made


def from_json(item: object) -> Proposal | None:
    """Return the proposal, None for what a hand or another version made of it."""
    if not isinstance(item, Mapping):
        return None
    try:
        return _proposal(item)
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def _proposal(item: Mapping[str, Any]) -> Proposal:
    write = item["write"]
    made: Write
    if item["kind"] == "memory":
        steps = [_checked(step, asdict(Operation(action="add"))) for step in write["steps"]]
        if not steps or any(step["action"] not in ACTIONS for step in steps):
            message = "no such steps"
            raise ValueError(message)
        taken = tuple(Operation(**step) for step in steps)
        made = MemoryWrite(target=_text(write["target"]), steps=taken)
    else:
        change = {**write["change"]}
        origin = SkillOrigin(**_checked(change.pop("origin"), asdict(SkillOrigin())))
        made = SkillWrite(
            change=Change(**_checked(change, asdict(Change(action=""))), origin=origin)
        )
    return Proposal(
        id=_text(item["id"]),
        number=int(item["number"]),
        at=_moment(item["at"]),
        write=made,
        origin=Origin(**_checked(item["origin"], asdict(Origin()))),
        begun=item["begun"] is True,
        problem=_text(item["problem"]),
    )


def _checked(values: Mapping[str, Any], like: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return values whose types are those of the ones they stand for; a None stands for a text."""
    for key, value in values.items():
        usual = like[key]
        if not (isinstance(value, str | None) if usual is None else isinstance(value, type(usual))):
            message = f"{key} is {value!r}"
            raise TypeError(message)
    return values


def _moment(value: object) -> float:
    if not isinstance(value, int | float) or not math.isfinite(value):
        message = f"{value!r} is no time"
        raise TypeError(message)
    return float(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        message = f"{value!r} is no text"
        raise TypeError(message)
    return value
