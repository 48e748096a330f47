"""Replies as the three protocols stream them: chat.completions, Messages and Responses."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.loopback import Reply, chunk, event, failure, stream, text_chunks, tool_chunks

WIRES = ("chat", "messages", "responses")
FINISH = {
    "stop": ("stop", "end_turn", None),
    "tool_calls": ("tool_calls", "tool_use", None),
    "length": ("length", "max_tokens", "max_output_tokens"),
    "filtered": ("content_filter", "refusal", "content_filter"),
}


@dataclass(frozen=True)
class Said:
    """What a model replies, independent of the protocol."""

    text: str = ""
    thought: str = ""
    calls: Sequence[tuple[str, object]] = ()
    finish: str = ""
    size: int = 7
    ids: str = "call_x"

    @property
    def ends(self) -> str:
        return self.finish or ("tool_calls" if self.calls else "stop")

    def pieces(self, text: str) -> list[str]:
        return [text[i : i + self.size] for i in range(0, len(text), self.size)]

    def on(self, wire: str) -> Reply:
        """Return the reply as a provider streams it."""
        return {"chat": self._chat, "messages": self._messages, "responses": self._responses}[
            wire
        ]()

    def _chat(self) -> Reply:
        thoughts = [chunk({"reasoning_content": piece}) for piece in self.pieces(self.thought)]
        texts = text_chunks(self.text, size=self.size)[:-1]
        calls = tool_chunks(*self.calls, size=self.size, ids=self.ids)[:-1]
        return stream([*thoughts, *texts, *calls, chunk(finish=FINISH[self.ends][0])])

    def _messages(self) -> Reply:
        usage = {"input_tokens": 10, "output_tokens": 1}
        begun = {"id": "m", "type": "message", "role": "assistant", "model": "loopback"}
        begun |= {"content": [], "stop_reason": None, "stop_sequence": None, "usage": usage}
        events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
        index = 0
        for kind, text in (("thinking", self.thought), ("text", self.text)):
            if text:
                more = {"signature": ""} if kind == "thinking" else {}
                events += self._block(index, {"type": kind, kind: "", **more}, kind, text)
                index += 1
        for number, (name, arguments) in enumerate(self.calls):
            block = {"type": "tool_use", "id": f"{self.ids}{number}", "name": name, "input": {}}
            events += self._block(index, block, "input_json", json_text(arguments))
            index += 1
        delta = {"stop_reason": FINISH[self.ends][1], "stop_sequence": None}
        events.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 5}})
        return named([*events, {"type": "message_stop"}])

    def _block(self, index: int, block: dict, kind: str, text: str) -> list[dict[str, Any]]:
        field = "partial_json" if kind == "input_json" else kind
        deltas = [{"type": f"{kind}_delta", field: piece} for piece in self.pieces(text)]
        if kind == "thinking":
            deltas.append({"type": "signature_delta", "signature": "c2lnbmVk"})
        return [
            {"type": "content_block_start", "index": index, "content_block": block},
            *({"type": "content_block_delta", "index": index, "delta": each} for each in deltas),
            {"type": "content_block_stop", "index": index},
        ]

    def _responses(self) -> Reply:
        events: list[dict[str, Any]] = [response_event("created", status="in_progress")]
        output: list[dict[str, Any]] = []
        for item, kind, text in self._items():
            index = len(output)
            shell = {**item, **({"arguments": ""} if "arguments" in item else {})}
            shell |= {"summary": []} if "summary" in item else {}
            shell |= {"content": []} if "content" in item else {}
            at = {"output_index": index, "item_id": item["id"]}
            events.append(
                {"type": "response.output_item.added", "output_index": index, "item": shell}
            )
            part = {"summary_index": 0} if "summary" in kind else {}
            part |= {"content_index": 0, "logprobs": []} if "output_text" in kind else {}
            events += [
                {"type": f"response.{kind}.delta", "delta": piece, **at, **part}
                for piece in self.pieces(text)
            ]
            done = {"type": "response.output_item.done", "output_index": index, "item": item}
            events.append(done)
            output.append(item)
        reason = FINISH[self.ends][2]
        events.append(
            response_event(
                "incomplete" if reason else "completed",
                status="incomplete" if reason else "completed",
                output=output,
                incomplete_details={"reason": reason} if reason else None,
                usage=RESPONSES_USAGE,
            )
        )
        return named([{**each, "sequence_number": number} for number, each in enumerate(events)])

    def _items(self) -> list[tuple[dict[str, Any], str, str]]:
        out: list[tuple[dict[str, Any], str, str]] = []
        if self.thought:
            summary = [{"type": "summary_text", "text": self.thought}]
            item = {"type": "reasoning", "id": "rs_1", "summary": summary}
            item |= {"encrypted_content": "ZW5j"}
            out.append((item, "reasoning_summary_text", self.thought))
        if self.text:
            part = {"type": "output_text", "text": self.text, "annotations": []}
            item = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
            out.append((item | {"content": [part]}, "output_text", self.text))
        for number, (name, arguments) in enumerate(self.calls):
            text = json_text(arguments)
            item = {"type": "function_call", "id": f"fc_{number}", "status": "completed"}
            item |= {"call_id": f"{self.ids}{number}", "name": name, "arguments": text}
            out.append((item, "function_call_arguments", text))
        return out


RESPONSES_USAGE = {
    "input_tokens": 10,
    "output_tokens": 5,
    "total_tokens": 15,
    "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
    "output_tokens_details": {"reasoning_tokens": 0},
}


def response_event(kind: str, **more: Any) -> dict[str, Any]:
    """Return an event with the whole response."""
    base = {"id": "resp_1", "object": "response", "created_at": 1, "model": "loopback"}
    base |= {"output": [], "parallel_tool_calls": True, "tool_choice": "auto", "tools": []}
    return {"type": f"response.{kind}", "response": base | more}


def named(events: Sequence[dict[str, Any]]) -> Reply:
    """Return a stream whose events carry their type as a name, too."""
    return Reply([b"event: " + each["type"].encode() + b"\n" + event(each) for each in events])


def refused(
    wire: str, status: int, text: str, kind: str = "invalid_request_error", **how: str
) -> Reply:
    """Return an error in the format of a protocol."""
    error = {"type": kind, "message": text}
    if wire == "messages":
        return failure(status, {"type": "error", "error": error}, **how)
    return failure(status, {"error": error | {"code": None, "param": None}}, **how)


def json_text(arguments: object) -> str:
    """Return a call's arguments as text; text stays as it is."""
    return arguments if isinstance(arguments, str) else json.dumps(arguments)
