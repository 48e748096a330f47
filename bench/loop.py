"""CPU of a turn of tool iterations, beside a bare `http.client` loop and a bare SDK loop.

Run with `make bench-loop`. All three speak to the same zero-latency provider in another process and
do the same work; only this process's CPU time counts. Ours is all in: the SDK's client, streaming,
argument validation, events, one durable SQLite row a message. Limits: less than 10 ms an iteration,
the 400th at most 2.5 times the 5th, the whole turn at most 12 times the bare loop at 50 iterations
and 4 times at 400, and below the SDK loop at both. In a kernel, where a turn is shown and undone, a
call of a turn of 1,250 costs at most 6.5 ms, one of the last tenth at most 1.15 times one of the
first, and the cell is updated at most ten times a second.
"""

from __future__ import annotations

import asyncio
import http.client
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from hermes_nb.agent.session.session import Identity, Session, SessionSpec
from hermes_nb.core.events import UsageReported
from hermes_nb.core.tools import Toolset
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.models.chat.retries import Retrying
from hermes_nb.models.text_calls import function_schema
from hermes_nb.tools.schema import tool
from hermes_nb.tools.wrappers import limited

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kernels import kernel as running_kernel
from tests.loopback import Loopback, Reply, stream, text_chunks, tool_chunks

from figures import figure

HERE = Path(__file__).parent
ROUNDS = 5
WINDOW = 5
"""Iterations on each side that an iteration's CPU time is the median of."""
KERNEL_CALLS, IMPORTING = 1_250, 10
"""Calls of a turn in a kernel, and the first of them, whose CPU does not count."""


@tool(toolset="bench")
def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: The first one.
        b: The second one.
    """
    return str(a + b)


TOOLS = [function_schema(add)]
SYSTEM = "You are a benchmark. " * 40


def bare_http(port: int) -> list[float]:
    """Return the CPU time at the end of each iteration of a loop without any library."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "go"}]
    marks = [time.process_time()]
    while True:
        body = json.dumps({"model": "bench", "messages": messages, "tools": TOOLS, "stream": True})
        connection.request(
            "POST", "/v1/chat/completions", body, {"Content-Type": "application/json"}
        )
        call = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        for line in connection.getresponse().read().splitlines():
            if not line.startswith(b"data: {"):
                continue
            for choice in json.loads(line[6:])["choices"]:
                for delta in choice["delta"].get("tool_calls") or ():
                    call["id"] = delta.get("id") or call["id"]
                    for key, value in delta["function"].items():
                        call["function"][key] += value or ""
        marks.append(time.process_time())
        if not call["id"]:
            return marks
        arguments = json.loads(call["function"]["arguments"])
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        result = str(arguments["a"] + arguments["b"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def bare_sdk(port: int) -> list[float]:
    """Return the same for the SDK used as its documentation shows."""
    import openai

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="x")
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "go"}]
    marks = [time.process_time()]
    while True:
        stream = client.chat.completions.create(
            model="bench", messages=messages, tools=TOOLS, stream=True
        )
        call = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        for chunk in stream:
            for choice in chunk.choices:
                for delta in choice.delta.tool_calls or ():
                    call["id"] = delta.id or call["id"]
                    call["function"]["name"] += delta.function.name or ""
                    call["function"]["arguments"] += delta.function.arguments or ""
        marks.append(time.process_time())
        if not call["id"]:
            client.close()
            return marks
        arguments = json.loads(call["function"]["arguments"])
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        result = str(arguments["a"] + arguments["b"])
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})


def ours(port: int) -> list[float]:
    """Return the same for a session of ours."""

    async def turn() -> list[float]:
        with tempfile.TemporaryDirectory() as folder:
            store = SqliteStore(Path(folder) / "n.db")
            model = Retrying(OpenAIChat("bench", base_url=f"http://127.0.0.1:{port}/v1"))
            session = Session.start(
                store=store,
                spec=SessionSpec(model=model, tools=limited(Toolset([add]))),
                identity=Identity(),
                warn=print,
            )
            marks = [time.process_time()]
            async for event in session.turn("go", max_requests=10_000):
                if isinstance(event, UsageReported):
                    marks.append(time.process_time())
            await model.aclose()
            store.close()
            return marks

    return asyncio.run(turn())


def measure(run, calls: int) -> list[float]:
    """Return the CPU seconds of each iteration of one turn."""
    provider = subprocess.Popen(
        [sys.executable, str(HERE / "provider.py"), str(calls)], stdout=subprocess.PIPE, text=True
    )
    try:
        marks = run(int(provider.stdout.readline()))
    finally:
        provider.kill()
        provider.wait()
        provider.stdout.close()
    assert len(marks) == calls + 2, len(marks)
    return [b - a for a, b in itertools.pairwise(marks)]


def around(iterations: list[float], index: int) -> float:
    """Return the median CPU of the iterations around one."""
    low = max(index - WINDOW, 1)
    return statistics.median(iterations[low : index + WINDOW])


def in_a_kernel(calls: int) -> tuple[list[float], float]:
    """Return a kernel's CPU time at each request of a turn of so many calls, and its updates/s."""
    marks: list[float] = []

    def reply(number: int) -> Reply:
        call = "read_file", {"path": "a.txt", "offset": number % 20 + 1}
        steps = stream(tool_chunks(call, ids=f"call_{number}_")).steps
        return Reply([lambda _: marks.append(sum(process.cpu_times()[:2])), *steps])

    replies = [*map(reply, range(calls)), stream(text_chunks("Done."))]
    with tempfile.TemporaryDirectory() as home, Loopback(*replies) as server:
        Path(home, "a.txt").write_text("line\n" * 20)
        Path(home, "config.yaml").write_text(f"agent:\n  max_turns: {calls + 1}\n")
        variables = {"HERMES_HOME": home, "HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": "m"}
        path = {"PYTHONPATH": str(HERE.parent)}
        with running_kernel(os.environ | variables | path, cwd=home) as kernel:
            process = psutil.Process(kernel.manager.provisioner.process.pid)
            kernel.run("%load_ext hermes_nb")
            began = time.monotonic()
            result = kernel.run("%%hermes\ngo", allow_stdin=True, timeout=240)
            return marks[IMPORTING:], result.messages / (time.monotonic() - began)


def main() -> None:
    runs = {"bare http.client": bare_http, "bare SDK": bare_sdk, "hermes_nb": ours}
    for run in runs.values():  # imports, TLS contexts and caches are paid here
        measure(run, 5)
    totals: dict[tuple[str, int], float] = {}
    for calls in (50, 400):
        for name, run in runs.items():
            rounds = [measure(run, calls) for _ in range(ROUNDS if calls == 50 else 3)]
            totals[name, calls] = statistics.median(sum(each) for each in rounds)
            each_ms = totals[name, calls] / calls * 1e3
            print(f"{name:18} {calls:4} iterations: {each_ms:7.2f} ms CPU each")
            if calls == 400:
                fifth = statistics.median(around(each, 5) for each in rounds)
                last = statistics.median(around(each, 400 - WINDOW) for each in rounds)
                print(
                    f"{'':18} the 5th {fifth * 1e3:.2f} ms, the 400th {last * 1e3:.2f} ms:"
                    f" {last / fifth:.2f} x"
                )
    for calls, limit in ((50, 12), (400, 4)):
        mine = totals["hermes_nb", calls]
        http_ratio, sdk_ratio = (
            mine / totals[name, calls] for name in ("bare http.client", "bare SDK")
        )
        turn = f"CPU of {calls} iterations"
        figure(f"{turn}, of a loop with http.client", http_ratio, "times", most=limit)
        figure(f"{turn}, of a loop with the SDK", sdk_ratio, "times", most=1)
    marks, updates = in_a_kernel(KERNEL_CALLS)
    tenth = len(marks) // 10
    early, late = marks[tenth] - marks[0], marks[-1] - marks[-1 - tenth]
    each = (marks[-1] - marks[0]) / (len(marks) - 1)
    figure("CPU of a call in a kernel", each * 1e3, "ms", most=6.5)
    figure(
        "CPU of the last of 1,250 calls in a kernel, of the first", late / early, "times", most=1.15
    )
    figure("updates of a cell with fast calls", updates, "a second", most=10)


if __name__ == "__main__":
    main()
