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
from typing import TYPE_CHECKING, Literal, get_args

from hermes_nb.core.errors import ConfigError, FailureKind, ModelError
from hermes_nb.core.events import Delta, ReasoningDelta, RequestRetried, TextDelta, UsageReported
from hermes_nb.core.messages import Json, Reply
from hermes_nb.core.protocols import ChatModel, Request
from hermes_nb.safety.administrator import policy

if TYPE_CHECKING:  # settings name a mode in every process, few have a cassette
    from hermes_nb.models.canonical import Canon, Canonical, Normaliser
    from hermes_nb.models.cassette_file import CassetteError, CassetteFile, Tape
    from hermes_nb.models.recording import Piece, Recording

__all__ = ["Cassette", "CassetteError", "CassetteMiss", "Mode", "Tape"]

Mode = Literal["record", "replay", "auto", "off"]
"""Ask always and record; ask never; ask for what is not recorded; neither."""
MODES: tuple[Mode, ...] = get_args(Mode)
NAMELESS = "replay"
"""What a replay without recordings is called."""
AROUND = 40
"""Characters shown on each side of the first difference."""
NAMED_TOOLS = 4
AGAIN = (
    "record it anew: `%hermes cassette auto` (or HERMES_NB_CASSETTE=auto), then run from the top"
)
SUFFIX = ".hermes.jsonl"
"""What a cassette beside a notebook is called, behind the notebook's own name."""

_Shown = tuple[str, str]
"""What counts of a message, and all of it."""


def __getattr__(name: str) -> object:
    if name in ("CassetteError", "Tape"):  # promised here, and imported when they are asked for
        from hermes_nb.models import cassette_file

        return getattr(cassette_file, name)
    raise AttributeError(name)


def mode_named(text: str) -> Mode:
    """Return the mode of that name; raise `ConfigError` for any other."""
    for mode in MODES:
        if text.strip().lower() == mode:
            return mode
    raise ConfigError(f"{text!r} is no cassette mode; use one of {', '.join(MODES)}")


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
            source = self._asked().stream(request)
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
        """Ask the model and write down what it says, before anyone acts on it."""
        from hermes_nb.models.recording import Recording

        if self.mode == "replay":
            raise self._miss(canonical)
        model = self._asked(canonical)
        self.tape.ready()
        pieces: list[Piece] = []
        async with aclosing(model.stream(request)) as items:
            async for item in items:
                if isinstance(item, ReasoningDelta) and item.was_text:
                    pieces = [each for each in pieces if not isinstance(each, TextDelta)]
                    pieces.append(ReasoningDelta(item.text))
                elif isinstance(item, RequestRetried):  # then they are void, but for what was used
                    pieces = [each for each in pieces if isinstance(each, UsageReported)]
                elif isinstance(item, Reply):
                    made = Recording.of(
                        canonical, item, pieces, model=model.name, window=model.window
                    )
                    self.tape.add(made, canonical)
                elif isinstance(item, UsageReported) or item.text:
                    pieces.append(item)
                yield item

    def _asked(self, canonical: Canonical | None = None) -> ChatModel:
        """Return the model, made on first use; raise where there is none, with what is missing."""
        missed = canonical if self.mode == "auto" else None
        if self._model is None and self._make is not None:
            try:
                self._model = self._make()
            except ConfigError as error:
                if missed is None:
                    raise
                raise self._miss(missed, f"And nothing can be recorded: {error}") from error
        if self._model is not None:
            return self._model
        if missed is not None:
            raise self._miss(missed, "And there is no model to record it with.")
        message = f"there is no model to {self.mode}; choose one, or set HERMES_NB_CASSETTE=replay"
        raise ConfigError(message)

    def _miss(self, canonical: Canonical, *way_out: str) -> CassetteMiss:
        self.tape.last_miss = miss = CassetteMiss(canonical, self.tape, *way_out)
        return miss


@dataclass(frozen=True, slots=True)
class CassetteFiles:
    """Files of a cassette: `path` is written, `also` are read; `private` is for the owner alone."""

    path: Path
    also: tuple[Path, ...] = ()
    private: bool = False


class Deck:
    """Wraps models so that they record or replay, all on one tape.

    `mode` is what the settings say, asked until `switch` says otherwise; `shelf` says where the
    files are, when the tape is first needed; `personal` returns the layers of the running system
    prompt that come from the user's own home. `home` is the Hermes home. Nothing is read or written
    before a model that it wraps is asked.
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
        """What is done now."""
        return self._switched or mode_named(self._mode() or "off")

    @property
    def on(self) -> bool:
        """Whether anything is recorded or replayed, so that a story begins at its beginning."""
        return self.mode != "off"

    @property
    def tape(self) -> CassetteFile:
        """The tape, chosen on first use."""
        if self._tape is None:
            from hermes_nb.models.cassette_file import CassetteFile

            shelf = self._shelf()
            self._tape = CassetteFile(shelf.path, also=shelf.also, private=shelf.private)
        return self._tape

    @property
    def last_miss(self) -> ModelError | None:
        """The last request that no recording fitted, in this run."""
        return self._tape.last_miss if self._tape else None

    def switch(self, mode: Mode) -> None:
        """Do this from now on, as a new run; models have to be wrapped anew.

        Raises `ConfigError` where the administrator does not allow it.
        """
        policy().check("cassettes", mode)
        self._switched = mode
        self._tape = None

    def wrap(self, make: Callable[[], ChatModel], *, name: str = "") -> ChatModel:
        """Return the model that `make` makes, on the tape unless that is off.

        A replay makes none. `auto` does without one as long as everything is recorded. `name` is
        the model that is wanted, as the settings name it.
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
                model = make  # which says once more what is missing, if it is asked
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
    """Return where the cassette of a notebook or a script lies.

    `explicit` names the file. Else it lies beside the notebook, as `NAME.hermes.jsonl`. A run that
    does not know its notebook (nbclient, papermill, nbval) or has none records below the home and
    replays from every cassette in its working directory as well: a request has one key, wherever
    its recording lies.
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
    """Return a name for what runs in a directory: its script's, or else the directory's own."""
    script = Path(sys.argv[0] if sys.argv else "")
    known = script.suffix == ".py" and script.is_file() and "site-packages" not in script.parts
    name = script.stem if known and not script.stem.startswith("ipykernel") else cwd.name
    where = hashlib.sha256(os.fsencode(cwd)).hexdigest()[:8]
    return f"{name or 'root'}-{where}"


class CassetteMiss(ModelError):
    """A request was to be replayed and no recording fits it; no model was asked.

    `way_out` says what to do about it, by default how to record anew.
    """

    def __init__(self, canonical: Canonical, tape: CassetteFile, way_out: str = AGAIN) -> None:
        from hermes_nb.models.recording import own_version

        lines = [f"no recording in {tape.path.name} fits this request:"]
        if tape.recordings:
            nearest, difference = _nearest(canonical, tape)
            lines.append(difference)
            if nearest.version not in ("", own_version()):
                told = f"It was recorded by hermes_nb {nearest.version}, this is {own_version()}."
                lines.append(told)
        else:
            lines[0] = f"there are no recordings in {tape.path}."
        if problems := tape.problems:
            lines.append(f"{len(problems)} damaged lines were left out: {problems[0]}.")
        super().__init__("\n".join([*lines, way_out]), kind=FailureKind.BAD_REQUEST)


def _nearest(canonical: Canonical, tape: CassetteFile) -> tuple[Recording, str]:
    """Return the recording that most messages are the same in, and how it differs."""
    shown: dict[str, _Shown] = {}  # most recordings share most of their messages
    now = [_shown(link.said) for link in canonical.links]
    found: list[tuple[tuple[int, ...], Recording, list[_Shown]]] = []
    for recording in tape.recordings:
        links = tape.conversation(recording)
        shown.update({x.digest: _shown(x.said) for x in links if x.digest not in shown})
        then = [shown[link.digest] for link in links]
        same = [a[0] == b[0] for a, b in zip(then, now, strict=False)]
        apart = same.index(False) if False in same else None
        alike = 0 if apart is None else parting(then[apart][0], now[apart][0])
        fits = int(recording.fits(canonical))
        found.append(((sum(same), -abs(len(then) - len(now)), fits, alike), recording, then))
    _, nearest, then = max(found, key=lambda each: each[0])
    return nearest, _difference(then, now, nearest, canonical)


def _difference(
    then: list[_Shown], now: list[_Shown], nearest: Recording, canonical: Canonical
) -> str:
    if not then:
        return "what the recordings answered is not in the file, so what changed cannot be told."
    for at, (a, b) in enumerate(zip(then, now, strict=False)):
        if a[0] != b[0]:
            place = parting(a[1], b[1])
            return (
                f"message {at + 1} ({canonical.links[at].said.get('role', '')}) is another one;\n"
                f"  recorded: {_quoted(a[1], place)}\n  now: {_quoted(b[1], place)}"
            )
    if len(then) != len(now):
        longer, which = (now, "now") if len(now) > len(then) else (then, "recorded")
        more = _quoted(longer[min(len(then), len(now))][1], 0)
        return f"{len(then)} messages were recorded, now there are {len(now)}; {which} also: {more}"
    if gone := nearest.gone(canonical):
        more = f" and {len(gone) - NAMED_TOOLS} more" if len(gone) > NAMED_TOOLS else ""
        return f"the recording calls tools that are gone: {', '.join(gone[:NAMED_TOOLS])}{more}."
    if not nearest.fits(canonical):
        return f"tool_choice was {nearest.choice!r}, now it is {canonical.choice!r}"
    return "its messages read the same, but name other things than they did"


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


def _shown(said: Mapping[str, Json]) -> _Shown:
    """Return a canonical message as it is compared, and as it is quoted."""
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
