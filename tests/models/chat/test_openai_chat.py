"""The adapter against a real server on the loopback interface."""

from __future__ import annotations

import asyncio
import gzip
import json
import subprocess
import sys
import threading
from contextlib import aclosing, suppress
from itertools import pairwise

import pytest
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.messages import Image, Message, Reply, ToolCall
from hermes_nb.core.protocols import Request
from hermes_nb.core.steering import steered
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.models.chat.wire import to_wire
from hermes_nb.models.profiles import profile_for
from hermes_nb.models.text_calls import function_schema

from tests.loopback import (
    DONE,
    Loopback,
    chunk,
    event,
    failure,
    stall,
    stream,
    text_chunks,
)
from tests.loopback import Reply as ServerReply
from tests.patience import SOON

KEY = "opaque;key-0815"
HELLO = stream(text_chunks("hello world"))
TOOLS = Toolset(
    Tool(
        name=name,
        description="Read a file.",
        parameters={"type": "object", "properties": {"path": {"type": "string"}}},
        run=lambda *_: "",
    )
    for name in ("read_file", "write_file")
)


def request(*messages, tools=TOOLS, **options):
    return Request(messages=messages or (Message.user("hi"),), tools=tools, **options)


async def collect(model, *requests, close=True):
    out = []
    try:
        for each in requests or (request(),):
            async with aclosing(model.stream(each)) as items:
                out += [item async for item in items]
    finally:
        if close:
            await model.aclose()
    return out


def ask(server, *requests, **options):
    """Return everything a fresh model yields."""
    options = {"idle": 5.0, "api_key": KEY} | options
    return asyncio.run(collect(OpenAIChat("gpt-4o", base_url=server.url, **options), *requests))


CALL = ToolCall(id="call_1", name="read_file", arguments={"path": "ä"}, text='{"path": "ä"}')
CONVERSATION = (
    *(Message.system("You are “Hermes”."), Message.user("look", images=[Image("QUJD")])),
    *(Message.assistant("", calls=[CALL]), Message.tool(CALL, 'text "quoted" \\ \n\t €😀')),
    *(Message.assistant("half", interrupted=True), Message.user("go on")),
)


def test_the_wire_carries_what_the_sdk_would_send():
    """The body is prepared here; its meaning equals that of `chat.completions.create`."""
    import openai

    async def by_sdk(url):
        async with openai.AsyncOpenAI(api_key=KEY, base_url=url) as client:
            answer = await client.chat.completions.create(
                model="gpt-4o",
                messages=[to_wire(m, profile_for("gpt-4o")) for m in CONVERSATION],
                tools=[function_schema(tool) for tool in TOOLS],
                tool_choice="none",
                stream=True,
                stream_options={"include_usage": True},
            )
            async for _ in answer:
                pass

    with Loopback(HELLO) as server:
        ask(server, request(*CONVERSATION, tool_choice="none"))
        asyncio.run(by_sdk(server.url))
        ours, theirs = server.exchanges
    assert ours.json == theirs.json
    for header in ("authorization", "content-type", "accept", "user-agent"):
        assert ours.headers[header] == theirs.headers[header]


def test_the_body_is_the_same_bytes_every_time():
    with Loopback(HELLO) as server:
        ask(server, request(*CONVERSATION), request(*CONVERSATION))
        ask(server, request(*CONVERSATION))
        assert len({exchange.body for exchange in server.exchanges}) == 1
        longer = OpenAIChat("gpt-4o").body(request(*CONVERSATION, Message.assistant("x")))
    prefix = server.exchanges[0].body.split(b'],"tools"')[0]
    assert longer.startswith(prefix)


def test_options_become_fields():
    with Loopback(HELLO) as server:
        ask(server, options={"temperature": 0.5}, headers={"X-Title": "t"})
    assert server.bodies[0]["temperature"] == 0.5
    assert server.exchanges[0].headers["x-title"] == "t"
    at_openai = OpenAIChat("gpt-5", options={"max_tokens": 5})
    assert json.loads(at_openai.body(request()))["max_completion_tokens"] == 5


def test_each_event_loop_has_a_client_of_its_own():
    """A kernel's loop, a script's `asyncio.run` and a background thread share one model."""
    with Loopback(HELLO) as server:
        model = OpenAIChat("m", base_url=server.url)
        for _ in range(2):
            asyncio.run(collect(model, close=False))
        out = []
        thread = threading.Thread(
            target=lambda: out.extend(asyncio.run(collect(model, close=False)))
        )
        thread.start()
        thread.join()
    assert out[-1].message.text == "hello world"
    assert server.connections == 3


def test_importing_the_adapter_imports_no_sdk():
    code = (
        "import sys, hermes_nb.models.chat.client, hermes_nb.models.chat.errors\n"
        "heavy = {'openai', 'httpx', 'httpx2', 'json_repair', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_server_without_key_gets_a_dummy(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-mine")
    with Loopback(HELLO) as server:
        ask(server, api_key=None)
    assert server.exchanges[0].headers["authorization"] == "Bearer none"


def test_the_environment_names_the_server(monkeypatch):
    with Loopback(HELLO) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_KEY", "from-env\n")
        asyncio.run(collect(OpenAIChat("m")))
    assert server.exchanges[0].headers["authorization"] == "Bearer from-env"


def test_openai_without_a_key_is_not_even_asked():
    with pytest.raises(ModelError, match="OPENAI_API_KEY") as caught:
        asyncio.run(collect(OpenAIChat("gpt-4o")))
    assert caught.value.kind is FailureKind.AUTH


def test_the_window_is_learnt_from_an_overflow():
    text = "This model's maximum context length is 4096 tokens."
    with Loopback(failure(400, {"error": {"message": text}})) as server:
        model = OpenAIChat("unheard-of", base_url=server.url)
        assert model.window is None
        with pytest.raises(ModelError):
            asyncio.run(collect(model))
    assert model.window == 4096


def test_much_in_little_leaves_room_for_others():
    much = b"".join([event(chunk({"content": "x"}))] * 40_000) + event(chunk(finish="stop"))
    bomb = ServerReply([gzip.compress(much + DONE)], headers={"Content-Encoding": "gzip"})
    ticks = 0

    async def tick():
        nonlocal ticks
        while True:
            await asyncio.sleep(0)
            ticks += 1

    async def go(url):
        nonlocal ticks
        model = OpenAIChat("gpt-4o", base_url=url, idle=5.0, api_key=KEY)
        ticking = asyncio.create_task(tick())
        async with aclosing(model.stream(request())) as items:
            await anext(items)
            ticks = 0
            *_, reply = [item async for item in items]
        ticking.cancel()
        await model.aclose()
        return reply

    with Loopback(bomb) as server:
        reply = asyncio.run(go(server.url))
        assert server.exchanges[0].headers["accept-encoding"] == "identity"
    assert len(reply.message.text) == 40_000
    assert ticks > 0.9 * (len(much) // 65_536)


def test_usage_in_the_stream_is_not_asked_for_twice():
    refusal = failure(400, {"error": {"message": "Unrecognized request argument: stream_options"}})
    with Loopback(refusal, HELLO) as server:
        items = ask(server, request(), request())
    assert [item.message.text for item in items if isinstance(item, Reply)] == ["hello world"] * 2
    assert ["stream_options" in body for body in server.bodies] == [True, False, False]


def test_an_endpoint_without_tools_gets_them_as_text():
    refusal = failure(400, {"error": {"message": "registry/x does not support tools"}})
    said = '<tool_call>{"name": "read_file", "arguments": {"path": "a"}}</tool_call>'
    with Loopback(refusal, stream(text_chunks(f"Reading.\n{said}"))) as server:
        *deltas, reply = ask(server)
    assert "tools" in server.bodies[0] and "tools" not in server.bodies[1]
    assert "read_file" in server.bodies[1]["messages"][0]["content"]
    assert "".join(delta.text for delta in deltas).strip() == "Reading."
    assert [(c.name, dict(c.arguments)) for c in reply.message.calls] == [
        ("read_file", {"path": "a"})
    ]


def test_one_connection_serves_many_requests_whatever_follows_an_end_mark():
    tail = ServerReply([*HELLO.steps, b": bye\n\n"])
    with Loopback(HELLO, tail) as server:
        ask(server, *[request()] * 4)
        assert server.connections == 1
        model = OpenAIChat("m", base_url=server.url)
        for _ in range(2):  # it works again after it was closed
            assert asyncio.run(collect(model))[-1].message.text == "hello world"


@pytest.mark.parametrize("steps", [[], [event(chunk({"content": "a"}))]], ids=["before", "within"])
@pytest.mark.parametrize("cancelled", [True, False])
def test_leaving_an_answer_closes_the_connection(steps, cancelled):
    async def leaving(model):
        async with aclosing(model.stream(request())) as items:
            async for _ in items:
                if not cancelled:
                    break

    async def scenario(model, server):
        task = asyncio.create_task(leaving(model))
        while not server.exchanges:
            await asyncio.sleep(0.005)
        if cancelled or not steps:
            task.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait_for(task, SOON)
        assert await asyncio.to_thread(server.exchanges[0].left.wait, SOON)
        await model.aclose()

    with Loopback(ServerReply([*steps, stall])) as server:
        asyncio.run(scenario(OpenAIChat("m", base_url=server.url), server))


ROLES = (
    failure(400, {"error": {"message": "Unexpected role 'user' after role 'tool'"}}),
    failure(500, {"error": {"message": "Conversation roles must alternate user/assistant"}}),
)


def strict(messages):
    """Return whether a strict template accepts this order of roles."""
    roles = [each["role"] for each in messages]
    return not any(b == "user" and a in ("user", "tool") for a, b in pairwise(roles))


@pytest.mark.parametrize("refusal", ROLES)
def test_a_message_added_to_the_turn_passes_a_strict_template(refusal):
    start = (Message.user("hi"), steered(["in kilograms"]))
    call = Message.assistant(
        "", calls=[ToolCall(id="abcdefghi", name="read_file", arguments={"path": "a"})]
    )
    later = (call, Message.tool(call.calls[0], "text"), steered(["use b"]))
    grown = request(*start), request(*start, *later)
    with Loopback(refusal, HELLO, HELLO) as server:
        asyncio.run(collect(OpenAIChat("m", base_url=server.url), *grown))
        first, *sent = [body["messages"] for body in server.bodies]
    assert not strict(first)
    assert all(map(strict, sent))
    assert sent[1][: len(sent[0])] == sent[0]
    assert [each["content"] for each in sent[1] if each["role"] == "tool"] == ["text"]
    assert sent[1][-1] == {"role": "user", "content": steered(["use b"]).text}


@pytest.mark.parametrize(("name", "few"), [("mistral-small", 3), ("gemma-3-27b", 3), ("m", 2)])
def test_only_known_strict_templates_get_a_message_between(name, few):
    asked = request(Message.user("hi"), steered(["in kilograms"]), tools=Toolset())
    with Loopback(HELLO) as server:
        asyncio.run(collect(OpenAIChat(name, base_url=server.url), asked))
        assert len(server.bodies[0]["messages"]) == few
