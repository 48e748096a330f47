"""Record a model's replies and replay them without a model: `Cassette` wraps a model.

```python
model = Cassette(OpenAIChat("gpt-5"), Path("story.jsonl"), "auto")
```

Modes: `record` always asks the model, `replay` never does, `auto` replays recorded requests and
records the others, `off` passes everything through. Tools are always executed.

A replay yields the recorded deltas, usage and cost, so a turn has the same events as the recorded
one. Only complete replies are recorded; errors pass through.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from hermes_nb.core.errors import ConfigError, FailureKind, ModelError
from hermes_nb.core.events import (
    CallDelta,
    Delta,
    ReasoningDelta,
    RequestRetried,
    TextDelta,
    UsageReported,
)
from hermes_nb.core.messages import Json, Reply
from hermes_nb.core.protocols import ChatModel, Request
from hermes_nb.safety.administrator import policy

if TYPE_CHECKING:  # imported lazily: every process reads the mode, but few use a cassette
    from hermes_nb.models.canonical import Canon, Canonical, Normaliser
    from hermes_nb.models.cassette_file import CassetteError, CassetteFile, Tape
    from hermes_nb.models.recording import Piece, Recording

__all__ = ["Cassette", "CassetteError", "CassetteMiss", "Mode", "Tape"]

Mode = Literal["record", "replay", "auto", "off"]
"""How to handle a request: always ask and record; only replay; replay if possible, otherwise
record; neither."""
MODES: tuple[Mode, ...] = get_args(Mode)
NAMELESS = "replay"
"""Model name in a replay without recordings."""
AROUND = 40
"""Number of characters to quote on each side of the first difference."""
NAMED_TOOLS = 4
AGAIN = (
    "to record it again: `%hermes cassette auto` (or HERMES_NB_CASSETTE=auto), then run "
    "from the top"
)
SUFFIX = ".hermes.jsonl"
"""File name suffix of a notebook's cassette, after the notebook's stem."""

_Shown = tuple[str, str]
"""The part of a message that the key covers, and the whole message, both as text."""


def __getattr__(name: str) -> object:
    if name in ("CassetteError", "Tape"):  # part of the public API, imported lazily
        from hermes_nb.models import cassette_file

        return getattr(cassette_file, name)
    raise AttributeError(name)


def mode_named(text: str) -> Mode:
    """Return the mode with that name.

    Raises:
        ConfigError: there is no such mode.
    """
    for mode in MODES:
        if text.strip().lower() == mode:
            return mode
    raise ConfigError(f"{text!r} is not a cassette mode; use one of {', '.join(MODES)}")


class Cassette:
    """Records and replays another model's replies.

    Args:
        model: The model, a function that creates it on first use, or None for a replay.
        path: The cassette's file, or a `Tape` that several cassettes share.
        mode: What to do with a request; see the module.
        name: Name of the model to replay, if the cassette has replies from several.
        normalise: Functions that take a text and remove what differs between runs.
        canon: Replaces the whole computation of request keys.
    """

    def __init__(
        self,
        model: ChatModel | Callable[[], ChatModel] | None,
        path: str | Path | CassetteFile,
        mode: Mode = "auto",
        *,
        name: str = "",
        normalise: Sequence[Normaliser] = (),
        canon: Canon | None = None,
    ) -> None:
        from hermes_nb.models.canonical import Canon
        from hermes_nb.models.cassette_file import CassetteFile

        self.tape = path if isinstance(path, CassetteFile) else CassetteFile(Path(path))
        self.mode = mode_named(mode)
        self._model = None if callable(model) else model
        self._make = model if callable(model) else None
        self._wanted = name
        self._canon = canon or Canon(normalisers=normalise)

    @property
    def name(self) -> str:
        """The model's name; in a replay, the recorded one, since prompts depend on it."""
        if self.mode != "replay" and self._model is not None:
            return self._model.name
        names = [each.model for each in reversed(self.tape.recordings) if each.model]
        if self._wanted and (self._wanted in names or self.mode != "replay"):
            return self._wanted
        return names[0] if names else self._wanted or NAMELESS

    @property
    def window(self) -> int | None:
        """The model's context window in tokens; in a replay, the recorded one."""
        if self.mode != "replay" and self._model is not None:
            return self._model.window
        name = self.name
        recorded = (each.window for each in reversed(self.tape.recordings) if each.model == name)
        return next(recorded, None)

    async def stream(self, request: Request) -> AsyncGenerator[Delta | Reply, None]:
        """Yield the recorded deltas and reply, or the model's own.

        Raises:
            CassetteMiss: a replay has no recording of the request.
            CassetteError: the reply cannot be recorded.
            ModelError: the model failed.
        """
        if self.mode == "off":
            source = self._inner_model().stream(request)
        else:
            canonical = self._canon(request)
            recording = None if self.mode == "record" else self.tape.next(canonical)
            if recording is not None:
                pieces, reply = recording.played(canonical.named)
                for piece in pieces:
                    yield piece
                yield reply
                return
            source = self._record(request, canonical)
        async with aclosing(source) as items:
            async for item in items:
                yield item

    async def aclose(self) -> None:
        if self._model is not None:
            await self._model.aclose()

    async def _record(
        self, request: Request, canonical: Canonical
    ) -> AsyncGenerator[Delta | Reply, None]:
        """Ask the model; yield its deltas, and its reply after recording it."""
        from hermes_nb.models.recording import Recording

        if self.mode == "replay":
            raise self._miss(canonical)
        model = self._inner_model(canonical)
        self.tape.ready()
        pieces: list[Piece] = []
        async with aclosing(model.stream(request)) as items:
            async for item in items:
                if isinstance(item, ReasoningDelta) and item.was_text:
                    pieces = [each for each in pieces if not isinstance(each, TextDelta)]
                    pieces.append(ReasoningDelta(item.text))
                elif isinstance(item, RequestRetried):  # discard it, except for the tokens used
                    pieces = [each for each in pieces if isinstance(each, UsageReported)]
                elif isinstance(item, Reply):
                    made = Recording.of(
                        canonical, item, pieces, model=model.name, window=model.window
                    )
                    self.tape.add(made, canonical)
                elif isinstance(item, UsageReported) or (
                    not isinstance(item, CallDelta) and item.text
                ):
                    pieces.append(item)
                yield item

    def _inner_model(self, canonical: Canonical | None = None) -> ChatModel:
        """Return the model, created on first use.

        Raises:
            CassetteMiss: `auto` has neither a recording nor a model.
            ConfigError: there is no model, or it cannot be created.
        """
        missed = canonical if self.mode == "auto" else None
        if self._model is None and self._make is not None:
            try:
                self._model = self._make()
            except ConfigError as error:
                if missed is None:
                    raise
                raise self._miss(missed, f"It cannot be recorded either: {error}") from error
        if self._model is not None:
            return self._model
        if missed is not None:
            raise self._miss(missed, "It cannot be recorded, because no model is set up.")
        message = (
            f"cassette mode {self.mode!r} needs a model; choose one, or set "
            "HERMES_NB_CASSETTE=replay"
        )
        raise ConfigError(message)

    def _miss(self, canonical: Canonical, *way_out: str) -> CassetteMiss:
        self.tape.last_miss = miss = CassetteMiss(canonical, self.tape, *way_out)
        return miss


@dataclass(frozen=True, slots=True)
class CassetteFiles:
    """A cassette's files."""

    path: Path
    """The file to write; also read."""
    also: tuple[Path, ...] = ()
    """Further files to read."""
    private: bool = False
    """Whether to make the file readable only by its owner."""


class Deck:
    """Wraps models so that they all record to, or replay from, the same cassette.

    Nothing is read or written until a wrapped model is asked.

    Args:
        mode: Returns the mode in the settings; used until `switch` overrides it.
        shelf: Returns the cassette's files; called when they are first needed.
        home: Returns the Hermes directory.
        personal: Returns the system prompt layers that come from the user's own files.
    """

    def __init__(
        self,
        *,
        mode: Callable[[], str],
        shelf: Callable[[], CassetteFiles],
        home: Callable[[], Path],
        personal: Callable[[], Sequence[str]] = tuple,
    ) -> None:
        self.normalisers: list[Normaliser] = []
        self._mode = mode
        self._switched: Mode | None = None
        self._shelf = shelf
        self._tape: CassetteFile | None = None
        self._home = home
        self._personal = personal
        self._canon: Canon | None = None

    @property
    def mode(self) -> Mode:
        """The current mode."""
        return self._switched or mode_named(self._mode() or "off")

    @property
    def on(self) -> bool:
        """Whether requests are recorded or replayed.

        Sessions then start empty, so that recordings do not depend on earlier ones.
        """
        return self.mode != "off"

    @property
    def tape(self) -> CassetteFile:
        """The shared cassette file, opened on first use."""
        if self._tape is None:
            from hermes_nb.models.cassette_file import CassetteFile

            shelf = self._shelf()
            self._tape = CassetteFile(shelf.path, also=shelf.also, private=shelf.private)
        return self._tape

    @property
    def last_miss(self) -> ModelError | None:
        """The run's last request without a matching recording."""
        return self._tape.last_miss if self._tape else None

    def switch(self, mode: Mode) -> None:
        """Change the mode and start a new run. Models have to be wrapped again.

        Raises:
            ConfigError: the administrator does not allow the mode.
        """
        policy().check("cassettes", mode)
        self._switched = mode
        self._tape = None

    def wrap(self, make: Callable[[], ChatModel], *, name: str = "") -> ChatModel:
        """Return the model that `make` creates, with the cassette unless the mode is `off`.

        A replay creates no model. `auto` works without one as long as every request has been
        recorded. `name` is the name of the model in the settings.
        """
        mode = self.mode
        if mode == "off":
            return make()
        from hermes_nb.models.canonical import Canon
        from hermes_nb.models.profiles import EMBEDDED
        from hermes_nb.models.volatile import Places

        model: ChatModel | Callable[[], ChatModel] | None = None
        if mode == "record":
            model = make()
        elif mode == "auto":
            try:
                model = make()
            except ConfigError:
                model = make  # raises the same error again if the model is needed
        self._canon = self._canon or Canon(
            places=lambda: Places.here(self._home()),
            personal=self._personal,
            normalisers=self.normalisers,
        )
        wanted = EMBEDDED if name == "embedded" else name
        return Cassette(model, self.tape, mode, name=wanted, canon=self._canon)


def shelf_for(
    *, notebook: str = "", explicit: str = "", home: Path, mode: Mode, cwd: Path | None = None
) -> CassetteFiles:
    """Return the cassette files of a notebook or a script.

    `explicit` is the path of the file. By default, a notebook's cassette is next to it, as
    `NAME.hermes.jsonl`. A run without a notebook, or one that does not know it (nbclient,
    papermill, nbval), records under `home`. It also replays from every cassette in its working
    directory, because a request has the same key in every file.
    """
    if explicit:
        return CassetteFiles(Path(explicit).expanduser().absolute())
    if notebook:
        path = Path(notebook)
        return CassetteFiles(path.with_name(path.stem + SUFFIX))
    here = cwd or Path.cwd()
    own = home / "cassettes" / f"{_story(here)}.jsonl"
    also = () if mode == "record" else tuple(sorted(here.glob(f"*{SUFFIX}")))
    return CassetteFiles(own, also, private=True)


def _story(cwd: Path) -> str:
    """Return a cassette name for a directory: the running script's name, or the directory's."""
    script = Path(sys.argv[0] if sys.argv else "")
    known = script.suffix == ".py" and script.is_file() and "site-packages" not in script.parts
    name = script.stem if known and not script.stem.startswith("ipykernel") else cwd.name
    where = hashlib.sha256(os.fsencode(cwd)).hexdigest()[:8]
    return f"{name or 'root'}-{where}"


_MISS = re.compile(r"no recording in .{1,300}? fits this request|there are no recordings in ")


def is_miss(text: str) -> bool:
    """Return whether an error text reports a replay without a matching recording.

    An error in a kernel or a turn arrives as text only. A test ensures that this matches the text
    of `CassetteMiss`.
    """
    return _MISS.search(text) is not None


class CassetteMiss(ModelError):
    """No recording matches a request, and no model was asked.

    `way_out` suggests a fix, by default how to record again.
    """

    def __init__(self, canonical: Canonical, tape: CassetteFile, way_out: str = AGAIN) -> None:
        from hermes_nb.models.recording import own_version

        lines = [f"no recording in {tape.path.name} fits this request:"]
        if tape.recordings:
            nearest, difference = _nearest(canonical, tape)
            lines.append(difference)
            if nearest.version not in ("", own_version()):
                text = f"It was recorded by hermes_nb {nearest.version}, this is {own_version()}."
                lines.append(text)
        else:
            lines[0] = f"there are no recordings in {tape.path}."
        if problems := tape.problems:
            lines.append(f"{len(problems)} damaged lines were ignored: {problems[0]}.")
        super().__init__("\n".join([*lines, way_out]), kind=FailureKind.BAD_REQUEST)


def _nearest(canonical: Canonical, tape: CassetteFile) -> tuple[Recording, str]:
    """Return the recording that shares the most messages with the request, and how it differs."""
    shown: dict[str, _Shown] = {}  # most recordings share most of their messages
    now = [_shown(link.said) for link in canonical.links]
    found: list[tuple[tuple[int, ...], Recording, list[_Shown]]] = []
    for recording in tape.recordings:
        links = tape.conversation(recording)
        shown.update({x.digest: _shown(x.said) for x in links if x.digest not in shown})
        then = [shown[link.digest] for link in links]
        same = [a[0] == b[0] for a, b in zip(then, now, strict=False)]
        apart = same.index(False) if False in same else None
        alike = 0 if apart is None else common_prefix(then[apart][0], now[apart][0])
        fits = int(recording.fits(canonical))
        found.append(((sum(same), -abs(len(then) - len(now)), fits, alike), recording, then))
    _, nearest, then = max(found, key=lambda each: each[0])
    return nearest, _difference(then, now, nearest, canonical)


def _difference(
    then: list[_Shown], now: list[_Shown], nearest: Recording, canonical: Canonical
) -> str:
    if not then:
        return "the recorded messages are not in the file, so the difference cannot be shown."
    for at, (a, b) in enumerate(zip(then, now, strict=False)):
        if a[0] != b[0]:
            place = common_prefix(a[1], b[1])
            return (
                f"message {at + 1} ({canonical.links[at].said.get('role', '')}) differs;\n  "
                f"recorded: {_quoted(a[1], place)}\n  now: {_quoted(b[1], place)}"
            )
    if len(then) != len(now):
        longer, which = (now, "now") if len(now) > len(then) else (then, "recorded")
        more = _quoted(longer[min(len(then), len(now))][1], 0)
        return f"{len(then)} messages were recorded, now there are {len(now)}; only {which}: {more}"
    if gone := nearest.gone(canonical):
        more = f" and {len(gone) - NAMED_TOOLS} more" if len(gone) > NAMED_TOOLS else ""
        return (
            "the recording calls tools that no longer exist: "
            f"{', '.join(gone[:NAMED_TOOLS])}{more}."
        )
    if not nearest.fits(canonical):
        return f"tool_choice was {nearest.choice!r}, now it is {canonical.choice!r}"
    return "its messages have the same text, but refer to other cells, files or sessions"


def _quoted(text: str, at: int) -> str:
    """Return the text around a position as one line, with line breaks escaped."""
    start, end = max(0, at - AROUND), at + AROUND
    piece = json.dumps(text[start:end], ensure_ascii=False)[1:-1]
    return f"“{'…' if start else ''}{piece}{'…' if end < len(text) else ''}”"


def common_prefix(a: str, b: str) -> int:
    """Return the length of the common prefix of two texts."""
    low, high = 0, min(len(a), len(b))
    while low < high:  # binary search: comparing slices is much faster than a loop
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _shown(said: Mapping[str, Json]) -> _Shown:
    """Return two texts for a canonical message: one to compare, and one to quote in errors."""
    from hermes_nb.models.canonical import counted

    counts = _spelt(counted(said) or {})
    return counts, counts if said.get("role") == "system" else _spelt(said)


def _spelt(said: Mapping[str, Json]) -> str:
    parts = said.get("parts")
    rest = {name: value for name, value in said.items() if name not in ("role", "parts")}
    told = [*(parts if isinstance(parts, list) else ()), *([rest] if rest else ())]
    pieces = [
        part if isinstance(part, str) else json.dumps(part, ensure_ascii=False, sort_keys=True)
        for part in told
    ]
    return "\n".join(pieces) if pieces else f"({said.get('role', '')} message without text)"
