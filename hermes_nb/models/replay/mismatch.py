"""Why no recording fits a request: the first difference to the one that comes nearest."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.models.replay.canonical import Canonical, Link
from hermes_nb.models.replay.recording import Recording, own_version
from hermes_nb.models.replay.tape import Tape
from hermes_nb.models.replay.wording import counted

AROUND = 40
"""Characters shown on each side of the first difference."""
NAMED_TOOLS = 4
AGAIN = (
    "record it anew: `%hermes cassette auto` (or HERMES_NB_CASSETTE=auto), then run from the top"
)

_Shown = tuple[str, str]
"""What counts of a message, and all of it."""


class CassetteMiss(ModelError):  # noqa: N818 - what happened, not a fault
    """A request was to be replayed and no recording fits it; no model was asked.

    `way_out` says what to do about it, by default how to record anew.
    """

    def __init__(self, canonical: Canonical, tape: Tape, way_out: str = AGAIN) -> None:
        recordings = tape.recordings
        lines = [f"no recording in {tape.path.name} fits this request:"]
        if not recordings:
            lines[0] = f"there are no recordings in {tape.path}."
        else:
            nearest, difference = _nearest(canonical, recordings, tape)
            lines += [difference, *_other_version(nearest)]
        if problems := tape.problems:
            lines.append(f"{len(problems)} damaged lines were left out: {problems[0]}.")
        super().__init__("\n".join([*lines, way_out]), kind=FailureKind.BAD_REQUEST)


def _nearest(
    canonical: Canonical, recordings: Sequence[Recording], tape: Tape
) -> tuple[Recording, str]:
    """Return the recording that most messages are the same in, and how it differs."""
    shown: dict[str, _Shown] = {}  # most recordings share most of their messages

    def texts(links: Sequence[Link]) -> list[_Shown]:
        for link in links:
            if link.digest not in shown:
                shown[link.digest] = _shown(link.said)
        return [shown[link.digest] for link in links]

    now = [_shown(link.said) for link in canonical.links]
    best: tuple[tuple[int, ...], Recording, list[_Shown]] | None = None
    for recording in recordings:
        then = texts(tape.conversation(recording))
        same = sum(a[0] == b[0] for a, b in zip(then, now, strict=False))
        fits = int(recording.fits(canonical))
        score = (same, -abs(len(then) - len(now)), fits, _alike(then, now))
        if best is None or score > best[0]:
            best = score, recording, then
    assert best is not None  # noqa: S101 - there are recordings
    _, nearest, then = best
    return nearest, _difference(then, now, nearest, canonical)


def _difference(
    then: list[_Shown], now: list[_Shown], nearest: Recording, canonical: Canonical
) -> str:
    if not then:
        return "what the recordings answered is not in the file, so what changed cannot be told."
    for at, (a, b) in enumerate(zip(then, now, strict=False)):
        if a[0] != b[0]:
            role = canonical.links[at].said.get("role", "")
            return f"message {at + 1} ({role}) {_apart(a[1], b[1])}"
    if len(then) != len(now):
        longer, which = (now, "now") if len(now) > len(then) else (then, "recorded")
        more = _quoted(longer[min(len(then), len(now))][1], 0)
        return f"{len(then)} messages were recorded, now there are {len(now)}; {which} also: {more}"
    if gone := nearest.gone(canonical):
        return f"the recording calls tools that are gone: {_listed(gone)}."
    if not nearest.fits(canonical):
        return f"tool_choice was {nearest.choice!r}, now it is {canonical.choice!r}"
    return "its messages read the same, but name other things than they did"


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_TOOLS} more" if len(names) > NAMED_TOOLS else ""
    return ", ".join(names[:NAMED_TOOLS]) + more


def _other_version(nearest: Recording) -> list[str]:
    if nearest.version in ("", own_version()):
        return []
    return [f"It was recorded by hermes_nb {nearest.version}, this is {own_version()}."]


def _apart(then: str, now: str) -> str:
    """Return both texts around the place where they part."""
    at = parting(then, now)
    return f"is another one;\n  recorded: {_quoted(then, at)}\n  now: {_quoted(now, at)}"


def _quoted(text: str, at: int) -> str:
    """Return a text around a place, on one line, its line ends and the like spelled out."""
    start, end = max(0, at - AROUND), at + AROUND
    piece = json.dumps(text[start:end], ensure_ascii=False)[1:-1]
    return f"“{'…' if start else ''}{piece}{'…' if end < len(text) else ''}”"


def parting(a: str, b: str) -> int:
    """Return how many characters two texts begin with alike."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # slices compare as fast as memory does, characters in a loop do not
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _alike(then: Sequence[_Shown], now: Sequence[_Shown]) -> int:
    """Return how many characters the first two messages that differ begin with alike."""
    for a, b in zip(then, now, strict=False):
        if a[0] != b[0]:
            return parting(a[0], b[0])
    return 0


def _shown(said: Mapping[str, object]) -> _Shown:
    """Return a canonical message as it is compared, and as it is quoted."""
    counts = _spelt(counted(said) or {})
    return counts, counts if said.get("role") == "system" else _spelt(said)


def _spelt(said: Mapping[str, object]) -> str:
    parts = said.get("parts")
    pieces = [_part(part) for part in parts] if isinstance(parts, list) else []
    rest = {name: value for name, value in said.items() if name not in ("role", "parts")}
    if rest:
        pieces.append(json.dumps(rest, ensure_ascii=False, sort_keys=True))
    return "\n".join(pieces) if pieces else f"({said.get('role', '')} message without text)"


def _part(part: object) -> str:
    return part if isinstance(part, str) else json.dumps(part, ensure_ascii=False, sort_keys=True)
