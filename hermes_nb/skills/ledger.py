"""What happened to skills: how often each was read, used and changed, who made it, which are off.

One JSON line an event in `usage.jsonl`, added under a lock and without waiting for the disk: a
count that a power cut loses is no loss. A long log is folded into one line a skill. Lines that
cannot be read are skipped, so a damaged log costs counts and nothing else.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from hermes_nb.core.files import append_line, locked, write_atomic
from hermes_nb.core.messages import Json

Event = Literal["view", "use", "patch", "made", "off", "on", "gone"]
FOLD_AT = 262_144
"""Bytes of the log from which it is folded."""
_READ_LIMIT = 16_777_216
_LARGEST = 1e15


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Who changes a skill: a session and a turn of it, "" and 0 where it is the user.

    `proposal` is the id of what the user approved, "" for a change that was made at once.
    """

    session: str = ""
    turn: int = 0
    proposal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """What is known of a skill's life. Times are in seconds since the epoch, 0.0 for never.

    `views` counts how often it was looked at, `uses` how often it was loaded into a conversation.
    """

    views: int = 0
    uses: int = 0
    patches: int = 0
    last_used: float = 0.0
    made: float = 0.0
    origin: Origin = field(default_factory=Origin)
    disabled: bool = False


_NEVER = Usage()


class Ledger:
    """The log below `directory`, or, with None, counts in memory. Safe between threads."""

    def __init__(self, directory: Path | None) -> None:
        self._path = directory / "usage.jsonl" if directory else None
        self._lock = threading.Lock()
        self._stamp: tuple[int, ...] = ()
        self._entries: dict[str, Usage] = {}

    def entries(self) -> Mapping[str, Usage]:
        """Return what is known, by skill name, reading the log again only when it changed."""
        with self._lock:
            stamp: tuple[int, ...] = ()
            if self._path is not None:
                with suppress(OSError):
                    status = self._path.stat()
                    stamp = (status.st_mtime_ns, status.st_size, status.st_ino)
                if stamp != self._stamp:
                    self._entries = _folded(_lines(self._path), {})
                    self._stamp = stamp
            return dict(self._entries)

    def of(self, name: str) -> Usage:
        """Return what is known of one skill."""
        return self.entries().get(name, _NEVER)

    def note(self, name: str, event: Event, origin: Origin | None = None) -> None:
        """Add an event; where it cannot be written it is known to this process alone."""
        line: dict[str, Json] = {"skill": name, "event": event, "at": round(time.time(), 3)}
        if origin and origin.session:
            line |= {"session": origin.session, "turn": origin.turn}
        if self._path is not None and self._path.parent.parent.is_dir():
            path = self._path
            with suppress(OSError):  # a full disk or a read-only home costs the count, no more
                path.parent.mkdir(mode=0o700, exist_ok=True)
                with locked(path):
                    if append_line(path, _json(line), durable=False) > FOLD_AT:
                        folded = (_summary(*each) for each in _folded(_lines(path), {}).items())
                        write_atomic(path, b"".join(folded), mode=0o600)
                return
        with self._lock:
            self._entries = _folded([line], self._entries)


def _json(line: Mapping[str, Json]) -> bytes:
    return json.dumps(line, ensure_ascii=False).encode() + b"\n"


def _lines(path: Path) -> Iterable[dict[str, Json]]:
    try:
        with path.open("rb") as file:
            data = file.read(_READ_LIMIT)
    except OSError:
        return
    for raw in data.split(b"\n"):
        try:
            line = json.loads(raw)
        except ValueError:
            continue
        if isinstance(line, dict) and isinstance(line.get("skill"), str):
            yield line


def _folded(lines: Iterable[Mapping[str, Json]], start: Mapping[str, Usage]) -> dict[str, Usage]:
    entries = dict(start)
    for line in lines:
        name = line["skill"]
        entries[name] = _after(entries.get(name, _NEVER), line)
    return entries


def _after(usage: Usage, line: Mapping[str, Json]) -> Usage:
    at = _number(line.get("at"))
    match line.get("event"):
        case "view":
            return replace(usage, views=usage.views + 1)
        case "use":
            return replace(usage, uses=usage.uses + 1, last_used=max(usage.last_used, at))
        case "patch":
            return replace(usage, patches=usage.patches + 1)
        case "made":
            return replace(usage, made=at, origin=_origin(line))
        case "off" | "on" | "gone" as event:
            return replace(usage, disabled=event == "off")
        case "sum":
            return Usage(
                **{name: int(_number(line.get(name))) for name in ("views", "uses", "patches")},
                last_used=_number(line.get("last_used")),
                made=_number(line.get("made")),
                origin=_origin(line),
                disabled=line.get("disabled") is True,
            )
        case _:
            return usage


def _summary(name: str, usage: Usage) -> bytes:
    known = asdict(usage)
    origin = known.pop("origin")
    del origin["proposal"]
    return _json({"skill": name, "event": "sum", **known, **origin})


def _origin(line: Mapping[str, Json]) -> Origin:
    session = line.get("session")
    return Origin(
        session=session if isinstance(session, str) else "", turn=int(_number(line.get("turn")))
    )


def _number(value: object) -> float:
    good = isinstance(value, int | float) and 0 <= value < _LARGEST  # no NaN either
    return float(value) if good and isinstance(value, int | float) else 0.0
