"""Put a streamed reply together, whatever the server's idea of the format is.

`Assembly.feed` takes one decoded chunk (or a whole non-streamed reply) and returns the deltas to
show; `finish` returns the rest of them and the reply. It never raises on odd shapes: what is not
understood is ignored, and arguments that did not arrive whole become a problem of their call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from hermes_nb.core.events import ReasoningDelta, TextDelta
from hermes_nb.core.messages import Message, Reply, ToolCall
from hermes_nb.core.text import clean, clean_text
from hermes_nb.core.thinking import Piece, Thinking
from hermes_nb.models.chat.classify import from_body, malformed
from hermes_nb.models.chat.usage import read_usage
from hermes_nb.models.toolcalls.fragments import CallFragments
from hermes_nb.models.toolcalls.strategies import RAW, PlainReader, Reader, Reading

LIMIT = 4_000_000
"""Characters of one reply; a server that sends more is cut off and the reply ends as `length`."""

_FINISH = {
    "tool_calls": "tool_calls",
    "tool_use": "tool_calls",
    "function_call": "tool_calls",
    "length": "length",
    "max_tokens": "length",
    "model_length": "length",
    "content_filter": "filtered",
    "refusal": "filtered",
    "safety": "filtered",
}

Shown = TextDelta | ReasoningDelta


class Assembly:
    """One reply as it arrives; a `fresh` reader takes over where what was read was reasoning."""

    def __init__(
        self,
        reader: Reader,
        *,
        fresh: Callable[[], Reader] = PlainReader,
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
        self._details: list[_Detail] = []
        self._usage: dict[str, Any] = {}
        self._finish = ""
        self._model = ""
        self._shown_text = False
        self._choices = False

    @property
    def ended(self) -> bool:
        """Whether the server has said why the reply stops: what may follow is usage."""
        return bool(self._finish)

    @property
    def full(self) -> bool:
        """Whether the limit is reached: nothing more should be read."""
        return self._left <= 0

    @property
    def begun(self) -> bool:
        """Whether anything of a reply has arrived, even if it says nothing."""
        return self._choices or bool(self._usage)

    def feed(self, chunk: object) -> list[Shown]:
        """Take one chunk and return what to show; raise `ModelError` when it is an error."""
        if not isinstance(chunk, Mapping):
            return []
        self._raise_error(chunk)
        if isinstance(chunk.get("model"), str) and chunk["model"]:
            self._model = chunk["model"]
        self._count(chunk.get("usage"))
        if isinstance(groq := chunk.get("x_groq"), Mapping):
            self._count(groq.get("usage"))
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
            return []
        self._choices = True
        return list(self._choice(choices[0]))

    def finish(self, *, done: bool = False) -> tuple[list[Shown], Reply]:
        """Return the last deltas and the reply; `done` says that the server ended the stream."""
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

    def _echo(self, reading: Reading) -> dict[str, Any]:
        """Return what a later request may send back as it came."""
        echo: dict[str, Any] = {}
        if self._details:
            echo["reasoning_details"] = clean([detail.whole() for detail in self._details])
        if reading.raw and reading.calls:
            echo[RAW] = clean_text(reading.raw)
        return echo

    def _raise_error(self, chunk: Mapping[str, Any]) -> None:
        error = chunk.get("error")
        if error or (chunk.get("object") == "error" or chunk.get("type") == "error"):
            raise from_body(chunk, secret=self._secret)

    def _count(self, usage: object) -> None:
        """Keep the last value of every counter: servers repeat, and some send them in parts."""
        if isinstance(usage, Mapping):
            self._usage.update({k: v for k, v in usage.items() if v is not None})

    def _choice(self, choice: Mapping[str, Any]) -> Iterator[Shown]:
        self._raise_error(choice)
        self._count(choice.get("usage"))
        whole = choice.get("message")
        delta = choice.get("delta") or whole
        if isinstance(delta, Mapping):
            yield from self._reasoned(delta)
            yield from self._said(delta)
            self._called(delta, whole=delta is whole)
        elif isinstance(choice.get("text"), str):
            yield from self._text(choice["text"])
        reason = choice.get("finish_reason")
        if isinstance(reason, str) and reason:
            if reason == "error":
                text = "the provider broke the reply off with an error"
                raise malformed(text, secret=self._secret)
            self._finish = _FINISH.get(reason.lower(), "stop")

    def _reasoned(self, delta: Mapping[str, Any]) -> Iterator[Shown]:
        details = delta.get("reasoning_details")
        if isinstance(details, list):
            for detail in details:
                if isinstance(detail, Mapping):
                    self._detail(detail)
        text = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(text, str) and text:
            yield from self._thought(text)
        elif isinstance(details, list):
            yield from self._thought("".join(map(_detail_text, details)))

    def _detail(self, detail: Mapping[str, Any]) -> None:
        """Join the pieces of one reasoning block; what signs it must come back unchanged."""
        last = self._details[-1] if self._details else None
        if last is None or not last.goes_on(detail):
            last = _Detail()
            self._details.append(last)
        self._left -= last.add(detail)

    def _said(self, delta: Mapping[str, Any]) -> Iterator[Shown]:
        content = delta.get("content")
        if isinstance(content, str) and content:
            yield from self._text(content)
        elif isinstance(content, list):  # Mistral sends parts when it thinks
            for part in content:
                if not isinstance(part, Mapping):
                    continue
                if part.get("type") == "thinking":
                    yield from self._thought(_thinking_text(part.get("thinking")))
                elif isinstance(part.get("text"), str):
                    yield from self._text(part["text"])
        refusal = delta.get("refusal")
        if isinstance(refusal, str) and refusal:
            self._finish = self._finish or "filtered"
            yield from self._text(refusal)

    def _called(self, delta: Mapping[str, Any], *, whole: bool) -> None:
        calls = delta.get("tool_calls")
        if isinstance(calls, list):
            # Calls side by side in one chunk are different ones, even if nothing numbers them.
            numbered = whole or len(calls) > 1
            for position, call in enumerate(calls):
                if isinstance(call, Mapping):
                    at = position if numbered else None
                    self._left -= self._calls.feed(call, at, room=max(self._left, 0))
        elif isinstance(old := delta.get("function_call"), Mapping):
            self._left -= self._calls.feed({"function": old}, 0, room=max(self._left, 0))

    def _text(self, text: str) -> Iterator[Shown]:
        yield from self._told_apart(self._thinking.feed(self._within(text)))

    def _told_apart(self, pieces: Iterable[Piece]) -> Iterator[Shown]:
        """Show reasoning that stood in the text as such; the reader has the rest."""
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
        text = self._within(text)
        if text:
            self._reasoning.append(text)
            yield ReasoningDelta(clean_text(text))

    def _within(self, text: str) -> str:
        text = text[: max(self._left, 0)]
        self._left -= len(text)
        return text


class _Detail:
    """One reasoning block as it arrives: some of its fields come in pieces."""

    _GROWING = ("text", "summary", "data")

    def __init__(self) -> None:
        self._fields: dict[str, Any] = {}
        self._pieces: dict[str, list[str]] = {}

    def goes_on(self, detail: Mapping[str, Any]) -> bool:
        """Say whether `detail` is another piece of this block."""
        if detail.get("index") is None:
            return False
        return all(self._fields.get(key) == detail.get(key) for key in ("type", "index"))

    def add(self, detail: Mapping[str, Any]) -> int:
        """Take a piece; return the size of what nothing else shows or counts."""
        hidden = 0
        first = not self._fields
        for key, value in detail.items():
            if key in self._GROWING and isinstance(value, str):
                self._fields.setdefault(key, "")  # keeps the order in which they came
                self._pieces.setdefault(key, []).append(value)
                hidden += len(value) if key == "data" else 0
            elif first or value is not None:
                self._fields[key] = value
                self._pieces.pop(key, None)
        return hidden

    def whole(self) -> dict[str, Any]:
        """Return the block as far as it has come."""
        return {**self._fields, **{key: "".join(each) for key, each in self._pieces.items()}}


def _thinking_text(thinking: object) -> str:
    """Return what a thinking part says: text, or a list of parts."""
    if isinstance(thinking, list):
        return "".join(map(_detail_text, thinking))
    return thinking if isinstance(thinking, str) else ""


def _detail_text(detail: object) -> str:
    if not isinstance(detail, Mapping):
        return ""
    text = detail.get("text") or detail.get("summary")
    return text if isinstance(text, str) else ""


def _unique(calls: tuple[ToolCall, ...]) -> tuple[ToolCall, ...]:
    """Give every call an id of its own, made from its position where the server's will not do."""
    taken: set[str] = set()
    given = {call.id for call in calls}
    out = []
    for position, call in enumerate(calls, start=1):
        call_id, extra = call.id, 0
        while not call_id or call_id in taken:
            extra += 1
            call_id = f"call_{position}" if extra == 1 else f"call_{position}_{extra}"
            if call_id in given:
                call_id = ""
        taken.add(call_id)
        out.append(call if call_id == call.id else replace(call, id=call_id))
    return tuple(out)
