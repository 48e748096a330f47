"""Anthropic's Messages API, as of 2026-11 (`anthropic-version` 2023-06-01).

Adjacent messages with the same role are sent as one, so all results of a batch of calls are
together. Images remain in their tools' results. Signed reasoning is sent back byte for byte,
because the API rejects a changed block.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

from hermes_nb.core.json_values import dumps
from hermes_nb.core.messages import Image, Json, Memo, Message, Text, ToolCall
from hermes_nb.models.caching import MOST, TTL, mark
from hermes_nb.models.chat.stream import THINKING
from hermes_nb.models.chat.wire import (
    EMPTY,
    KEY_HEADER,
    Asked,
    Events,
    TranslatedTools,
    array,
    assistant_text,
    fitting_id,
    indexed,
    placed,
    unseen,
)
from hermes_nb.models.profiles import ANTHROPIC_VERSION, Profile, effort_fields

LONGEST = 8_192
"""Maximum tokens of an answer if the model's limit is unknown. The API requires a limit."""
_TOO_LONG = re.compile(r"max_tokens: \d{1,9} > (\d{1,9})")
_BAD_BLOCK = re.compile(r"(?i)signature.{0,40}thinking|thinking.{0,80}(?:block|signature)")
_NO_BUDGET = re.compile(r"(?i)thinking\.type|budget_tokens|adaptive")
_NO_MARK = re.compile(r"cache_control")
_Block = tuple[bytes, bool]
"""A serialised content block, and whether it can carry a cache mark."""


class AnthropicMessages:
    """The wire for Anthropic's Messages API."""

    path = "messages"

    def __init__(self, profile: Profile, *, ttl: TTL = "5m") -> None:
        self._profile = profile
        self._mark = b',"cache_control":' + dumps(mark(ttl)) + b"}"
        self._marks = profile.caching == "system_and_3"
        self._sends_thinking = True  # until the API rejects a block
        self._budgets = profile.effort == "thinking"
        self._blocks: Memo[list[_Block]] = Memo()
        self._tools = TranslatedTools(_tool)

    def headers(self, key: str) -> Mapping[str, str]:
        return {"anthropic-version": ANTHROPIC_VERSION, **({KEY_HEADER: key} if key else {})}

    def items(self, messages: Sequence[Message]) -> list[bytes]:
        return [block for message in messages for block, _ in self._cached_blocks(message)]

    def fields(self, asked: Asked) -> Iterator[tuple[str, object]]:
        messages = asked.messages
        system, rest = [], messages
        if messages and messages[0].role == "system":
            rest = messages[1:]
            system = [_text(messages[0].text)] if messages[0].text.strip() else []
        turns = self._turns(rest)
        if self._marks:
            system = [self._marked(block) for block in system]
            for _, blocks in turns[-(MOST - 1) :]:
                self._mark_last(blocks)
        if system:
            yield "system", array([block for block, _ in system])
        yield "messages", array([_turn(role, blocks) for role, blocks in turns])
        yield from self._translated(asked)
        fields = {
            "max_tokens": self._profile.longest or LONGEST,
            **self._effort(rest, asked.effort),
            **asked.options,
        }
        if "stop" in fields:
            fields["stop_sequences"] = fields.pop("stop")
        yield from fields.items()
        yield "stream", True

    def adapt(self, refusal: str) -> bool:
        if found := _TOO_LONG.search(refusal):
            known, longest = self._profile.longest, int(found[1])
            self._profile = replace(self._profile, longest=longest)
            return known is None or longest < known
        if self._sends_thinking and _BAD_BLOCK.search(refusal):
            self._sends_thinking = False
            return True
        if self._budgets and _NO_BUDGET.search(refusal):
            self._budgets = False
            return True
        if self._marks and _NO_MARK.search(refusal):
            self._marks = False
            return True
        return False

    def events(self) -> Events:
        return _MessagesEvents()

    def _turns(self, messages: Sequence[Message]) -> list[tuple[str, list[_Block]]]:
        """Return the content blocks, grouped by role; the first group is always the user's.

        All messages that are not the assistant's count as the user's.
        """
        out: list[tuple[str, list[_Block]]] = []
        if messages and messages[0].role == "assistant":
            out.append(("user", [_text(EMPTY["user"])]))
        for assistant, group in groupby(messages, lambda message: message.role == "assistant"):
            blocks = [block for message in group for block in self._cached_blocks(message)]
            out.append(("assistant" if assistant else "user", blocks))
        return out

    def _cached_blocks(self, message: Message) -> list[_Block]:
        echo = self._sends_thinking
        return self._blocks.get(message, lambda: _blocks(message, self._profile, echo=echo), echo)

    def _mark_last(self, blocks: list[_Block]) -> None:
        for position in range(len(blocks) - 1, -1, -1):
            if blocks[position][1]:
                blocks[position] = self._marked(blocks[position])
                return

    def _marked(self, block: _Block) -> _Block:
        return block[0][:-1] + self._mark, True

    def _translated(self, asked: Asked) -> Iterator[tuple[str, object]]:
        """Yield the strategy's fields in this API's format."""
        yield from self._tools.field(asked)
        if asked.tools.get("tool_choice") == "none":
            yield "tool_choice", {"type": "none"}
        if stop := asked.tools.get("stop"):
            yield "stop_sequences", stop

    def _effort(self, messages: Sequence[Message], effort: str) -> Mapping[str, object]:
        if not effort or self._profile.effort not in ("thinking", "adaptive"):
            return {}
        if not self._budgets:
            return effort_fields(_ADAPTIVE, effort)
        # With a budget, the API rejects a turn whose calls have lost their reasoning, such as
        # earlier calls by another model.
        for message in reversed(messages):
            if message.role == "user":
                break
            if message.calls and not (self._sends_thinking and _signed(message)):
                return {}
        return effort_fields(self._profile, effort)


_ADAPTIVE = Profile(effort="adaptive")


def _turn(role: str, blocks: Sequence[_Block]) -> bytes:
    content = b",".join(block for block, _ in blocks)
    return b'{"role":"%s","content":[%s]}' % (role.encode(), content)


def _blocks(message: Message, profile: Profile, *, echo: bool) -> list[_Block]:
    match message.role:
        case "assistant":
            others = [_text(text)[0]] if (text := assistant_text(message)).strip() else []
            others += map(_call, message.calls)
            signed = [(indexed(block), _bare(block)) for block in _signed(message)] if echo else []
            plain = set(others)
            if not others:
                return [_text(EMPTY["assistant"])]
            return [(block, block in plain) for block in placed(signed, others)]
        case "tool":
            return [(dumps(_result(message, profile)), True)]
        case _:
            parts = _seen(message, profile) or [{"type": "text", "text": EMPTY["user"]}]
            return [(dumps(part), True) for part in parts]


def _text(text: str) -> _Block:
    return dumps({"type": "text", "text": text}), True


def _signed(message: Message) -> list[Mapping[str, Json]]:
    """Return the reasoning blocks that the API accepts: those that arrived complete."""
    blocks = message.echo.get(THINKING)
    found = blocks if isinstance(blocks, list) else []
    return [each for each in found if each.get("signature") or each.get("data")]


def _bare(block: Mapping[str, Json]) -> bytes:
    return dumps({key: value for key, value in block.items() if key != "index"})


def _call(call: ToolCall) -> bytes:
    head = dumps({"type": "tool_use", "id": _id(call.id), "name": call.name})
    return head[:-1] + b',"input":' + call.arguments_json().encode("utf-8", "replace") + b"}"


def _result(message: Message, profile: Profile) -> Mapping[str, Json]:
    parts = _seen(message, profile)
    content = message.text or EMPTY["tool"] if not message.images else parts
    result = {"type": "tool_result", "tool_use_id": _id(message.call_id), "content": content}
    return {**result, "is_error": True} if message.failed and not message.images else result


def _seen(message: Message, profile: Profile) -> list[Mapping[str, Json]]:
    """Return the parts with text, and the images or a count of them."""
    parts: list[Mapping[str, Json]] = []
    for part in message.parts:
        if isinstance(part, Text) and part.text.strip():
            parts.append({"type": "text", "text": part.text})
        elif isinstance(part, Image) and profile.vision:
            source = {"type": "base64", "media_type": part.mime, "data": part.data}
            parts.append({"type": "image", "source": source})
    if message.images and not profile.vision:
        parts.append({"type": "text", "text": unseen(len(message.images))})
    return parts


def _id(call_id: str) -> str:
    return fitting_id(call_id, r"[A-Za-z0-9_-]{1,128}", 24)


def _tool(function: Mapping[str, Json]) -> Mapping[str, Json]:
    return {
        "name": function["name"],
        "description": function["description"],
        "input_schema": {"type": "object", **function["parameters"]},
    }


class _MessagesEvents:
    def __init__(self) -> None:
        self.done = False

    def chunks(self, event: Json) -> Iterator[object]:
        match event:
            case {"type": "message_start", "message": Mapping() as message}:
                yield from self._message(message)
            case {"type": "message", "content": list()}:  # not a stream
                yield from self._message(event)
                self.done = True
            case {
                "type": "content_block_start",
                "index": int(index),
                "content_block": Mapping() as block,
            }:
                yield from _block_start(block, index)
            case {"type": "content_block_delta", "index": int(index), "delta": Mapping() as delta}:
                yield from _grown(delta, index)
            case {"type": "message_delta", "delta": Mapping() as delta}:
                yield {**_chunk({}, delta.get("stop_reason")), "usage": event.get("usage")}
            case {"type": "message_stop"}:
                self.done = True
            case {"type": "ping" | "content_block_stop"}:
                pass
            case _:
                yield event  # an error

    def _message(self, message: Mapping[str, Json]) -> Iterator[object]:
        yield {**_chunk({}), "model": message.get("model"), "usage": message.get("usage")}
        blocks = message.get("content")
        for index, block in enumerate(blocks if isinstance(blocks, list) else ()):
            yield from _block_start(block, index)
        if reason := message.get("stop_reason"):
            yield _chunk({}, reason)


def _chunk(delta: Mapping[str, Json], finish: object = None) -> dict[str, Json]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


def _block_start(block: Json, index: int) -> Iterator[object]:
    """Yield a block's beginning, or a whole block."""
    match block:
        case {"type": "text", "text": str(text)}:
            yield _chunk({"content": text})
        case {"type": "thinking" | "redacted_thinking"}:
            yield _chunk({THINKING: [{**block, "index": index}]})
        case {"type": "tool_use", "id": call_id, "name": name}:
            given = block.get("input") or ""
            function = {"name": name, "arguments": given}
            yield _chunk({"tool_calls": [{"index": index, "id": call_id, "function": function}]})
        case _:
            pass


def _grown(delta: Json, index: int) -> Iterator[object]:
    match delta:
        case {"type": "text_delta", "text": str(text)}:
            yield _chunk({"content": text})
        case {"type": "thinking_delta" | "signature_delta"}:
            block = {key: value for key, value in delta.items() if key != "type"}
            yield _chunk({THINKING: [{"type": "thinking", "index": index, **block}]})
        case {"type": "input_json_delta", "partial_json": str(text)}:
            function = {"arguments": text}
            yield _chunk({"tool_calls": [{"index": index, "function": function}]})
        case _:
            pass
