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

from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from pathlib import Path

from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import Delta, ReasoningDelta, RequestRetried, TextDelta
from hermes_nb.core.messages import Reply
from hermes_nb.core.protocols import ChatModel, Request
from hermes_nb.models.modes import Mode, mode_named
from hermes_nb.models.replay.canonical import Canon, Canonical, Normaliser
from hermes_nb.models.replay.mismatch import CassetteMiss
from hermes_nb.models.replay.recording import Piece, Recording
from hermes_nb.models.replay.tape import CassetteError, Tape

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
