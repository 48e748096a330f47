"""Record what a model says, and replay it where there is none: `Cassette`, a model around a model.

```python
model = Cassette(OpenAIChat("gpt-5"), Path("story.jsonl"), "auto")
```

`record` always asks, `replay` never does, `auto` replays what is there and records what is not,
`off` passes everything through. Tools run for real in all of them. A replay gives the recorded
deltas, usage and cost, so that the events of a turn are those of the recorded one; it needs no
model at all. Only replies that came to an end are recorded, errors pass through.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from hermes_nb.core.errors import ConfigError, FailureKind, ModelError
from hermes_nb.core.events import Delta, ReasoningDelta, RequestRetried, TextDelta
from hermes_nb.core.messages import Reply
from hermes_nb.core.protocols import ChatModel, Request
from hermes_nb.models.canonical import Canon, Canonical, Link, Normaliser, counted
from hermes_nb.models.cassette_file import CassetteError, Piece, Recording, Tape, own_version
from hermes_nb.models.volatile import Places

Mode = Literal["record", "replay", "auto", "off"]
"""Ask always and record; ask never; ask for what is not recorded; neither."""
MODES: tuple[Mode, ...] = get_args(Mode)


def mode_named(text: str) -> Mode:
    """Return the mode of that name; raise `ConfigError` for any other."""
    for mode in MODES:
        if text.strip().lower() == mode:
            return mode
    message = f"{text!r} is no cassette mode; use one of {', '.join(MODES)}"
    raise ConfigError(message)


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


__all__ = ["Cassette", "CassetteError", "CassetteMiss", "Mode", "Tape"]

NAMELESS = "replay"
"""What a replay without recordings is called."""


class Cassette:
    """Records and replays another model's replies.

    `model` may be None for a replay, or a function that makes it when it is first asked. `path` is
    the cassette's file, or a `Tape` that several cassettes share. `name` is the model that is
    wanted, where a tape has replies of several. `normalise` are functions from text to text that
    take out what differs between runs; `canon` replaces the whole way to a request's key.
    """

    def __init__(
        self,
        model: ChatModel | Callable[[], ChatModel] | None,
        path: str | Path | Tape,
        mode: Mode = "auto",
        *,
        name: str = "",
        normalise: Sequence[Normaliser] = (),
        canon: Canon | None = None,
        missed: Callable[[CassetteMiss], None] = lambda _: None,
    ) -> None:
        self.tape = path if isinstance(path, Tape) else Tape(Path(path))
        self.mode = mode_named(mode)
        self._model = None if callable(model) else model
        self._make = model if callable(model) else None
        self._wanted = name
        self._canon = canon or Canon(normalisers=normalise)
        self._missed = missed

    @property
    def name(self) -> str:
        """The model's name; in a replay that of the recorded one, which the prompt was made for."""
        if self.mode != "replay" and self._model is not None:
            return self._model.name
        names = [each.model for each in reversed(self.tape.recordings) if each.model]
        if self._wanted and (self._wanted in names or self.mode != "replay"):
            return self._wanted
        return names[0] if names else self._wanted or NAMELESS

    @property
    def window(self) -> int | None:
        """The model's window in tokens; in a replay that of the recorded one."""
        if self.mode != "replay" and self._model is not None:
            return self._model.window
        name = self.name
        recorded = (each.window for each in reversed(self.tape.recordings) if each.model == name)
        return next(recorded, None)

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Yield the recorded deltas and reply, or the model's own.

        Raises `CassetteMiss` for a replay without a recording, `CassetteError` when a reply cannot
        be recorded, and what the model raises.
        """
        if self.mode == "off":
            async with aclosing(self._asked().stream(request)) as items:
                async for item in items:
                    yield item
            return
        canonical = self._canon(request)
        recording = None if self.mode == "record" else self.tape.next(canonical)
        if recording is None:
            async with aclosing(self._record(request, canonical)) as items:
                async for item in items:
                    yield item
            return
        pieces, reply = recording.played(canonical.named)
        for piece in pieces:
            yield piece
        yield reply

    async def aclose(self) -> None:
        """Close the model, if there is one."""
        if self._model is not None:
            await self._model.aclose()

    async def _record(
        self, request: Request, canonical: Canonical
    ) -> AsyncGenerator[Delta | Reply, None]:
        """Ask the model and write down what it says, before anyone acts on it."""
        if self.mode == "replay":
            raise self._miss(canonical)
        model = self._asked(canonical)
        self.tape.ready()
        pieces: list[Piece] = []
        async with aclosing(model.stream(request)) as items:
            async for item in items:
                if isinstance(item, ReasoningDelta) and item.was_text:
                    pieces = [each for each in pieces if isinstance(each, ReasoningDelta)]
                    pieces.append(ReasoningDelta(item.text))
                elif isinstance(item, TextDelta | ReasoningDelta):
                    pieces.append(item)
                elif isinstance(item, RequestRetried):
                    pieces.clear()  # they are void
                elif isinstance(item, Reply):
                    recording = Recording.of(
                        canonical,
                        item,
                        pieces,
                        model=model.name,
                        window=model.window,
                    )
                    self.tape.add(recording, canonical)
                yield item

    def _asked(self, canonical: Canonical | None = None) -> ChatModel:
        """Return the model, made on first use; raise where there is none, with what is missing."""
        if self._model is None and self._make is not None:
            try:
                self._model = self._make()
            except ConfigError as error:
                if canonical is None or self.mode != "auto":
                    raise
                raise self._miss(canonical, f"And nothing can be recorded: {error}") from error
        if self._model is not None:
            return self._model
        if canonical is not None and self.mode == "auto":
            raise self._miss(canonical, "And there is no model to record it with.")
        message = f"there is no model to {self.mode}; choose one, or set HERMES_NB_CASSETTE=replay"
        raise ConfigError(message)

    def _miss(self, canonical: Canonical, *way_out: str) -> CassetteMiss:
        miss = CassetteMiss(canonical, self.tape, *way_out)
        self._missed(miss)
        return miss


SUFFIX = ".hermes.jsonl"
"""What a cassette beside a notebook is called, behind the notebook's own name."""


@dataclass(frozen=True, slots=True)
class Shelf:
    """Files of a cassette: `path` is written, `also` are read; `private` is for the owner alone."""

    path: Path
    also: tuple[Path, ...] = ()
    private: bool = False


class Deck:
    """Wraps models so that they record or replay, all on one tape.

    `mode` is what the settings say, asked until `switch` says otherwise; `shelf` says where the
    files are, when the tape is first needed; `personal` returns the layers of the running system
    prompt that come from the user's own home. `home` is the Hermes home.
    """

    def __init__(
        self,
        *,
        mode: Callable[[], str],
        shelf: Callable[[], Shelf],
        home: Callable[[], Path],
        personal: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.normalisers: list[Normaliser] = []
        self.last_miss: CassetteMiss | None = None
        self._mode = mode
        self._switched: Mode | None = None
        self._shelf = shelf
        self._tape: Tape | None = None
        self._home = home
        self._personal = personal
        self._canon: Canon | None = None

    @property
    def mode(self) -> Mode:
        """What is done now."""
        return self._switched or mode_named(self._mode() or "off")

    @property
    def on(self) -> bool:
        """Whether anything is recorded or replayed, so that a story begins at its beginning."""
        return self.mode != "off"

    @property
    def tape(self) -> Tape:
        """The tape, chosen on first use."""
        if self._tape is None:
            shelf = self._shelf()
            self._tape = Tape(shelf.path, also=shelf.also, private=shelf.private)
        return self._tape

    def switch(self, mode: Mode) -> None:
        """Do this from now on, as a new run; models have to be wrapped anew."""
        self._switched = mode
        self.last_miss = None
        self._tape = None

    def wrap(self, make: Callable[[], ChatModel], *, name: str = "") -> ChatModel:
        """Return the model that `make` makes, on the tape unless that is off.

        A replay makes none. `auto` does without one as long as everything is recorded. `name` is
        the model that is wanted, as the settings name it.
        """
        mode = self.mode
        if mode == "off":
            return make()
        from hermes_nb.models.profiles import EMBEDDED

        model: ChatModel | Callable[[], ChatModel] | None = None
        if mode == "record":
            model = make()
        elif mode == "auto":
            try:
                model = make()
            except ConfigError:
                model = make  # which says once more what is missing, if it is asked
        canon = self._canon = self._canon or self._own_canon()
        wanted = EMBEDDED if name == "embedded" else name
        return Cassette(model, self.tape, mode, name=wanted, canon=canon, missed=self._note_miss)

    def _own_canon(self) -> Canon:
        return Canon(
            places=lambda: Places.here(self._home()),
            personal=self._personal,
            normalisers=self.normalisers,
        )

    def _note_miss(self, miss: CassetteMiss) -> None:
        self.last_miss = miss


def shelf_for(
    *, notebook: str = "", explicit: str = "", home: Path, mode: Mode, cwd: Path | None = None
) -> Shelf:
    """Return where the cassette of a notebook or a script lies.

    `explicit` names the file. Else it lies beside the notebook, as `NAME.hermes.jsonl`. A run that
    does not know its notebook (nbclient, papermill, nbval) or has none records below the home and
    replays from every cassette in its working directory as well: a request has one key, wherever
    its recording lies.
    """
    if explicit:
        return Shelf(Path(explicit).expanduser().absolute())
    if notebook:
        path = Path(notebook)
        return Shelf(path.with_name(path.stem + SUFFIX))
    here = cwd or Path.cwd()
    own = home / "cassettes" / f"{_story(here)}.jsonl"
    also = () if mode == "record" else tuple(sorted(here.glob(f"*{SUFFIX}")))
    return Shelf(own, also, private=True)


def _story(cwd: Path) -> str:
    """Return a name for what runs in a directory: its script's, or else the directory's own."""
    script = Path(sys.argv[0] if sys.argv else "")
    known = script.suffix == ".py" and script.is_file() and "site-packages" not in script.parts
    name = script.stem if known and not script.stem.startswith("ipykernel") else cwd.name
    where = hashlib.sha256(os.fsencode(cwd)).hexdigest()[:8]
    return f"{name or 'root'}-{where}"
