"""A real provider on 127.0.0.1 that plays scripted replies and records what it was sent.

```python
with Loopback(stream(text_chunks("hello"))) as server:
    model = OpenAIChat("m", base_url=server.url)
```

Each request is answered with the next reply; the last one is repeated. HTTP/1.1 with keep-alive and
chunked transfer encoding, one thread a connection. A reply is a list of steps: bytes to send, or a
function of the connection (`stall`, `disconnect`).

A GET asks which models are served, is answered with `listing` each time (else with 404) and is
recorded apart, in `asked`.
"""

from __future__ import annotations

import json
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Step = bytes | Callable[["Exchange"], None]


@dataclass
class Reply:
    """What one request is answered with. `length` sends a Content-Length instead of chunks."""

    steps: Sequence[Step] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    length: bool = False


@dataclass
class Exchange:
    """One recorded request; `left` is set when the client went away before the reply's end."""

    path: str
    headers: dict[str, str]
    body: bytes
    connection: int
    server: Loopback
    socket: socket.socket
    left: threading.Event = field(default_factory=threading.Event)
    finished: threading.Event = field(default_factory=threading.Event)

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    def gone(self) -> bool:
        """Say whether the client closed the connection."""
        readable, _, _ = select.select([self.socket], [], [], 0)
        try:
            return bool(readable) and self.socket.recv(1, socket.MSG_PEEK) == b""
        except OSError:
            return True


class DisconnectError(Exception):
    """The reply breaks off here."""


def disconnect(exchange: Exchange) -> None:
    """Close the connection in the middle of the reply."""
    raise DisconnectError


def stall(exchange: Exchange) -> None:
    """Send nothing until the client leaves or the server ends."""
    while not exchange.server.ending.wait(0.005):
        if exchange.gone():
            exchange.left.set()
            raise DisconnectError


def pause(seconds: float) -> Callable[[Exchange], None]:
    """Return a step that waits."""
    return lambda _: time.sleep(seconds)


class Loopback:
    """The server, as a context manager."""

    def __init__(self, *replies: Reply, listing: Reply | None = None) -> None:
        self.replies = list(replies)
        self.listing = listing or Reply(status=404, length=True)
        self.exchanges: list[Exchange] = []
        self.asked: list[Exchange] = []
        self.ending = threading.Event()
        self.connections = 0
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )

    @property
    def url(self) -> str:
        """The base URL, with /v1."""
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    @property
    def bodies(self) -> list[Any]:
        """The requests' bodies as JSON."""
        return [exchange.json for exchange in self.exchanges]

    def __enter__(self) -> Loopback:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ending.set()
        self._server.shutdown()
        self._server.close_all()
        self._server.server_close()
        self._thread.join()

    def listed(self, exchange: Exchange) -> Reply:
        """Record a question for the models and return the answer."""
        self.asked.append(exchange)
        return self.listing

    def take(self, exchange: Exchange) -> Reply:
        """Record a request and return its reply."""
        with self._lock:
            self.exchanges.append(exchange)
            return self.replies[min(len(self.exchanges), len(self.replies)) - 1]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    owner: Loopback

    def __init__(self, *args: Any) -> None:
        self._open: set[socket.socket] = set()
        super().__init__(*args)

    def get_request(self) -> tuple[socket.socket, Any]:
        request, address = super().get_request()
        self._open.add(request)
        self.owner.connections += 1
        return request, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def close_all(self) -> None:
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: clients that leave are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def log_message(self, *_: object) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        self._answer(b"", self.server.owner.listed)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self._answer(body, self.server.owner.take)

    def _answer(self, body: bytes, take: Callable[[Exchange], Reply]) -> None:
        owner = self.server.owner
        headers = {name.lower(): value for name, value in self.headers.items()}
        exchange = Exchange(self.path, headers, body, id(self.connection), owner, self.connection)
        reply = take(exchange)
        try:
            self._send(reply, exchange)
        except (OSError, DisconnectError) as error:
            if isinstance(error, OSError):
                exchange.left.set()
            self.close_connection = True
        finally:
            exchange.finished.set()

    def _send(self, reply: Reply, exchange: Exchange) -> None:
        self.send_response(reply.status)
        headers = {"Content-Type": "text/event-stream"} | reply.headers
        for name, value in headers.items():
            self.send_header(name, value)
        if reply.length:
            body = b"".join(step for step in reply.steps if isinstance(step, bytes))
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)
            return
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for step in reply.steps:
            if not isinstance(step, bytes):
                step(exchange)
            elif step:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(step), step))
                self.wfile.flush()
        self.wfile.write(b"0\r\n\r\n")


def event(value: object) -> bytes:
    """Return one server-sent event."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def chunk(delta: dict[str, Any] | None = None, *, finish: str | None = None, **more: Any) -> dict:
    """Return one chat.completion.chunk."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "loopback"}
    return base | {"choices": [choice]} | more


def usage_chunk(prompt: int = 10, output: int = 5, **more: Any) -> dict:
    """Return the extra chunk at the end that carries usage."""
    total = {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output}
    return chunk() | {"choices": [], "usage": total | more}


def text_chunks(text: str, *, size: int = 4, finish: str = "stop") -> list[dict]:
    """Return the chunks of a text answer, `size` characters each."""
    pieces = [text[i : i + size] for i in range(0, len(text), size)]
    opening = [chunk({"role": "assistant", "content": ""})]
    return [*opening, *(chunk({"content": piece}) for piece in pieces), chunk(finish=finish)]


def tool_chunks(*calls: tuple[str, object], size: int = 5, ids: str = "call_x") -> list[dict]:
    """Return the chunks of structured calls, each `(name, arguments)`, as OpenAI sends them."""
    out = []
    for index, (name, arguments) in enumerate(calls):
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        start = {"index": index, "id": f"{ids}{index}", "type": "function"}
        out.append(chunk({"tool_calls": [start | {"function": {"name": name, "arguments": ""}}]}))
        for i in range(0, len(text), size):
            piece = {"index": index, "function": {"arguments": text[i : i + size]}}
            out.append(chunk({"tool_calls": [piece]}))
    return [*out, chunk(finish="tool_calls")]


def stream(chunks: Iterable[object], *, done: bool = True, usage: bool = True) -> Reply:
    """Return a streamed reply of these chunks."""
    values = [*chunks, *([usage_chunk()] if usage else [])]
    return Reply([*map(event, values), *([DONE] if done else [])])


def failure(status: int, body: object = None, **headers: str) -> Reply:
    """Return an error; `body` is JSON unless it is bytes."""
    data = body if isinstance(body, bytes) else json.dumps(body or {"error": {}}).encode()
    kind = {"Content-Type": "text/html" if data[:1] == b"<" else "application/json"}
    more = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply([data], status=status, headers=kind | more, length=True)


def document(body: object) -> Reply:
    """Return a reply with status 200 that is no stream."""
    return Reply(failure(200, body).steps, headers=failure(200, body).headers, length=True)


def calls(*made: tuple[str, object], **how: Any) -> Reply:
    """Return a reply that calls tools."""
    return stream(tool_chunks(*made, **how))


def says(text: str) -> Reply:
    """Return a reply of text alone."""
    return stream(text_chunks(text))


def free_port() -> int:
    """Return a port on which nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]
