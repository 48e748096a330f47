"""Assemble a streamed reply from a server's events, and read its token usage.

Tolerates common deviations: a bare error object among the events, chunks that repeat or omit
fields. Reply size is limited, and assembling takes linear time.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace

from hermes_nb.core.events import CallDelta, ReasoningDelta, TextDelta
from hermes_nb.core.json_values import clean, clean_text
from hermes_nb.core.messages import Json, Message, Reply, ToolCall, Usage
from hermes_nb.core.thinking import Piece, Thinking
from hermes_nb.models.arguments import CallFragments
from hermes_nb.models.call_reader import PlainReader, Reading, ReplyReader
from hermes_nb.models.chat.errors import from_body, malformed
from hermes_nb.models.text_calls import RAW

_APART = ("cache_read_input_tokens", "cache_creation_input_tokens", "cache_creation")
_MOST = 10**12
"""Maximum plausible token count or cost; larger numbers could overflow the store."""


def read_usage(usage: Mapping[str, Json]) -> Usage:
    """Return one request's usage; missing or invalid numbers count as 0.

    Supports the fields of OpenAI, Anthropic, DeepSeek (`prompt_cache_hit_tokens`), Moonshot
    (`cached_tokens`), Qwen (Anthropic's names among the details) and OpenRouter (with a `cost`), as
    of 2026-11.
    """
    prompt = _details(usage, "prompt_tokens_details", "input_tokens_details")
    output = _details(usage, "completion_tokens_details", "output_tokens_details")
    lifetimes = _details(usage, "cache_creation")
    cached = max(
        _count(prompt, "cached_tokens", "cache_read_tokens"),
        _count(usage, "cache_read_input_tokens", "prompt_cache_hit_tokens", "cached_tokens"),
    )
    written = max(
        _count(
            prompt, "cache_write_tokens", "cache_creation_tokens", "cache_creation_input_tokens"
        ),
        _count(usage, "cache_creation_input_tokens"),
        sum(_count(lifetimes, name) for name in lifetimes),
    )
    prompted = _count(usage, "prompt_tokens")
    total = prompted or _count(usage, "input_tokens")
    # Anthropic's own format counts only tokens neither read from the cache nor written to it. If a
    # gateway passes these numbers on under OpenAI's names, the parts exceed the total.
    own = not prompted and any(name in usage for name in _APART)
    if own or cached + written > total:
        total += cached + written
    return Usage(
        input=total,
        output=_count(usage, "completion_tokens", "output_tokens"),
        cached=cached,
        written=written,
        reasoning=_count(output, "reasoning_tokens", "thinking_tokens")
        or _count(usage, "reasoning_tokens"),
        requests=1,
        cost=_price(usage.get("cost")),
    )


def _details(usage: Mapping[str, Json], *names: str) -> Mapping[str, Json]:
    return next((value for n in names if isinstance(value := usage.get(n), Mapping)), {})


def _count(usage: Mapping[str, Json], *names: str) -> int:
    for value in map(usage.get, names):
        if isinstance(value, float) and not math.isfinite(value):
            return 0
        if isinstance(value, int | float) and not isinstance(value, bool):
            return int(min(max(0, value), _MOST))
    return 0


def _price(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value <= _MOST else None


LIMIT = 4_000_000
"""Maximum characters of a reply. A longer reply is cut off and finishes as `length`."""

_FINISH = {
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "filtered",
    "refusal": "filtered",
    "safety": "filtered",
}

_GROWING = ("text", "summary", "data", "thinking")
_HIDDEN = ("data", "encrypted_content", "signature")
"""Fields of a reasoning block that are not shown, and therefore not counted as reasoning."""
EXTRAS = "call_extras"
"""Key in `Message.echo` for a provider's data about each call, such as Gemini's signatures."""
THINKING, ITEMS = "thinking_blocks", "reasoning_items"
"""Keys in `Message.echo` for reasoning from Anthropic's Messages and OpenAI's Responses APIs. Each
block has its `index` among all parts of the reply."""
_BLOCKS = ("reasoning_details", THINKING, ITEMS)

Shown = TextDelta | ReasoningDelta | CallDelta


class Assembly:
    """A reply as it arrives.

    If the text so far turns out to be reasoning, `fresh` creates a new reader in place of `reader`.
    """

    def __init__(
        self,
        reader: ReplyReader,
        *,
        fresh: Callable[[], ReplyReader] = PlainReader,
        limit: int = LIMIT,
        secret: str = "",
    ) -> None:
        self._reader = reader
        self._fresh = fresh
        self._thinking = Thinking()
        self._answer: list[str] = []
        self._left = limit
        self._secret = secret
        self._calls = CallFragments()
        self._reasoning: list[str] = []
        self._blocks: dict[str, list[dict[str, Json]]] = {}
        self._usage: dict[str, Json] = {}
        self._finish = ""
        self._model = ""
        self._shown_text = False
        self._choices = False

    @property
    def ended(self) -> bool:
        """Whether the server has sent a finish reason; only usage may follow."""
        return bool(self._finish)

    @property
    def full(self) -> bool:
        """Whether the limit is reached and reading should stop."""
        return self._left <= 0

    @property
    def begun(self) -> bool:
        """Whether any part of a reply has arrived, even without content."""
        return self._choices or bool(self._usage)

    def feed(self, chunk: object) -> list[Shown]:
        """Add one chunk and return the deltas to show; raise `ModelError` if it is an error."""
        if not isinstance(chunk, Mapping):
            return []
        self._raise_error(chunk)
        model = chunk.get("model")
        self._model = model if isinstance(model, str) and model else self._model
        self._count(chunk.get("usage"))
        if isinstance(groq := chunk.get("x_groq"), Mapping):
            self._count(groq.get("usage"))
        choices = chunk.get("choices")
        if isinstance(choices, list) and choices and isinstance(choices[0], Mapping):
            self._choices = True
            return list(self._choice(choices[0]))
        return []

    def finish(self, *, done: bool = False) -> tuple[list[Shown], Reply]:
        """Return the last deltas and the reply; `done` means that the server ended the stream."""
        shown = list(self._told_apart(self._thinking.finish()))
        rest, reading = self._reader.finish()
        cut = self.full or self._finish == "length" or not (self._finish or done)
        calls = _unique((*self._calls.calls(cut=cut), *reading.calls))
        finish = "length" if self.full else self._finish or "stop"
        if calls and finish == "stop":
            finish = "tool_calls"
        elif finish == "tool_calls" and not calls:
            finish = "stop"
        reasoning = clean_text("".join(self._reasoning))
        message = Message(
            role="assistant",
            parts=Message.assistant(clean_text(reading.text)).parts,
            calls=calls,
            reasoning=reasoning.strip() if self._thinking.found else reasoning,
            echo=self._echo(reading),
        )
        usage = read_usage(self._usage)
        reply = Reply(message=message, usage=usage, finish=finish, model=self._model)
        return [*shown, *([TextDelta(clean_text(rest))] if rest else [])], reply

    def _echo(self, reading: Reading) -> dict[str, Json]:
        echo: dict[str, Json] = {}
        for field, blocks in self._blocks.items():
            whole = [
                {k: "".join(v) if isinstance(v, _Pieces) else v for k, v in block.items()}
                for block in blocks
            ]
            echo[field] = clean(whole)
        if any(extras := self._calls.extras()):
            echo[EXTRAS] = clean(extras)
        if reading.raw and reading.calls:
            echo[RAW] = clean_text(reading.raw)
        return echo

    def _raise_error(self, chunk: Mapping[str, Json]) -> None:
        if chunk.get("error") or "error" in (chunk.get("object"), chunk.get("type")):
            raise from_body(chunk, secret=self._secret)

    def _count(self, usage: object) -> None:
        """Keep the last value of each counter: servers repeat them or send them in parts."""
        if isinstance(usage, Mapping):
            self._usage.update({k: v for k, v in usage.items() if v is not None})

    def _choice(self, choice: Mapping[str, Json]) -> Iterator[Shown]:
        self._raise_error(choice)
        self._count(choice.get("usage"))
        whole = choice.get("message")
        if isinstance(delta := choice.get("delta") or whole, Mapping):
            yield from self._reasoned(delta)
            yield from self._content_deltas(delta)
            yield from self._called(delta, whole=delta is whole)
        elif isinstance(text := choice.get("text"), str):
            yield from self._text(text)
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            if reason == "error":
                raise malformed("the provider ended the reply with an error")
            self._finish = _FINISH.get(reason.lower(), "stop")

    def _reasoned(self, delta: Mapping[str, Json]) -> Iterator[Shown]:
        told = ""
        for field in _BLOCKS:
            found = delta.get(field)
            for block in found if isinstance(found, list) else ():
                if isinstance(block, Mapping):
                    self._block(block, self._blocks.setdefault(field, []))
                    told += _thinking_text(block)
        text = delta.get("reasoning_content") or delta.get("reasoning")
        yield from self._thought(text if isinstance(text, str) and text else told)

    def _block(self, detail: Mapping[str, Json], blocks: list[dict[str, Json]]) -> None:
        """Join the pieces of a reasoning block; its signature must be sent back unchanged."""
        block = blocks[-1] if blocks else {}
        same = all(block.get(key) == detail.get(key) for key in ("type", "index"))
        if not block or detail.get("index") is None or not same:
            block = {}
            blocks.append(block)
        first = not block
        for key, value in detail.items():
            if key in _GROWING and isinstance(value, str):
                if not isinstance(pieces := block.get(key), _Pieces):
                    pieces = block[key] = _Pieces()
                pieces.append(value)
            elif first or value is not None:
                block[key] = value
            self._left -= len(value) if key in _HIDDEN and isinstance(value, str) else 0

    def _content_deltas(self, delta: Mapping[str, Json]) -> Iterator[Shown]:
        content = delta.get("content")
        if isinstance(content, str):
            yield from self._text(content)
        for part in content if isinstance(content, list) else ():  # Mistral's format for reasoning
            match part:
                case {"type": "thinking"}:
                    yield from self._thought(_thinking_text(part.get("thinking")))
                case {"text": str(text)}:
                    yield from self._text(text)
                case _:
                    pass
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._finish = self._finish or "filtered"
            yield from self._text(refusal)

    def _called(self, delta: Mapping[str, Json], *, whole: bool) -> Iterator[Shown]:
        if isinstance(calls := delta.get("tool_calls"), list):
            # Several calls in one chunk are different calls, even without an index.
            numbered = whole or len(calls) > 1
            for position, call in enumerate(calls):
                if isinstance(call, Mapping):
                    at = position if numbered else None
                    made = self._fragment(call, at)
                    yield from () if whole else made
        elif isinstance(old := delta.get("function_call"), Mapping):
            yield from self._fragment({"function": old}, 0)

    def _fragment(self, call: Mapping[str, Json], at: int | None) -> list[Shown]:
        """Add a fragment of a call, and return its arguments to show if they are text."""
        self._left -= self._calls.feed(call, at, room=max(self._left, 0))
        number, name = self._calls.latest
        function = call.get("function")
        text = function.get("arguments") if isinstance(function, Mapping) else None
        if name and isinstance(text, str) and text:
            return [CallDelta(number, name, clean_text(text))]
        return []

    def _text(self, text: str) -> Iterator[Shown]:
        yield from self._told_apart(self._thinking.feed(self._truncate(text)))

    def _told_apart(self, pieces: Iterable[Piece]) -> Iterator[Shown]:
        """Yield reasoning that is marked in the text, and pass the rest to the reader."""
        for kind, text in pieces:
            if kind == "text":
                self._answer.append(text)
                if shown := self._reader.feed(text):
                    yield TextDelta(clean_text(shown))
                continue
            was_text = kind == "retract"
            thought = "".join(self._answer) if was_text else text
            if was_text:
                self._answer, self._reader = [], self._fresh()
            if thought:
                self._reasoning.append(thought)
                yield ReasoningDelta(clean_text(thought), was_text)

    def _thought(self, text: str) -> Iterator[Shown]:
        text = self._truncate(text)
        if text:
            self._reasoning.append(text)
            yield ReasoningDelta(clean_text(text))

    def _truncate(self, text: str) -> str:
        text = text[: max(self._left, 0)]
        self._left -= len(text)
        return text


class _Pieces(list[str]):
    """A field of a reasoning block that arrives in pieces."""


def _thinking_text(thought: object) -> str:
    """Return the text of a reasoning block or thinking part, or of a list of these."""
    if isinstance(thought, list):
        return "".join(map(_thinking_text, thought))
    if isinstance(thought, Mapping):
        thought = thought.get("text") or thought.get("thinking") or thought.get("summary")
    return thought if isinstance(thought, str) else ""


def _unique(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Give every call a unique id, generated from its position if the server's is not unique."""
    taken = {call.id for call in calls}
    seen: set[str] = set()
    out = []
    for position, call in enumerate(calls, start=1):
        if not call.id or call.id in seen:
            own = (f"call_{position}" + (f"_{n}" if n > 1 else "") for n in itertools.count(1))
            fresh = next(each for each in own if each not in taken)
            taken.add(fresh)
            out.append(replace(call, id=fresh))
        else:
            out.append(call)
        seen.add(out[-1].id)
    return tuple(out)
