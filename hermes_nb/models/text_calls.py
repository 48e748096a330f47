"""Tool-calling strategies: the `tools` parameter, or calls in plain text for models without it.

A strategy converts the conversation for the model, adds request fields, and provides a reader for
replies. The agent loop is independent of it. With `TextCalls`, tools are in the system message,
calls in the answer's text, and results in a user message. Earlier messages never change: the tools
are described once per toolset, and an answer is sent back as the model wrote it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Protocol

from hermes_nb.core.messages import Memo, Message, Part, Text, ToolCall
from hermes_nb.core.protocols import Request
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.models.call_reader import CallReader, PlainReader, ReplyReader

RAW = "raw_text"
"""Key in `Message.echo` for the original text of a reply with calls in its text."""


class Strategy(Protocol):
    """A way of calling tools."""

    def messages(self, request: Request) -> Sequence[Message]:
        """Return the conversation in the form in which to send it.

        A message at the same position always yields the same object, because the adapter serialises
        each object once. A longer conversation only extends the result for a shorter one.
        """
        ...

    def fields(self, request: Request) -> Mapping[str, object]:
        """Return additional top-level request fields: tools, response format, sampling."""
        ...

    def reader(self) -> ReplyReader:
        """Return a reader for one reply."""
        ...


class Structured:
    """Uses the API: the `tools` parameter, `tool_calls` in replies, `role: tool` messages."""

    def __init__(self) -> None:
        self._schemas: tuple[Toolset, list[dict[str, object]]] | None = None

    def messages(self, request: Request) -> Sequence[Message]:
        return request.messages

    def fields(self, request: Request) -> Mapping[str, object]:
        if not len(request.tools):
            return {}
        if self._schemas is None or self._schemas[0] is not request.tools:
            self._schemas = request.tools, [function_schema(tool) for tool in request.tools]
        none = {"tool_choice": "none"} if request.tool_choice == "none" else {}
        return {"tools": self._schemas[1], **none}

    def reader(self) -> ReplyReader:
        return PlainReader()


def function_schema(tool: Tool) -> dict[str, object]:
    """Return a tool in the chat-completions format."""
    schema = dict(tool.parameters)
    function = {"name": tool.name, "description": tool.description, "parameters": schema}
    return {"type": "function", "function": function}


RESULT = "[Tool Result: "
"""Start of a result, and the stop sequence that keeps the model from inventing one."""

_INTRODUCTION = """\
# Tools
You can act by calling tools. Write a call as one block of exactly this form:

<tool_call>{"name": "tool_name", "arguments": {"parameter": "value"}}</tool_call>

The block holds valid JSON on one line or several. Several blocks may follow one another; end your \
message after the last one. The results come in the next message, each behind \
[Tool Result: tool_name]; never write a result yourself. When you need no tool, answer without a \
block. The tools, with `?` behind optional parameters:
"""


class TextCalls:
    """Calls in the answer's text, in any of the known notations; results in a user message.

    A batch's results form one user message. A user message directly after them is merged into it,
    since many chat templates require user and assistant to alternate. A request therefore never
    ends between the two.
    """

    def __init__(self) -> None:
        self._described: tuple[Toolset, str] | None = None
        self._names: frozenset[str] = frozenset()
        self._systems: Memo[Message] = Memo()
        self._answers: Memo[Message] = Memo()
        self._results: Memo[Message] = Memo()
        self._alone: dict[str, Message] = {}

    def messages(self, request: Request) -> Sequence[Message]:
        tools = request.tools
        self._names = frozenset(tool.name for tool in tools)
        if self._described is None or self._described[0] is not tools:
            lines = "\n".join(map(describe, tools))
            self._described = tools, f"{_INTRODUCTION}\n{lines}" if lines else ""
        return list(self._told(request.messages, self._described[1]))

    def fields(self, request: Request) -> Mapping[str, object]:
        """Return a stop sequence that ends the answer where the model would invent a result."""
        return {"stop": [RESULT]} if len(request.tools) else {}

    def reader(self) -> ReplyReader:
        return CallReader(self._names) if self._names else PlainReader()

    def _told(self, messages: Sequence[Message], tools: str) -> Iterator[Message]:
        if tools and not (messages and messages[0].role == "system"):
            yield self._alone.setdefault(tools, Message.system(tools))
        batch: list[Message] = []
        for position, message in enumerate(messages):
            if message.role == "tool" or (batch and message.role == "user"):
                batch.append(message)
                continue
            if batch:
                yield self._merged(batch)
                batch = []
            if message.role == "system" and position == 0 and tools:
                told = partial(Message.system, f"{message.text}\n\n{tools}")
                yield self._systems.get(message, told, tools)
            elif message.role == "assistant" and message.calls:
                yield self._answers.get(message, partial(_written, message))
            else:
                yield message
        if batch:
            yield self._merged(batch)

    def _merged(self, batch: Sequence[Message]) -> Message:
        return self._results.get(batch[-1], partial(_results, batch), tuple(map(id, batch)))


def _written(message: Message) -> Message:
    raw = message.echo.get(RAW)
    if isinstance(raw, str) and raw and _matches_message(raw, message):
        text = raw
    else:
        blocks = [render(call) for call in message.calls]
        text = "\n".join([message.text, *blocks] if message.text else blocks)
    return Message.assistant(text, reasoning=message.reasoning, interrupted=message.interrupted)


def _matches_message(raw: str, message: Message) -> bool:
    """Return whether `raw` still matches the message: compression may have shortened its calls."""
    reader = CallReader(frozenset(call.name for call in message.calls))
    reader.feed(raw)
    _, reading = reader.finish()
    read = [(call.name, dict(call.arguments)) for call in reading.calls]
    return read == [(call.name, dict(call.arguments)) for call in message.calls]


def render(call: ToolCall) -> str:
    """Return a call in the notation that the system message requests."""
    name = call.name.replace("\\", "\\\\").replace('"', '\\"')
    return f'<tool_call>{{"name": "{name}", "arguments": {call.arguments_json()}}}</tool_call>'


def describe(tool: Tool) -> str:
    """Return a tool as a signature, with descriptions of the tool and its parameters."""
    schema = tool.parameters
    required = schema.get("required", ())
    properties = schema.get("properties", {})
    signature = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type(value)}"
        for name, value in properties.items()
    )
    lines = [f"- {tool.name}({signature}): {' '.join(tool.description.split())}"]
    for name, value in properties.items():
        if isinstance(value, Mapping) and value.get("description"):
            lines.append(f"    {name}: {' '.join(str(value['description']).split())}")
    return "\n".join(lines)


def _type(schema: object) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    if isinstance(schema.get("enum"), list):
        return "|".join(f'"{value}"' for value in schema["enum"])
    options = schema.get("anyOf") or schema.get("oneOf")
    if isinstance(options, list):
        return "|".join(map(_type, options))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return "|".join(map(str, kind))
    if kind == "array":
        return f"[{_type(schema.get('items'))}]"
    return str(kind)


def _results(batch: Sequence[Message]) -> Message:
    """Return the user message with a batch's results and any user text after them."""
    parts: list[Part] = []
    texts: list[str] = []
    for message in batch:
        said = message.text
        if message.role == "tool":
            said = f"{RESULT}{message.name}] {said or '(no output)'}"
        if said:
            texts.append(said)
        if message.images:
            parts.extend((Text("\n\n".join(texts)), *message.images) if texts else message.images)
            texts = []
    if texts:
        parts.append(Text("\n\n".join(texts)))
    return Message(role="user", parts=tuple(parts))
