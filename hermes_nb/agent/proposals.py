"""The queue of writes that the agent has proposed and the user has not yet decided on.

It is a file in `home`, the Hermes directory. An approved write is marked as started on disk before
it is made, and removed from the queue afterwards. If a process that holds the lock finds a started
write, another process must have died. It then checks whether that write was completed, so that
nothing is written twice.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

from hermes_nb.core.escapes import visible
from hermes_nb.core.files import beside, locked, make_private, write_atomic
from hermes_nb.core.json_values import canonical_json
from hermes_nb.core.messages import Json
from hermes_nb.core.records import restored
from hermes_nb.core.text import one_line
from hermes_nb.memory.duplicates import same_fact
from hermes_nb.memory.entries import Operation
from hermes_nb.memory.history import WriteOrigin, read_regular, sweep_locked
from hermes_nb.safety.redact import redact
from hermes_nb.skills.editing import SkillChange
from hermes_nb.skills.history import SkillOrigin

Kind = Literal["memory", "skills"]
GIST = 120
"""Maximum length of a proposal's summary, in characters."""
NAMED = 8
"""Maximum number of proposals that a line lists by number; with more, it says "all"."""
_KINDS = (("memory", "note", "notes"), ("skills", "skill change", "skill changes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryWrite:
    """A batch of steps on one memory; either all are applied, or none."""

    target: str
    """The memory: `memory` or `user`."""
    steps: tuple[Operation, ...]
    """The steps; `old_text` is the full entry at the time of the proposal."""

    @property
    def gist(self) -> str:
        """A summary: the first step, and the number of other steps."""
        step = self.steps[0]
        more = f" and {len(self.steps) - 1} more" if len(self.steps) > 1 else ""
        return f"{step.action} {self.target}: {step.content or step.old_text}{more}"


@dataclass(frozen=True, slots=True, kw_only=True)
class SkillWrite:
    """A change to one skill."""

    change: SkillChange
    """The change, based on the skill's file at the time of the proposal."""

    @property
    def gist(self) -> str:
        """A summary: the action, the skill's name and the file."""
        change = self.change
        return " ".join(filter(None, (change.action, change.name, change.file_path)))


Write = MemoryWrite | SkillWrite


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A pending write."""

    id: str
    """A unique id."""
    number: int
    """The number that the user types; it is not reused."""
    at: float
    """When it was proposed, in seconds since the epoch."""
    write: Write
    """The proposed write."""
    origin: WriteOrigin
    """The session and turn that it comes from."""
    begun: bool = False
    """Whether the user approved it and the write started; it may be incomplete."""
    problem: str = ""
    """Why the approved write failed, or "" if it did not."""

    @property
    def kind(self) -> Kind:
        """Whether it changes memory or skills."""
        return "memory" if isinstance(self.write, MemoryWrite) else "skills"

    @property
    def gist(self) -> str:
        """The write as one line, without secrets."""
        return one_line(visible(redact(self.write.gist)), GIST)


def texts_of(write: Write) -> tuple[str, ...]:
    """Return all texts that a write contains."""
    if isinstance(write, MemoryWrite):
        return tuple(text for step in write.steps for text in (step.content, step.old_text))
    change = write.change
    given = (change.content, change.file_content, change.old_string, change.new_string)
    return (change.name, change.category, change.file_path, *(text for text in given if text))


def mark_of(write: Write) -> str:
    """Return a digest that is the same for all writes with the same effect."""
    plain: Write = write
    if isinstance(write, SkillWrite):
        plain = SkillWrite(change=replace(write.change, origin=SkillOrigin(), seen=None))
    return sha256(canonical_json(asdict(plain)).encode("utf-8", "replace")).hexdigest()[:32]


def alike(write: Write, other: Write) -> bool:
    """Return whether two writes have the same effect, ignoring insignificant words."""
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


def to_json(proposal: Proposal) -> dict[str, Json]:
    """Return a proposal as JSON values."""
    made = asdict(proposal)
    made["kind"] = proposal.kind
    return made


def from_json(item: object) -> Proposal | None:
    """Return the proposal, or None if the JSON is invalid or from a different version."""
    if not isinstance(item, Mapping):
        return None
    try:
        found = restored(Proposal, {name: item[name] for name in item if name != "kind"})
    except TypeError:
        return None
    return found if texts_of(found.write) else None


NAME = "notebook-pending.json"
MOST = 50
"""Maximum number of pending proposals."""
MOST_BYTES = 1_000_000
"""Maximum total length of all pending proposals, in characters; one skill may have 100,000."""
DAYS = 30
"""Days after which a pending proposal expires."""
REFUSED_KEPT = 200
"""Maximum number of rejected proposals to remember, each for `REFUSED_DAYS`."""
REFUSED_DAYS = 180
_FILE_LIMIT = 8 * MOST_BYTES
_DAY = 86_400.0
_PATIENCE = 30.0
_MOST_NUMBERS = 1_000_000_000


class NotKept(Exception):
    """A proposal is not accepted; the message explains why to the model."""


@dataclass(slots=True)
class _State:
    """The contents of the file. `refused` maps digests to the time of their rejection."""

    following: int = 1
    waiting: list[Proposal] = field(default_factory=list)
    refused: dict[str, float] = field(default_factory=dict)
    damaged: bool = False


class Pending:
    """The queue in `home`, which is created with the first proposal."""

    def __init__(self, home: Path, *, clock: Callable[[], float] = time.time) -> None:
        self.path = home / NAME
        self._clock = clock

    def waiting(self) -> list[Proposal]:
        """Return the pending proposals, oldest first; raise Unusable, OSError."""
        return self._read().waiting

    def propose(self, write: Write, origin: WriteOrigin) -> Proposal:
        """Add a write to the queue; it is durable when this returns.

        Raises:
            NotKept: it is already pending, was rejected or contains a secret, or the queue is full
            Unusable: the file cannot be used
            OSError: the file cannot be read or written
        """
        if any(redact(text) != text for text in texts_of(write)):
            raise NotKept(
                "it contains what looks like a secret; note where the secret is stored instead"
            )
        with self._locked():
            state = self._read()
            for other in state.waiting:
                if alike(write, other.write):
                    raise NotKept(f"the same change is already pending, as {other.number}")
            if mark_of(write) in state.refused:
                raise NotKept(
                    "the user has already rejected the same change; do not propose it again"
                )
            used = sum(map(_size, state.waiting))
            made = Proposal(
                id=uuid.uuid4().hex,
                number=state.following,
                at=self._clock(),
                write=write,
                origin=origin,
            )
            if len(state.waiting) >= MOST or used + _size(made) > MOST_BYTES:
                raise NotKept(
                    f"{len(state.waiting)} changes are pending the user's approval; no more can "
                    "be added before some are decided"
                )
            state.following += 1
            state.waiting.append(made)
            self._write(state)
        return made

    @contextmanager
    def deciding(self, number: int) -> Iterator[ProposalDecision]:
        """Yield a pending proposal to decide on, under the lock.

        Raises LookupError if no proposal has that number (any more), or Unusable, or OSError.
        """
        with self._locked():
            waiting = self._read().waiting
            found = next((each for each in waiting if each.number == number), None)
            if found is None:
                message = (
                    f"there is no pending change {number}; it may have been approved or rejected "
                    "elsewhere"
                )
                raise LookupError(message)
            yield ProposalDecision(found, self._replace_or_remove)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        make_private(self.path.parent)
        with locked(self.path, _PATIENCE):
            sweep_locked(self.path)
            yield

    def _read(self) -> _State:
        """Return the file's contents without expired proposals."""
        raw = read_regular(self.path, _FILE_LIMIT)
        if not raw.data:
            return _State()
        item = None
        with suppress(ValueError, RecursionError):
            item = json.loads(raw.data)
        if not (raw.whole and isinstance(item, dict) and isinstance(item.get("waiting"), list)):
            return _State(damaged=True)
        listed, refused, following = item["waiting"], item.get("refused"), item.get("next")
        found = [each for each in map(from_json, listed) if each is not None]
        now = self._clock()
        # If the clock was set back, `now - each.at` is negative and the proposal is kept.
        waiting = [each for each in found if now - each.at < DAYS * _DAY]
        return _State(
            following=max(
                following if isinstance(following, int) and 0 < following < _MOST_NUMBERS else 1,
                *(each.number + 1 for each in found),
                1,
            ),
            waiting=waiting,
            refused={
                mark: float(at)
                for mark, at in (refused if isinstance(refused, dict) else {}).items()
                if isinstance(at, int | float) and -math.inf < now - at < REFUSED_DAYS * _DAY
            },
            damaged=len(found) != len(listed),
        )

    def _replace_or_remove(self, before: Proposal, after: Proposal | None, refused: str) -> None:
        """Replace a proposal with `after`, or remove it; the caller must hold the lock."""
        state = self._read()
        kept = (after if each.id == before.id else each for each in state.waiting)
        state.waiting = [each for each in kept if each is not None]
        if refused:
            state.refused[refused] = self._clock()
        self._write(state)

    def _write(self, state: _State) -> None:
        if state.damaged:  # keep a copy of the unreadable file
            self.path.rename(beside(self.path, "damaged-"))
        latest = sorted(state.refused.items(), key=lambda pair: pair[1])[-REFUSED_KEPT:]
        item = {
            "next": state.following,
            "waiting": [to_json(each) for each in state.waiting],
            "refused": dict(latest),
        }
        write_atomic(self.path, json.dumps(item, indent=1).encode("ascii"), mode=0o600)


class ProposalDecision:
    """A proposal being decided on, and the possible decisions; each is durable at once."""

    def __init__(
        self,
        proposal: Proposal,
        settle: Callable[[Proposal, Proposal | None, str], None],
    ) -> None:
        self.proposal = proposal
        self._replace_or_remove = settle

    def begin(self, wanted: Proposal) -> None:
        """Mark the proposal as started, with the final text of the write."""
        self._replace_or_remove(self.proposal, replace(wanted, begun=True, problem=""), "")

    def done(self) -> None:
        """Remove the proposal, because the write is done."""
        self._replace_or_remove(self.proposal, None, "")

    def put_back(self, problem: str) -> None:
        """Keep the proposal pending, because the write failed and changed nothing."""
        self._replace_or_remove(
            self.proposal, replace(self.proposal, begun=False, problem=problem), ""
        )

    def refuse(self) -> None:
        """Remove the proposal and remember that the user rejected it."""
        self._replace_or_remove(self.proposal, None, mark_of(self.proposal.write))


def _size(proposal: Proposal) -> int:
    return sum(map(len, texts_of(proposal.write)))


def told_of(waiting: Sequence[Proposal]) -> str:
    """Return one line of Markdown with the pending proposals and the commands for deciding on them.

    The commands list the numbers, so that they don't affect later proposals, or `all` if there are
    more than `NAMED`.
    """
    lines = []
    for kind, one, more in _KINDS:
        numbers = [each.number for each in waiting if each.kind == kind]
        if not numbers:
            continue
        many = f"1 {one} is pending" if len(numbers) == 1 else f"{len(numbers)} {more} are pending"
        named = " ".join(map(str, numbers)) if len(numbers) <= NAMED else "all"
        words = (("keep", f"approve {named}"), ("look", "pending"), ("drop", f"reject {named}"))
        ways = " · ".join(f"{word} `%hermes {kind} {command}`" for word, command in words)
        lines.append(f"{many}: {ways}")
    return "; ".join(lines)
