"""What a map is asked, and what has become of each of its inputs, as values."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from hermes_nb.app.maps.task import MapResult
from hermes_nb.core.claims import Claim
from hermes_nb.core.messages import Usage
from hermes_nb.core.text import canonical_json, one_line

ItemStatus = Literal["waiting", "running", "done", "failed", "unknown", "stopped", "budget"]
ERROR = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An input and what has become of it. `kept` says that it is from an earlier run."""

    name: str
    status: ItemStatus = "waiting"
    answer: str = ""
    error: str = ""
    usage: Usage = field(default_factory=Usage)
    seconds: float = 0.0
    kept: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What is asked of every input. `model` names who answers, wherever it is served.

    `afresh` is for a run that must not go on with an earlier one, such as a recording.
    """

    prompt: str
    model: str = ""
    base_url: str = ""
    parallel: int | None = None
    retry: bool = False
    afresh: bool = False

    @property
    def run(self) -> str:
        """The name that the ledger knows this map by."""
        extra = [secrets.token_hex(8)] if self.afresh else []
        return digest_of([self.prompt, self.model, *extra])


def progress_of(items: Sequence[Item]) -> str:
    """Return how far a map is, in a few words."""
    over = sum(item.status not in ("waiting", "running") for item in items)
    bad = sum(item.status in ("failed", "unknown", "budget") for item in items)
    return f"{over} of {len(items)}" + (f", {bad} without an answer" if bad else "")


def known(name: str, claim: Claim) -> Item:
    """Return the item of a task that somebody else has claimed before."""
    if claim.state == "running":
        host, process, *_ = (*claim.owner.split(":"), "")
        told = f"it was begun by process {process} on {host} and has not ended there"
        return Item(name=name, status="unknown", error=told, kept=True)
    try:
        result = MapResult.from_json(claim.result)
    except ValueError as error:
        return Item(name=name, status="failed", error=str(error), kept=True)
    return Item(
        name=name,
        status=result.status,
        answer=result.text,
        error=one_line(result.error, ERROR),
        usage=result.usage,
        kept=True,
    )


def digest_of(parts: Sequence[str]) -> str:
    """Return a short name for some texts together."""
    return hashlib.sha256(canonical_json(list(parts)).encode("utf-8", "replace")).hexdigest()[:32]
