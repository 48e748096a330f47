"""How soon a turn starts: a warm cell, one without a page, a first turn, `Hermes().ask`, a session.

Run with `make bench-start`. A loopback server in a process of its own plays the model; the SDK of
OpenAI, called by turns with us, is the baseline. A warm cell's figures are the median of the time
from its sending until its first word is seen, and the CPU of the whole cell; a first turn's are the
least of some kernels, as other work on the machine only adds to them; the others are medians.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.kernels import Kernel
from tests.kernels import kernel as running_kernel
from tests.loopback import Loopback, Reply, pause, stream, text_chunks, tool_chunks

from figures import figure

CELLS, LATE_CELLS, KERNELS, ASKS, SESSIONS = 30, 8, 5, 23, 15
LATENCY = 0.4
BESIDE = 3.0
"""Seconds from the start of a kernel's first turn in which it ends."""
SKILLS = 1_000
MESSAGES = 5_000
WORD = "Oak "
ANSWER = WORD * 30
SKILL = "---\nname: {name}\ndescription: Plots the table of {name}.\n---\n\nRead it first.\n"
SDK = """
from openai import AsyncOpenAI
client = AsyncOpenAI(base_url={url!r}, api_key="none")
async def ask(text):
    parts = await client.chat.completions.create(
        model="m", messages=[{{"role": "user", "content": text}}], stream=True)
    async for part in parts:
        if part.choices and part.choices[0].delta.content:
            print(part.choices[0].delta.content, end="", flush=True)
"""
SDK_CELL, OUR_CELL = "await ask('hello')", "%%hermes\nhello"
NEW_SESSIONS = """
import json, time
from hermes_nb.notebook.magics import _magics
agent, taken = _magics().agent, []
for _ in range({count}):
    agent.new()
    before = time.process_time()
    agent.sessions.start("bench", agent.spec(agent.settings()))
    taken.append((time.process_time() - before) * 1e3)
print(json.dumps(taken))
"""

CHOICES = """
import json, statistics, time
from hermes_nb.core.messages import Message
from hermes_nb.notebook.magics import _magics
from hermes_nb.notebook.turn import TurnOptions
agent, taken = _magics().agent, {{name: [] for name in {names}}}
kinds = Message.user, Message.assistant
said = [kinds[number % 2](str(number)) for number in range({messages})]
agent.session.agent.restore(said)
for number in range({count} * 2):
    for name, spent in taken.items():
        before = time.process_time()
        await agent.ask("hello", TurnOptions(model=name, quiet=True))
        spent.append((time.process_time() - before) * 1e3)
print(json.dumps([statistics.median(spent[{count}:]) for spent in taken.values()]))
"""


@contextmanager
def server(kind: str) -> Iterator[str]:
    """Run a server of that kind in a process of its own, and give its address."""
    command = [sys.executable, __file__, "serve", kind]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            yield child.stdout.readline().strip()
        finally:
            child.stdin.close()


def serve(kind: str) -> None:
    """Answer until standard input ends."""
    says = stream(text_chunks(ANSWER))
    replies = [says]
    if kind == "late":
        replies = [Reply([pause(LATENCY), *says.steps])]
    if kind == "tool":
        asks = stream(tool_chunks(("list_files", {"path": "."})))
        replies = [asks, says] * 200
    with Loopback(*replies) as running:
        print(running.url, flush=True)
        sys.stdin.read()


@contextmanager
def fresh(url: str, *, skills: int = 0) -> Iterator[Kernel]:
    """Start a kernel in a home of its own, with so many skills."""
    with tempfile.TemporaryDirectory() as place:
        for number in range(skills):
            folder = Path(place, "home", "skills", f"group-{number % 20}", f"skill-{number}")
            folder.mkdir(parents=True)
            (folder / "SKILL.md").write_text(SKILL.format(name=folder.name))
        with running_kernel(environment(f"{place}/home", url), cwd=place) as kernel:
            kernel.run("1 + 1")
            yield kernel


def environment(home: str, url: str) -> dict[str, str]:
    """Return the environment in which Hermes asks this server, and keeps its bytecode."""
    more = {"HERMES_HOME": home, "HERMES_NB_BASE_URL": url, "HERMES_NB_MODEL": "m"}
    more |= {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONDONTWRITEBYTECODE": ""}
    return os.environ | more


def cell(kernel: Kernel, code: str) -> tuple[float, float]:
    """Return a cell's milliseconds until its first word is seen, and of CPU until it is done."""
    process = psutil.Process(kernel.manager.provisioner.process.pid)
    before, began = sum(process.cpu_times()[:2]), time.perf_counter()
    sent, seen = kernel.client.execute(code, allow_stdin=True), 0.0
    while True:
        message = kernel.client.get_iopub_msg(timeout=60)
        if message["parent_header"].get("msg_id") != sent:
            continue
        content = message["content"]
        if not seen and WORD in str(content.get("text") or content.get("data", "")):
            seen = time.perf_counter() - began
        if message["msg_type"] == "error":
            raise RuntimeError("\n".join(content["traceback"]))
        if content.get("execution_state") == "idle":
            spent = sum(process.cpu_times()[:2]) - before
            kernel.client.get_shell_msg(timeout=60)
            return seen * 1e3, spent * 1e3


def warm(kind: str, cells: int, most: float) -> None:
    """Print how soon the first word of a warm cell is there."""
    with server(kind) as url, fresh(url) as kernel:
        kernel.run(SDK.format(url=url) + SDK_CELL)
        kernel.run("%load_ext hermes_nb")
        kernel.run(OUR_CELL, allow_stdin=True)
        pairs = [(cell(kernel, SDK_CELL), cell(kernel, OUR_CELL)) for _ in range(cells)]
    sdk, ours = (statistics.median(pair[which][0] for pair in pairs) for which in (0, 1))
    spent = [statistics.fmean(pair[which][1] for pair in pairs) for which in (0, 1)]
    print(
        f"warm cell to first word, {kind}: {ours:.1f} ms, SDK {sdk:.1f}; "
        f"CPU of the cell {spent[1]:.0f} ms, SDK {spent[0]:.0f}"
    )
    figure(f"warm cell to first word, {kind}", ours / sdk, "times the SDK", most=most)


def without_page() -> None:
    """Print what a cell takes beyond an empty one if its client sends a cell's id and has no page.

    VS Code is such a client, and JupyterLab without the extension.
    """
    with server("prompt") as url, fresh(url) as kernel:
        kernel.run("%load_ext hermes_nb")
        kernel.run(OUR_CELL, allow_stdin=True)
        kinds = ("pass", "cell"), (OUR_CELL, ""), (OUR_CELL, "cell")
        runs = [[whole(kernel, *kind) for kind in kinds] for _ in range(CELLS)]
    empty, unasked, ours = map(statistics.median, zip(*runs, strict=True))
    figure("cell without a page, beyond an empty one", ours - empty, "ms", most=20)
    figure("the same, beside a client that names no cell", ours / unasked, "times", most=1.3)


def whole(kernel: Kernel, code: str, cell: str) -> float:
    """Return a cell's milliseconds from its request to its reply; `cell` is its id, if any."""
    content = {"code": code, "silent": False, "store_history": True, "allow_stdin": True}
    content |= {"user_expressions": {}, "stop_on_error": True}
    client, began = kernel.client, time.perf_counter()
    sent = client.session.msg("execute_request", content, metadata={"cellId": cell} if cell else {})
    client.shell_channel.send(sent)
    client.get_shell_msg(timeout=60)
    return (time.perf_counter() - began) * 1e3


def first() -> None:
    """Print what a kernel's first turn costs on top of a kernel that has run a cell."""
    runs: dict[str, list[tuple[float, float]]] = {"sdk": [], "ours": []}
    with server("prompt") as url:
        for _ in range(KERNELS):
            for who, found in runs.items():
                with fresh(url) as kernel:
                    process = psutil.Process(kernel.manager.provisioner.process.pid)
                    memory, cpu = process.memory_info().rss, sum(process.cpu_times()[:2])
                    if who == "sdk":
                        kernel.run(SDK.format(url=url) + SDK_CELL)
                    else:
                        kernel.run("%load_ext hermes_nb")
                        kernel.run(OUR_CELL, allow_stdin=True)
                    spent = sum(process.cpu_times()[:2]) - cpu
                    found.append((spent, (process.memory_info().rss - memory) / 2**20))
    sdk, ours = ([min(each) for each in zip(*found, strict=True)] for found in runs.values())
    figure("CPU of a kernel's first turn, beyond the SDK's", ours[0] - sdk[0], "s", most=0.25)
    figure("memory of a kernel's first turn, beyond the SDK's", ours[1] - sdk[1], "MB", most=12)


def beside() -> None:
    """Print what a cell takes longer if it runs next to a kernel's first turn.

    Each kernel's figure is its slowest cell's; IPython's history does not write to the disk.
    """
    found = []
    with server("prompt") as url:
        for _ in range(KERNELS):
            with fresh(url) as kernel:
                kernel.run("%config HistoryManager.db_cache_size = 10000\n%load_ext hermes_nb")
                usual = statistics.median(whole(kernel, "pass", "") for _ in range(CELLS))
                starting = whole(kernel, "%%hermes --background\nhello", "")
                end, taken = time.monotonic() + BESIDE, []
                while time.monotonic() < end:
                    taken.append(whole(kernel, "pass", ""))
                found.append((max(taken) - usual, starting))
    extra, starting = (min(each) for each in zip(*found, strict=True))
    print(f"the cell that starts a kernel's first turn in the background: {starting:.0f} ms")
    figure("cell next to a kernel's first turn, beyond a usual one", extra, "ms", most=100)


def asks(url: str) -> None:
    """Print the CPU of tasks of two requests and a tool, the SDK's and ours by turns, in ms."""
    from hermes_nb import Hermes
    from openai import OpenAI

    def ours() -> None:
        with Hermes() as hermes:
            assert hermes.ask("What is here?").usage.requests == 2

    taken: dict[str, list[float]] = {"sdk": [], "ours": []}
    with OpenAI(base_url=url, api_key="none") as client:
        for _ in range(ASKS):
            for who, task in (("sdk", partial(_sdk_task, client)), ("ours", ours)):
                before = time.process_time()
                task()
                taken[who].append((time.process_time() - before) * 1e3)
    # What is imported on the first occasion is no matter here.
    print(json.dumps({who: statistics.median(each[3:]) for who, each in taken.items()}))


def _sdk_task(client) -> None:
    function = {"name": "list_files", "parameters": {"type": "object", "properties": {}}}
    messages = [{"role": "user", "content": "What is here?"}]
    for _ in range(2):
        for _ in client.chat.completions.create(
            model="m",
            messages=messages,
            tools=[{"type": "function", "function": function}],
            stream=True,
        ):
            pass
        made = {"id": "x", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        messages.append({"role": "assistant", "tool_calls": [made]})
        messages.append({"role": "tool", "tool_call_id": "x", "content": str([*Path().iterdir()])})


def once() -> None:
    """Print what `Hermes().ask` costs from open to close, beside a client that stays open."""
    with server("tool") as url, tempfile.TemporaryDirectory() as place:
        command = [sys.executable, __file__, "asks", url]
        told = subprocess.run(
            command,
            check=True,
            capture_output=True,
            text=True,
            cwd=place,
            env=environment(f"{place}/home", url),
        )
    found = json.loads(told.stdout)
    figure(f"CPU of Hermes().ask once (SDK {found['sdk']:.1f})", found["ours"], "ms", most=22)


def sessions() -> None:
    """Print what a new session costs in a warm kernel."""
    for skills, most in ((0, 4), (SKILLS, 15)):
        with server("prompt") as url, fresh(url, skills=skills) as kernel:
            kernel.run("%load_ext hermes_nb")
            kernel.run(OUR_CELL, allow_stdin=True)
            told = kernel.run(NEW_SESSIONS.format(count=SESSIONS))
        taken = statistics.median(json.loads(told.printed))
        figure(f"CPU of a new session, {skills:,} skills", taken, "ms", most=most)


def choices() -> None:
    """Print what `--model NAME` costs beyond a turn without it, of the model in use and of two."""
    for names, what, most in (
        (("", "m"), "of the model in use", 2),
        (("", "a", "b"), "of another model", 10),
    ):
        with server("prompt") as url, fresh(url) as kernel:
            kernel.run("%load_ext hermes_nb")
            kernel.run(OUR_CELL, allow_stdin=True)
            code = CHOICES.format(names=names, messages=MESSAGES, count=SESSIONS)
            without, *others = json.loads(kernel.run(code).printed.splitlines()[-1])
        extra = max(others) - without
        figure(f"CPU of --model {what}, {MESSAGES:,} messages", extra, "ms", most=most)


def main() -> None:
    """Print all figures, or one: warm, page, first, beside, once, sessions or models."""
    parts = sys.argv[1:]
    if not parts or "warm" in parts:
        warm("prompt", CELLS, 1.5)
        warm("late", LATE_CELLS, 1.05)
    if not parts or "page" in parts:
        without_page()
    if not parts or "first" in parts:
        first()
    if not parts or "beside" in parts:
        beside()
    if not parts or "once" in parts:
        once()
    if not parts or "sessions" in parts:
        sessions()
    if not parts or "models" in parts:
        choices()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(sys.argv[2])
    elif sys.argv[1:2] == ["asks"]:
        asks(sys.argv[2])
    else:
        main()
