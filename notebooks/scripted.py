"""A server on this machine that speaks as a provider would, and says what a script tells it.

The example notebooks are recorded with it: Hermes talks to it as to any model, tools run for real.
A script says what is *said*; it has no figures of its own, it reads them from what the tools
returned (`Seen`), so that a recording cannot claim what the data do not say.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from hermes_nb.core.messages import ToolCall
from hermes_nb.models.cassette import common_prefix
from hermes_nb.models.scripted import call

__all__ = ["Player", "Price", "Seen", "Step", "call"]

CHARACTERS_PER_TOKEN = 4
"""For the usage that is reported, of what really went over the wire."""
IMAGE = "i" * 1_000
"""Counted instead of the data of an image: a small one costs about 250 tokens."""
_IMAGE_DATA = re.compile(r"data:image/[^\"\\]+")


@dataclass(frozen=True, slots=True)
class Seen:
    """What a model sees of one request."""

    body: dict[str, Any]

    @property
    def prompt(self) -> str:
        """The user's last message."""
        return next(self._texts("user"), "")

    @property
    def result(self) -> str:
        """What the last tool call returned."""
        return next(self._texts("tool"), "")

    @property
    def images(self) -> int:
        """The number of images in the request."""
        contents = (message["content"] for message in self.body["messages"])
        parts = (part for content in contents if isinstance(content, list) for part in content)
        return sum(part["type"] == "image_url" for part in parts)

    def found(self, pattern: str, text: str = "") -> str:
        """Return the first group of a pattern in the last result, or in `text`.

        Raises ValueError where it is not there: the script then does not fit the data any more.
        """
        where = text or self.result
        match = re.search(pattern, where, re.MULTILINE)
        if match is None:
            message = f"the script looks for {pattern!r}, which is not in {where[:800]!r}"
            raise ValueError(message)
        return match[1]

    def number(self, pattern: str, digits: int = 1) -> str:
        """Return a number that was found, rounded as a person would say it."""
        return f"{float(self.found(pattern)):,.{digits}f}"

    def _texts(self, role: str) -> Iterator[str]:
        for message in reversed(self.body["messages"]):
            if message["role"] == role:
                content = message["content"]
                if isinstance(content, list):
                    content = "\n".join(part.get("text", "") for part in content)
                yield content or ""


Said = str | ToolCall | list[str | ToolCall]
Step = Said | Callable[[Seen], Said]
"""What one request is answered with: a text, a call, several of both, or a function that says."""


@dataclass(frozen=True, slots=True)
class Price:
    """An invented price, in US dollars per million tokens."""

    input: float
    cached: float
    output: float

    def of(self, usage: dict[str, Any]) -> float:
        """Return the price of a request."""
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        new = usage["prompt_tokens"] - cached
        output = usage["completion_tokens"] * self.output
        return (new * self.input + cached * self.cached + output) / 1_000_000


class Player:
    """Serves a script on 127.0.0.1, as a context manager; `url` is its address.

    The n-th request gets the n-th step. `problems` has what went wrong; a request beyond the last
    step is one, a step that nobody asked for another. With `price`, each reply says what it cost.
    """

    def __init__(self, steps: Sequence[Step], *, price: Price | None = None) -> None:
        self.problems: list[str] = []
        self._steps = list(steps)
        self._price = price
        self._asked: list[str] = []
        self._lock = threading.Lock()
        player = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                status, kind, answer = player.answer(json.loads(body))
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    @property
    def url(self) -> str:
        """The base URL for `HERMES_NB_BASE_URL`."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Player:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if left := len(self._steps) - len(self._asked):
            self.problems.append(f"{left} of {len(self._steps)} steps were not asked for")

    def answer(self, body: dict[str, Any]) -> tuple[int, str, bytes]:
        """Return status, content type and body of the reply to a request."""
        with self._lock:
            at = len(self._asked)
            sent = json.dumps([body.get("tools"), body["messages"]], ensure_ascii=False)
            sent = _IMAGE_DATA.sub(IMAGE, sent)
            before = self._asked
            self._asked = [*before, sent]
        try:
            if at >= len(self._steps):
                message = f"request {at + 1} is one too many: {Seen(body).prompt[:200]!r}"
                raise ValueError(message)
            step = self._steps[at]
            said = step(Seen(body)) if callable(step) else step
        except ValueError as error:
            self.problems.append(str(error))
            problem = {"error": {"message": str(error), "type": "script"}}
            return 400, "application/json", json.dumps(problem).encode()
        cached = max((common_prefix(sent, each) for each in before), default=0)
        return 200, "text/event-stream", _stream(said, at, len(sent), cached, self._price)


def _stream(said: Said, at: int, sent: int, cached: int, price: Price | None) -> bytes:
    """Return a reply as server-sent events, text word by word."""
    items = said if isinstance(said, list) else [said]
    text = "".join(item for item in items if isinstance(item, str))
    calls = [item for item in items if isinstance(item, ToolCall)]
    deltas: list[dict[str, Any]] = [{"content": word} for word in re.findall(r"\S*\s*", text)[:-1]]
    size = len(text)
    for number, each in enumerate(calls):
        arguments = json.dumps(each.arguments, ensure_ascii=False)
        size += len(each.name) + len(arguments)
        function = {"name": each.name, "arguments": arguments}
        name = f"call_{at + 1}_{number + 1}"
        one = {"index": number, "id": name, "type": "function", "function": function}
        deltas.append({"tool_calls": [one]})
    usage: dict[str, Any] = {
        "prompt_tokens": sent // CHARACTERS_PER_TOKEN,
        "completion_tokens": max(1, size // CHARACTERS_PER_TOKEN),
        "prompt_tokens_details": {"cached_tokens": cached // CHARACTERS_PER_TOKEN},
    }
    usage["total_tokens"] = usage["prompt_tokens"] + usage["completion_tokens"]
    if price is not None:
        usage["cost"] = price.of(usage)
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "scripted"}
    chunks: list[dict[str, Any]] = [
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]} for delta in deltas
    ]
    finish = "tool_calls" if calls else "stop"
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    chunks.append({"choices": [], "usage": usage})
    events = [json.dumps(base | chunk, ensure_ascii=False) for chunk in chunks]
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()
