"""The embedded model for real: its weights, its child process, its life and its end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import textwrap
import urllib.error
import urllib.request
from contextlib import aclosing, suppress

import psutil
import pytest
from hermes_nb.core.errors import ConfigError, FailureKind, ModelError
from hermes_nb.core.events import TextDelta
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Message, Reply
from hermes_nb.core.protocols import ChatModel, Request
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.extras.local.model import (
    MOST_THREADS,
    NOTICE,
    EmbeddedModel,
    EmbeddedServer,
    usable_cores,
)
from hermes_nb.extras.local.weights import WeightsNeeded, WeightsStore, locate

from tests.conftest import take_turn
from tests.patience import until

posix = pytest.mark.skipif(os.name != "posix", reason="signals and forks")
GONE_SECONDS = 6.0


@pytest.fixture(scope="module")
def weights():
    path = locate()
    if path is None:
        pytest.skip("the weights are not here; run python -m hermes_nb.models.weights")
    return path


@pytest.fixture(scope="module")
def model(weights):
    made = EmbeddedModel(threads=2)
    yield made
    asyncio.run(made.aclose())


def run_python() -> Tool:
    schema = {"type": "object", "properties": {"code": {"type": "string"}}, "required": ["code"]}
    return Tool(
        name="run_python",
        description="run code",
        parameters=schema,
        run=lambda _, given: repr(eval(given["code"])),
    )


def asking(text: str, *tools: Tool) -> Request:
    return Request(messages=(Message.user(text),), tools=Toolset(tools))


async def items(model: ChatModel, request: Request) -> list:
    async with aclosing(model.stream(request)) as stream:
        return [item async for item in stream]


def gone(pid: int) -> bool:
    """Wait until a process is gone; a zombie is."""

    def ended() -> bool:
        return not psutil.pid_exists(pid) or psutil.Process(pid).status() == psutil.STATUS_ZOMBIE

    return until(ended, GONE_SECONDS)


def script(text: str, **options) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, text=True, **options
    )


def test_without_weights_it_says_what_it_needs(tmp_path):
    store = WeightsStore(folder=tmp_path, environ={})
    model = EmbeddedModel(store=store)
    with pytest.raises(WeightsNeeded, match="491 MB"):
        asyncio.run(items(model, asking("hi")))
    asyncio.run(model.aclose())


def test_it_is_a_chat_model_and_starts_nothing_by_itself():
    model = EmbeddedModel()
    assert isinstance(model, ChatModel) and model.window == 4096 and model.pid is None
    assert "embedded" in model.name
    assert 1 <= usable_cores() <= MOST_THREADS
    for said in ("nothing leaves it", "often wrong", "%hermes model", "OPENAI_API_KEY"):
        assert said in NOTICE


@posix
def test_a_missing_xllamacpp_is_one_line(tmp_path):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    bare = str(tmp_path / "bare" / "bin" / "python")
    server = EmbeddedServer(tmp_path / "x.gguf", window=512, threads=1, python=bare)
    with pytest.raises(ConfigError, match=r'pip install "hermes_nb\[local\]"'):
        asyncio.run(server.start())
    server.stop()


@pytest.mark.embedded
def test_a_file_that_is_no_model_is_one_line(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    server = EmbeddedServer(tmp_path / "x.gguf", window=512, threads=1)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(server.start())
    server.stop()
    assert "did not start: it ended with status 1" in str(caught.value)
    assert "\n" not in str(caught.value) and "Failed" in str(caught.value)


@pytest.mark.embedded
def test_a_whole_turn_with_a_tool(model):
    agent = Agent(model, Toolset([run_python()]), system="The agent's own long prompt. " * 300)
    take_turn(agent, "What is 17 * 23? Use Python.")
    assert [message.role for message in agent.messages] == "user assistant tool assistant".split()
    assert agent.messages[2].text == "391" and "391" in agent.messages[3].text


@pytest.mark.embedded
def test_text_is_streamed_unless_it_may_be_code(model):
    *deltas, reply = asyncio.run(items(model, asking("Say in a sentence what a median is.")))
    assert isinstance(reply, Reply) and reply.model == model.name and reply.usage.input
    shown = [delta.text for delta in deltas if isinstance(delta, TextDelta)]
    assert "".join(shown) == reply.message.text and len(shown) > 2
    assert not reply.message.calls and "{" not in reply.message.text
    question = "Explain what a median is."
    for _ in range(2):
        *deltas, reply = asyncio.run(items(model, asking(question, run_python())))
        assert not any(isinstance(delta, TextDelta) for delta in deltas)
    assert reply.usage.cached > reply.usage.input * 0.8


@pytest.mark.embedded
def test_only_this_machine_with_the_token_gets_an_answer(model):
    asyncio.run(items(model, asking("Hi")))
    address = asyncio.run(model._server.start())

    def status(token: str) -> int:
        request = urllib.request.Request(f"{address.url}/v1/chat/completions", data=b"{}")
        request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=10) as answer:
                return answer.status
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    assert status("wrong") == 401 and status(address.token) == 400
    child = psutil.Process(model.pid)
    listening = [c.laddr.ip for c in child.net_connections("inet") if c.status == "LISTEN"]
    assert listening == ["127.0.0.1"]


@pytest.mark.embedded
@posix
def test_the_child_knows_no_secrets_and_tells_none(model, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-for-children")
    server = EmbeddedServer(locate(), window=512, threads=1)
    address = asyncio.run(server.start())
    child = psutil.Process(server.pid)
    seen = " ".join([*child.cmdline(), *map("=".join, child.environ().items())])
    assert address.token not in seen and "sk-not-for-children" not in seen
    assert child.environ()["OMP_WAIT_POLICY"] == "passive"
    assert os.getpgid(server.pid) != os.getpgid(0)  # a Ctrl-C to the kernel's group spares it
    pid = server.pid
    server.stop()
    assert server.pid is None and gone(pid)


@pytest.mark.embedded
def test_a_cancelled_request_stops_the_generation(model):
    async def story():
        await items(model, asking("Hi"))
        task = asyncio.create_task(items(model, asking("Count from 1 to 500.")))
        await asyncio.sleep(1.5)
        assert not task.done()
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        child = psutil.Process(model.pid)
        await asyncio.sleep(1)
        before = sum(child.cpu_times()[:2])
        await asyncio.sleep(1)
        assert sum(child.cpu_times()[:2]) - before < 0.2
        assert await items(model, asking("Hi"))

    asyncio.run(story())


@pytest.mark.embedded
def test_starting_can_be_cancelled_and_does_not_block(weights):
    server = EmbeddedServer(weights, window=512, threads=1)

    async def story():
        task = asyncio.create_task(server.start())
        ticks = 0
        while server.pid is None and not task.done():
            await asyncio.sleep(0.005)
            ticks += 1
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
        assert ticks
        return await server.start()  # the same child, which went on loading

    assert asyncio.run(story()).url.startswith("http://127.0.0.1:")
    server.stop()
    server = EmbeddedServer(weights, window=512, threads=1, ready_seconds=0.01)
    with pytest.raises(ConfigError, match=r"not ready within 0\.01 s"):
        asyncio.run(server.start())
    assert server.pid is None


@pytest.mark.embedded
@posix
def test_a_killed_child_is_one_line_and_starts_again(model):
    async def story():
        await items(model, asking("Hi"))
        first = model.pid
        task = asyncio.create_task(items(model, asking("Count from 1 to 500.")))
        await asyncio.sleep(0.7)
        os.kill(first, signal.SIGKILL)
        with pytest.raises(ModelError, match=r"stopped \(it was killed") as caught:
            await task
        assert caught.value.kind is FailureKind.NETWORK and "\n" not in str(caught.value)
        assert await items(model, asking("Hi"))
        assert model.pid != first

    asyncio.run(story())


@pytest.mark.embedded
@posix
def test_a_killed_parent_takes_the_child_along(weights):
    """Also when a fork of the parent, here without Python's knowledge, holds the pipe open."""
    parent = script(
        f"""
        import asyncio, ctypes, sys, time
        from pathlib import Path
        from hermes_nb.extras.local.model import EmbeddedServer
        server = EmbeddedServer(Path({str(weights)!r}), window=512, threads=1)
        asyncio.run(server.start())
        fork = ctypes.CDLL(None).fork()
        if fork == 0:
            time.sleep(20)
            sys.exit()
        print(server.pid, fork, flush=True)
        time.sleep(60)
        """
    )
    child, fork = map(int, parent.stdout.readline().split())
    assert psutil.pid_exists(child)
    parent.kill()
    parent.wait()
    assert gone(child)
    with suppress(ProcessLookupError):
        os.kill(fork, signal.SIGKILL)
    parent.stdout.close()


@pytest.mark.embedded
@posix
def test_a_fork_leaves_the_parents_server_alone_and_the_end_takes_it_along(weights):
    parent = script(
        f"""
        import asyncio, os, sys, warnings
        from pathlib import Path
        from hermes_nb.extras.local.model import EmbeddedServer
        warnings.simplefilter("ignore", DeprecationWarning)
        server = EmbeddedServer(Path({str(weights)!r}), window=512, threads=1)
        asyncio.run(server.start())
        fork = os.fork()
        if fork == 0:
            sys.exit(0 if server.pid is None else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])
        print(status, server.pid, asyncio.run(server.start()).url, flush=True)
        """
    )
    out, _ = parent.communicate(timeout=60)
    status, child, _ = out.split()
    assert status == "0" and parent.returncode == 0
    assert gone(int(child))
