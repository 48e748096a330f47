"""A provider for benchmarks, without latency unless it is given, run as a process of its own.

`python bench/provider.py CALLS [MS]` prints its port, then answers every request over a keep-alive
connection with a streamed tool call, and each request behind CALLS tool results with text. The call
is of `add`, or of `read_file` where that is among the tools.
"""

from __future__ import annotations

import json
import socketserver
import sys
import time


def sse(*documents: dict) -> bytes:
    lines = [b"data: " + json.dumps(document).encode() + b"\n\n" for document in documents]
    return b"".join([*lines, b"data: [DONE]\n\n"])


def chunk(delta: dict, finish: str | None = None) -> dict:
    return {
        "id": "c",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "bench",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def reply(number: int, calls: int, *, reads: bool = False) -> bytes:
    if number >= calls:
        text = [
            chunk({"role": "assistant", "content": "All "}),
            chunk({"content": "done."}, "stop"),
        ]
        return sse(*text, usage())
    call = {"index": 0, "id": f"call_{number}", "type": "function"}
    name = {**call, "function": {"name": "read_file" if reads else "add", "arguments": ""}}
    given = {"path": "data.csv"} if reads else {"a": number, "b": 1}
    arguments = {"index": 0, "function": {"arguments": json.dumps(given)}}
    return sse(
        chunk({"role": "assistant", "content": None, "tool_calls": [name]}),
        chunk({"tool_calls": [arguments]}),
        chunk({}, "tool_calls"),
        usage(),
    )


def usage() -> dict:
    counted = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}
    return {**chunk({}), "choices": [], "usage": counted}


class Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        while line := self.rfile.readline():
            asked = line.startswith(b"POST")  # else for the models, which takes no time
            length = 0
            while line := self.rfile.readline().strip():
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    length = int(value)
            body = self.rfile.read(length)
            results = body.count(b'"role":"tool"') + body.count(b'"role": "tool"')
            payload = reply(results, CALLS, reads=b'"read_file"' in body)
            time.sleep(LATENCY if asked else 0)
            self.wfile.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                b"Content-Length: %d\r\n\r\n" % len(payload) + payload
            )


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64


if __name__ == "__main__":
    CALLS = int(sys.argv[1])
    LATENCY = float(sys.argv[2]) / 1e3 if sys.argv[2:] else 0.0
    with Server(("127.0.0.1", 0), Handler) as server:
        print(server.server_address[1], flush=True)
        server.serve_forever()
