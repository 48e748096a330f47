"""OpenAI's Responses API, as of 2026-11, without storage on the server.

The server returns its reasoning encrypted, and receives it back with the next request.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from hermes_nb.core.json_values import dumps
from hermes_nb.core.messages import Image, Json, Memo, Message, Text, ToolCall
from hermes_nb.models.chat.stream import ITEMS
from hermes_nb.models.chat.wire import (
    EMPTY,
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
from hermes_nb.models.profiles import Profile

ENCRYPTED = "reasoning.encrypted_content"
_NO_ITEMS = re.compile(r"(?i)encrypted.?content|reasoning.{0,40}item|item.{0,60}not found")
_NO_SUMMARY = re.compile(r"(?i)reasoning.{0,3}summar")
_UNKNOWN = frozenset({"stop", "stream_options"})
"""chat.completions fields that this API lacks."""


class OpenAIResponses:
    """The wire for OpenAI's Responses API."""

    path = "responses"

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._keeps_reasoning = self._summarises = profile.reasons
        self._items: Memo[list[bytes]] = Memo()
        self._tools = TranslatedTools(_tool)

    def headers(self, key: str) -> Mapping[str, str]:  # noqa: ARG002 - sent by the client as usual
        return {}

    def items(self, messages: Sequence[Message]) -> list[bytes]:
        return [item for message in messages for item in self._cached_items(message)]

    def fields(self, asked: Asked) -> Iterator[tuple[str, object]]:
        messages = asked.messages
        if messages and messages[0].role == "system":
            yield "instructions", messages[0].text
            messages = messages[1:]
        yield "input", array(self.items(messages))
        yield from self._tools.field(asked)
        if asked.tools.get("tool_choice") == "none":
            yield "tool_choice", "none"
        if reasoning := self._reasoning(asked.effort):
            yield "reasoning", reasoning
        yield from ((key, value) for key, value in asked.options.items() if key not in _UNKNOWN)
        yield "store", False
        if self._keeps_reasoning:
            yield "include", [ENCRYPTED]
        yield "stream", True

    def adapt(self, refusal: str) -> bool:
        if self._keeps_reasoning and _NO_ITEMS.search(refusal):
            self._keeps_reasoning = False
            return True
        if self._summarises and _NO_SUMMARY.search(refusal):
            self._summarises = False
            return True
        return False

    def events(self) -> Events:
        return _ResponsesEvents()

    def _reasoning(self, effort: str) -> Mapping[str, str]:
        wanted = {"effort": effort} if effort else {}
        return {**wanted, "summary": "auto"} if self._summarises else wanted

    def _cached_items(self, message: Message) -> list[bytes]:
        echo = self._keeps_reasoning
        return self._items.get(message, lambda: _items(message, self._profile, echo=echo), echo)


def _items(message: Message, profile: Profile, *, echo: bool) -> list[bytes]:
    match message.role:
        case "assistant":
            text = assistant_text(message) or ("" if message.calls else EMPTY["assistant"])
            others = [dumps({"role": "assistant", "content": text})] if text else []
            others += [dumps(_call(call)) for call in message.calls]
            found = message.echo.get(ITEMS)
            items = found if isinstance(found, list) and echo else []
            kept = [(indexed(each), _bare(each)) for each in items if each.get("encrypted_content")]
            return placed(kept, others)
        case "tool":
            output = {"type": "function_call_output", "call_id": _id(message.call_id)}
            return [dumps({**output, "output": _content(message, profile)})]
        case "system":
            return [dumps({"role": "developer", "content": message.text})]
        case "user":
            return [dumps({"role": "user", "content": _content(message, profile)})]


def _content(message: Message, profile: Profile) -> str | list[Mapping[str, Json]]:
    if not message.images:
        return message.text or EMPTY[message.role]
    if profile.vision:
        return [_part(part) for part in message.parts]
    return "\n".join(filter(None, (message.text, unseen(len(message.images)))))


def _part(part: Text | Image) -> Mapping[str, Json]:
    if isinstance(part, Text):
        return {"type": "input_text", "text": part.text}
    url = f"data:{part.mime};base64,{part.data}"
    return {"type": "input_image", "image_url": url, "detail": "auto"}


def _bare(item: Mapping[str, Json]) -> bytes:
    return dumps({key: value for key, value in item.items() if key not in ("index", "status")})


def _call(call: ToolCall) -> Mapping[str, Json]:
    arguments = call.arguments_json()
    named = {"type": "function_call", "call_id": _id(call.id), "name": call.name}
    return {**named, "arguments": arguments}


def _id(call_id: str) -> str:
    return fitting_id(call_id, r".{1,64}", 24)


def _tool(function: Mapping[str, Json]) -> Mapping[str, Json]:
    # Without `strict`, the API would require every parameter of every tool.
    return {"type": "function", **function, "strict": False}


class _ResponsesEvents:
    def __init__(self) -> None:
        self.done = False
        self._written: set[int] = set()

    def chunks(self, event: Json) -> Iterator[object]:
        match event:
            case {"type": str(kind), "response": Mapping() as response}:
                yield from self._response(kind, response)
            case {"object": "response", "output": list(output)}:  # not a stream
                for index, item in enumerate(output):
                    yield from self._unstreamed_item(item, index)
                yield from self._response("response.completed", event)
            case {
                "type": "response.output_item.added",
                "output_index": int(index),
                "item": Mapping() as item,
            }:
                yield from self._item_start(item, index)
            case {
                "type": "response.output_item.done",
                "output_index": int(index),
                "item": Mapping() as item,
            }:
                if index not in self._written or item.get("type") == "reasoning":
                    yield from self._unstreamed_item(item, index, shown=index in self._written)
            case {"type": str(kind), "output_index": int(index), "delta": str(text)}:
                self._written.add(index)
                yield from _grown(kind, text, index)
            case {"type": "response.reasoning_summary_part.added", "summary_index": int(number)}:
                if number:
                    yield _chunk({"reasoning_content": "\n\n"})
            case {"type": "error"} | {"error": Mapping()}:
                yield event
            case _:
                pass

    def _response(self, kind: str, response: Mapping[str, Json]) -> Iterator[object]:
        if response.get("error"):
            yield {"error": response["error"]}
        yield {**_chunk({}), "model": response.get("model"), "usage": response.get("usage")}
        ended = {"response.completed": "stop", "response.incomplete": "length"}
        if kind in ended:
            details = response.get("incomplete_details")
            reason = details.get("reason") if isinstance(details, Mapping) else ""
            self.done = True
            yield _chunk({}, reason or ended[kind])

    def _item_start(self, item: Json, index: int) -> Iterator[object]:
        match item:
            case {"type": "function_call", "call_id": call_id, "name": name}:
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": call_id, "function": function}
                yield _chunk({"tool_calls": [call]})
            case _:
                pass

    def _unstreamed_item(self, item: Json, index: int, *, shown: bool = False) -> Iterator[object]:
        """Yield an item whose parts were not streamed, or reasoning with its encrypted content."""
        match item:
            case {"type": "reasoning"}:
                told = item.get("summary")
                parts = told if isinstance(told, list) and not shown else ()
                text = "\n\n".join(map(_part_text, parts))
                yield _chunk({ITEMS: [{**item, "index": index}], "reasoning_content": text})
            case {"type": "function_call", "call_id": call_id, "name": name, "arguments": given}:
                function = {"name": name, "arguments": given}
                call = {"index": index, "id": call_id, "function": function}
                yield _chunk({"tool_calls": [call]})
            case {"type": "message", "content": list(parts)}:
                for part in parts:
                    if isinstance(part, Mapping):
                        refusal = {"refusal": part["refusal"]} if part.get("refusal") else {}
                        yield _chunk({"content": part.get("text"), **refusal})
            case _:
                pass


def _chunk(delta: Mapping[str, Json], finish: object = None) -> dict[str, Json]:
    return {"choices": [{"delta": delta, "finish_reason": finish}]}


def _part_text(part: object) -> str:
    text = part.get("text") if isinstance(part, Mapping) else ""
    return text if isinstance(text, str) else ""


def _grown(kind: str, text: str, index: int) -> Iterator[object]:
    match kind:
        case "response.output_text.delta":
            yield _chunk({"content": text})
        case "response.refusal.delta":
            yield _chunk({"refusal": text})
        case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
            yield _chunk({"reasoning_content": text})
        case "response.function_call_arguments.delta":
            call = {"index": index, "function": {"arguments": text}}
            yield _chunk({"tool_calls": [call]})
        case _:
            pass
