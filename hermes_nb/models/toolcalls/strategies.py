"""How tools are offered to a model, and how its calls are read back.

A strategy is three small answers: the conversation as this model reads it, the extra fields of the
request, and a reader for what comes back. The loop never sees which one is at work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from hermes_nb.core.messages import Message, ToolCall
from hermes_nb.core.protocols import Request
from hermes_nb.core.tools import Tool, Toolset

RAW = "raw_text"
"""The key in `Message.echo` under which a reply with calls in its text is kept as written."""


@dataclass(frozen=True, slots=True)
class Reading:
    """What a whole reply said: the text to keep around the calls, and the calls in order.

    `raw` is the reply as the model wrote it, where the calls stood in its text.
    """

    text: str
    calls: tuple[ToolCall, ...] = ()
    raw: str = ""


class Reader(Protocol):
    """Reads one reply as it streams; a fresh one is made for every reply."""

    def feed(self, text: str) -> str:
        """Take more content and return what of it may be shown now: never half a call."""
        ...

    def finish(self) -> tuple[str, Reading]:
        """Return what was held back but turned out to be text, and the reading of the whole.

        The shown pieces and this last one, joined, equal the reading's text but for white space at
        the seams where a call stood.
        """
        ...


class Strategy(Protocol):
    """One way of tool calling."""

    def messages(self, request: Request) -> Sequence[Message]:
        """Return the conversation as the wire carries it.

        Maps a message to the same object every time it sees it in the same place (the adapter
        serialises each object once), and only ever extends what it returned for a shorter
        conversation.
        """
        ...

    def fields(self, request: Request) -> Mapping[str, Any]:
        """Return further top-level fields of the request: tools, response format, sampling."""
        ...

    def reader(self) -> Reader:
        """Return a reader for one reply."""
        ...


class PlainReader:
    """Passes content through: the calls come in fields of their own."""

    def __init__(self) -> None:
        self._pieces: list[str] = []

    def feed(self, text: str) -> str:
        """Keep and show everything."""
        self._pieces.append(text)
        return text

    def finish(self) -> tuple[str, Reading]:
        """Return the content as it came."""
        return "", Reading("".join(self._pieces))


class Structured:
    """The `tools` parameter, `tool_calls` in the reply, results as `role: tool` messages."""

    def __init__(self) -> None:
        self._schemas: tuple[Toolset, list[dict[str, Any]]] | None = None

    def messages(self, request: Request) -> Sequence[Message]:
        """Return the conversation as it is."""
        return request.messages

    def fields(self, request: Request) -> Mapping[str, Any]:
        """Return the schemas, made once a toolset."""
        if not len(request.tools):
            return {}
        if self._schemas is None or self._schemas[0] is not request.tools:
            self._schemas = request.tools, [function_schema(tool) for tool in request.tools]
        out: dict[str, Any] = {"tools": self._schemas[1]}
        if request.tool_choice == "none":
            out["tool_choice"] = "none"
        return out

    def reader(self) -> Reader:
        """Return a reader that shows everything."""
        return PlainReader()


def function_schema(tool: Tool) -> dict[str, Any]:
    """Return a tool in the chat-completions form."""
    return {
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": dict(tool.parameters),
        },
    }
