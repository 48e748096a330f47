"""How many tasks with a tool a map does in a second, beside a bare thread pool and the SDK alone.

Run with `make bench-map`. A task asks a model on this machine, reads a file for it, asks again;
the model takes 200 ms to answer, so that 16 tasks at a time can be 40 a second at the very most.
Ours is all in: claims and results flushed to the disk, the guard, the prompt, both ends of results.
The two take turns. Limits: 0.85 of the pool's rate; 25 ms of CPU a task with a model that takes no
time; 25 tasks a second on two engines of ipyparallel, ten at a time on each.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from hermes_nb import Hermes

from figures import figure

HERE = Path(__file__).parent
TASKS, AT_ONCE, ROUNDS, LATENCY = 160, 16, 3, 200
ENGINES, EACH = 2, 10
PROMPT = "What is the total of this month, by the file?"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "read_file",
            "description": "Read a file.",
            "parameters": {"type": "object", "properties": {"path": {"type": "string"}}},
        },
    }
]


@contextmanager
def provider(latency: float) -> Iterator[str]:
    """Run a model that takes so many ms to answer; yield its address."""
    command = [sys.executable, str(HERE / "provider.py"), "1", str(latency)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
        finally:
            process.kill()


def bare(address: str, work: Path) -> tuple[float, float]:
    """Return tasks a second, and CPU seconds a task, of a pool of threads with the SDK."""
    import json

    import openai

    client = openai.OpenAI(base_url=address, api_key="x")

    def asked(messages: list) -> tuple[str, dict]:
        call = {"id": "", "type": "function", "function": {"name": "", "arguments": ""}}
        text = ""
        for chunk in client.chat.completions.create(
            model="bench", messages=messages, tools=TOOLS, stream=True
        ):
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for delta in choice.delta.tool_calls or ():
                    call["id"] = delta.id or call["id"]
                    call["function"]["name"] += delta.function.name or ""
                    call["function"]["arguments"] += delta.function.arguments or ""
        return text, call

    def task(number: int) -> str:
        messages = [{"role": "user", "content": f"{PROMPT}\n\nmonth {number}"}]
        _, call = asked(messages)
        path = work / json.loads(call["function"]["arguments"])["path"]
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": call["id"], "content": path.read_text()})
        return asked(messages)[0]

    began, cpu = time.perf_counter(), time.process_time()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        answers = list(pool.map(task, range(TASKS)))
    assert answers == ["All done."] * TASKS
    client.close()
    return TASKS / (time.perf_counter() - began), (time.process_time() - cpu) / TASKS


def ours(
    address: str, work: Path, parallel: int = AT_ONCE, executor: str = "threads"
) -> tuple[float, float]:
    """Return the same of a map that nobody has run before."""
    texts = {f"month {number}": f"month {number}" for number in range(TASKS)}
    with Hermes("bench", base_url=address, cwd=work) as hermes:
        _ = hermes.session_id
        began, cpu = time.perf_counter(), time.process_time()
        prompt = f"{PROMPT} {time.monotonic_ns()}"
        options = {"executor": executor, "parallel": parallel, "tools": ["files"]}
        result = hermes.map(prompt, texts, **options)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
    assert [item.answer for item in result.items] == ["All done."] * TASKS, result.open[:2]
    assert result.usage.requests == 2 * TASKS
    return TASKS / seconds, cpu / TASKS


def on_a_cluster(address: str, work: Path) -> float:
    """Return tasks a second on engines of ipyparallel, which have done some before."""
    import ipyparallel

    made = ipyparallel.Cluster(n=ENGINES, profile="bench", cluster_id="", log_level=40)
    made.start_cluster_sync()
    try:
        made.connect_client_sync().wait_for_engines(ENGINES, timeout=60, interactive=False)
        return max(ours(address, work, ENGINES * EACH, "ipyparallel:bench")[0] for _ in range(3))
    finally:
        made.stop_cluster_sync()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        os.environ["HERMES_HOME"] = str(Path(name, "home"))
        os.environ["IPYTHONDIR"] = str(Path(name, "ipython"))
        os.environ["OPENAI_API_KEY"] = "x"
        work = Path(name, "work")
        work.mkdir()
        (work / "data.csv").write_text("month,total\n" + "2026-01,17\n" * 50)
        with provider(0) as address:
            ours(address, work)  # imports and caches are paid here
            bare(address, work)
            each = [(bare(address, work)[1], ours(address, work)[1]) for _ in range(ROUNDS)]
        cpu = statistics.median(mine for _, mine in each)
        theirs = statistics.median(pool for pool, _ in each)
        figure(f"CPU of a task of a map (a pool: {theirs * 1e3:.1f})", cpu * 1e3, "ms", most=25)
        with provider(LATENCY) as address:
            rates = [(bare(address, work)[0], ours(address, work)[0]) for _ in range(ROUNDS)]
            pool, mine = (statistics.median(column) for column in zip(*rates, strict=True))
            print(f"tasks a second, {AT_ONCE} at a time, {LATENCY} ms an answer: {mine:.1f}")
            figure("tasks a second of a map", mine / pool, "of a pool's", least=0.85)
            rate = on_a_cluster(address, work)
            figure(f"tasks a second on {ENGINES} engines", rate, least=25)


if __name__ == "__main__":
    main()
