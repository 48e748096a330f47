"""Chat.completions, Messages and Responses: the same conversations give the same messages."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing
from dataclasses import replace

import pytest
from hermes_nb.core.errors import FailureKind, ModelError, ToolError
from hermes_nb.core.events import MessageAdded, ReasoningDelta, TextDelta
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Image, Message, Reply, ToolCall
from hermes_nb.core.protocols import Request
from hermes_nb.core.tools import Tool, ToolOutput, Toolset
from hermes_nb.models.call_reader import PlainReader
from hermes_nb.models.cassette import Cassette
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.models.chat.errors import LONGEST
from hermes_nb.models.chat.retries import Retrying
from hermes_nb.models.chat.stream import Assembly
from hermes_nb.models.profiles import Profile, profile_for, with_wire
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from openai.types.responses.response_create_params import ResponseCreateParamsStreaming
from pydantic import TypeAdapter

from tests.conftest import take_turn
from tests.loopback import Loopback, chunk, document, event, stream
from tests.loopback import Reply as ServerReply
from tests.wires import WIRES, Said, named, refused, response_event

LOOK = Tool(
    name="look",
    description="Look at a thing.",
    parameters={"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]},
    run=lambda _, arguments: f"seen {arguments['n']}",
)
NAMES = {"chat": "gpt-4o", "messages": "claude-opus-4-8", "responses": "gpt-5-pro"}
SCHEMA = TypeAdapter(ResponseCreateParamsStreaming)
EPHEMERAL = {"type": "ephemeral"}
HI = (Message.user("hi"),)


def model_on(wire, url="http://127.0.0.1:1/v1", *, name="", **options):
    name = name or NAMES[wire]
    profile = replace(with_wire(profile_for(name), wire, name), vision=True)
    profile = options.pop("profile", None) or profile
    return OpenAIChat(name, base_url=url, api_key="opaque;key-0815", profile=profile, **options)


def body(wire, *messages, tools=(LOOK,), effort="", tool_choice="auto", **options):
    asked = Request(messages=messages, tools=Toolset(tools), effort=effort, tool_choice=tool_choice)
    return json.loads(model_on(wire, **options).body(asked))


def ask(wire, *replies, messages=HI, **options):
    """Return what a fresh model yields for one request, and the server's requests."""

    async def collect(url):
        model = model_on(wire, url, idle=5.0, **options)
        try:
            async with aclosing(
                model.stream(Request(messages=tuple(messages), tools=Toolset([LOOK])))
            ) as items:
                return [item async for item in items]
        finally:
            await model.aclose()

    with Loopback(*replies) as server:
        return asyncio.run(collect(server.url)), server.exchanges


REPLIES = [
    Said("hello world"),
    Said("ä € 😀 \u2028 " * 9, size=1),
    Said("", thought="hm"),
    Said("answer", thought="first this, then that " * 5),
    Said("", calls=[("look", {"n": 1})]),
    Said("I look.", calls=[("look", {"n": 1})]),
    Said("", thought="plan", calls=[("look", {"n": 1}), ("look", {"n": 2})]),
    Said("both", thought="plan", calls=[("look", {"n": 1}), ("look", {"n": 2})], size=1),
    Said("", calls=[("look", "{}")]),
    Said("", calls=[("look", '{"n": ')]),
    Said("", calls=[("look", '{"n": 1, }')]),
    Said("", calls=[("look", {"n": "“quoted” \\ \n"})], size=2),
    Said("cut of", finish="length"),
    Said("", calls=[("look", '{"n": 1')], finish="length"),
    Said("No.", finish="filtered"),
    Said("<think>aside</think>said", size=3),
    Said("a\n\n```python\nx = 1\n```\n" * 20),
]


@pytest.mark.parametrize("said", REPLIES, ids=range(len(REPLIES)))
def test_a_reply_is_the_same_message_on_every_wire(said):
    found = {}
    for wire in WIRES:
        items, exchanges = ask(wire, said.on(wire))
        reply = items[-1]
        shown = "".join(each.text for each in items if isinstance(each, TextDelta))
        thought = "".join(each.text for each in items if isinstance(each, ReasoningDelta))
        message = replace(reply.message, echo={})
        found[wire] = message, reply.finish, reply.usage.input, reply.usage.output, shown, thought
        assert (
            exchanges[0].path
            == {
                "chat": "/v1/chat/completions",
                "messages": "/v1/messages",
                "responses": "/v1/responses",
            }[wire]
        )
    assert found["messages"] == found["chat"]
    assert found["responses"] == found["chat"]
    assert found["chat"][2:4] == (10, 5)


def test_the_replies_of_these_tests_have_the_types_of_the_sdk():
    adapter = TypeAdapter(ResponseStreamEvent)
    for said in REPLIES:
        for line in b"".join(said.on("responses").steps).split(b"\n"):
            if line.startswith(b"data: "):
                adapter.validate_json(line[6:])


ERRORS = [
    (401, "invalid x-api-key", "authentication_error", {}, FailureKind.AUTH),
    (429, "slow down", "rate_limit_error", {"retry_after": "7"}, FailureKind.RATE_LIMIT),
    (
        429,
        "slow down",
        "rate_limit_error",
        {"retry_after": "Fri, 27 Nov 2099 10:00:00 GMT"},
        FailureKind.RATE_LIMIT,
    ),
    (529, "Overloaded", "overloaded_error", {}, FailureKind.OVERLOADED),
    (500, "Internal server error", "api_error", {}, FailureKind.OVERLOADED),
    (404, "model: claude-x not found", "not_found_error", {}, FailureKind.NOT_FOUND),
    (400, "temperature: out of range", "invalid_request_error", {}, FailureKind.BAD_REQUEST),
    (
        400,
        "prompt is too long: 210000 tokens > 200000 maximum",
        "invalid_request_error",
        {},
        FailureKind.CONTEXT_OVERFLOW,
    ),
    (400, "Your credit balance is too low", "billing_error", {}, FailureKind.QUOTA),
]


@pytest.mark.parametrize("error", ERRORS, ids=[f"{each[0]}-{each[4].name}" for each in ERRORS])
@pytest.mark.parametrize("wire", WIRES)
def test_a_refusal_is_the_same_error_on_every_wire(wire, error):
    status, text, kind, headers, expected = error
    with pytest.raises(ModelError) as caught:
        ask(wire, refused(wire, status, text, kind, **headers))
    assert caught.value.kind is expected
    assert text in str(caught.value)
    if "retry_after" in headers:
        assert caught.value.retry_after == (7 if headers["retry_after"] == "7" else LONGEST)
    if expected is FailureKind.CONTEXT_OVERFLOW:
        assert caught.value.window == 200_000


@pytest.mark.parametrize("wire", WIRES)
def test_an_error_in_the_stream_and_a_cut_stream(wire):
    whole = Said("a long answer " * 20).on(wire).steps
    error = {
        "chat": {"error": {"message": "Overloaded", "type": "overloaded_error"}},
        "messages": {
            "type": "error",
            "error": {"type": "overloaded_error", "message": "Overloaded"},
        },
        "responses": response_event(
            "failed", status="failed", error={"code": "server_error", "message": "Overloaded"}
        ),
    }[wire]
    with pytest.raises(ModelError, match="Overloaded") as caught:
        ask(wire, ServerReply([*whole[:6], event(error)]))
    assert caught.value.kind is FailureKind.OVERLOADED
    with pytest.raises(ModelError) as caught:
        ask(wire, ServerReply([]))
    assert caught.value.kind is FailureKind.MALFORMED
    items, _ = ask(wire, ServerReply(whole[:6]))
    assert isinstance(items[-1], Reply)
    assert items[-1].message.text.startswith("a long")


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_ends_at_its_end_mark_and_leaves_the_connection_in_use(wire, monkeypatch):
    monkeypatch.setattr("hermes_nb.models.chat.client._DRAIN", 60)  # a busy machine takes longer

    async def twice(url):
        model = model_on(wire, url)
        for _ in range(2):
            async with aclosing(model.stream(Request(messages=(Message.user("hi"),)))) as items:
                assert [item async for item in items][-1].message.text == "done"
        await model.aclose()

    with Loopback(Said("done").on(wire)) as server:
        asyncio.run(twice(server.url))
        assert server.connections == 1


def test_a_server_that_does_not_stream_is_understood():
    content = [
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"n": 3}},
    ]
    usage = {"input_tokens": 4, "output_tokens": 2, "cache_read_input_tokens": 6}
    whole = {"id": "m", "type": "message", "role": "assistant", "model": "x", "content": content}
    items, _ = ask("messages", document(whole | {"stop_reason": "tool_use", "usage": usage}))
    message, reply = items[-1].message, items[-1]
    assert (message.text, message.reasoning, message.calls[0].arguments) == (
        "I look.",
        "hm",
        {"n": 3},
    )
    assert (reply.usage.input, reply.usage.cached, reply.finish) == (10, 6, "tool_calls")
    said = Said("I look.", "hm", [("look", {"n": 3})])
    output = [item for item, _, _ in said._items()]
    items, _ = ask("responses", document(response_event("x", output=output)["response"]))
    message = items[-1].message
    assert (message.text, message.reasoning, message.calls[0].arguments) == (
        "I look.",
        "hm",
        {"n": 3},
    )


CALLS = [
    ToolCall(id=f"call_{n}", name="look", text=f'{{"n": {n}}}', arguments={"n": n}) for n in (1, 2)
]
TURN = (
    Message.system("You are Hermes."),
    Message.user("look twice", images=[Image("QUJD")]),
    Message.assistant("I look.", calls=CALLS),
    Message.tool(CALLS[0], "one", images=[Image("REVG", "image/jpeg")]),
    Message.tool(CALLS[1], "no such thing", failed=True),
    Message.assistant("half", interrupted=True),
    Message.user("go on"),
)


def test_a_conversation_in_anthropics_format():
    sent = body("messages", *TURN, tool_choice="none")
    assert list(sent) == [
        *("model", "system", "messages", "tools", "tool_choice", "max_tokens", "stream")
    ]
    assert sent["system"] == [
        {"type": "text", "text": "You are Hermes.", "cache_control": EPHEMERAL}
    ]
    assert [message["role"] for message in sent["messages"]] == ["user", "assistant"] * 2 + ["user"]
    asked, called, results, half, more = (message["content"] for message in sent["messages"])
    source = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
    assert asked == [{"type": "text", "text": "look twice"}, {"type": "image", "source": source}]
    assert called[1:] == [
        {"type": "tool_use", "id": f"call_{n}", "name": "look", "input": {"n": n}} for n in (1, 2)
    ]
    assert [part["type"] for part in results[0]["content"]] == ["text", "image"]
    assert "is_error" not in results[0]
    assert results[1] == {
        "type": "tool_result",
        "tool_use_id": "call_2",
        "content": "no such thing",
        "is_error": True,
        "cache_control": EPHEMERAL,
    }
    assert half[0]["text"].startswith("half\n\n[stopped")
    assert more == [{"type": "text", "text": "go on", "cache_control": EPHEMERAL}]
    assert json.dumps(sent).count("cache_control") == 4
    assert sent["tools"][0]["input_schema"] == LOOK.parameters
    assert (sent["tool_choice"], sent["max_tokens"]) == ({"type": "none"}, 32_000)
    hour = body("messages", *TURN, cache_ttl="1h")
    assert hour["system"][0]["cache_control"] == {"type": "ephemeral", "ttl": "1h"}


def test_a_conversation_in_the_format_of_responses():
    sent = body("responses", *TURN, tool_choice="none", effort="high", options={"max_tokens": 99})
    SCHEMA.validate_python(sent)
    assert sent["instructions"] == "You are Hermes."
    assert [item.get("type") or item["role"] for item in sent["input"]] == [
        *("user", "assistant", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "assistant", "user"),
    ]
    picture = {"type": "input_image", "image_url": "data:image/png;base64,QUJD", "detail": "auto"}
    assert sent["input"][0]["content"][1] == picture
    assert sent["input"][4]["output"][1]["type"] == "input_image"
    assert sent["input"][5] == {
        "type": "function_call_output",
        "call_id": "call_2",
        "output": "no such thing",
    }
    assert sent["tools"][0] | {"parameters": {}} == {
        "type": "function",
        "name": "look",
        "description": "Look at a thing.",
        "parameters": {},
        "strict": False,
    }
    assert (sent["store"], sent["stream"], sent["tool_choice"]) == (False, True, "none")
    assert sent["reasoning"] == {"effort": "high", "summary": "auto"}
    assert sent["include"] == ["reasoning.encrypted_content"]
    assert sent["max_output_tokens"] == 99
    plain = body("responses", *TURN, name="gpt-4.1")
    assert not {"reasoning", "include"} & plain.keys()


def test_signed_reasoning_is_sent_back_byte_for_byte():
    """Also where a block stands between others, and where one has no text."""
    blocks = [
        {"type": "thinking", "thinking": "first “ä”\n ", "signature": "c2ln+/="},
        {"type": "text", "text": "I look."},
        {"type": "redacted_thinking", "data": "b3BhcXVl"},
        {"type": "tool_use", "id": "call_x0", "name": "look", "input": {"n": 1}},
    ]
    events = [{"type": "message_start", "message": {"model": "m", "content": [], "usage": {}}}]
    for index, block in enumerate(blocks):
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_stop", "index": index})
    events.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {}})
    items, _ = ask("messages", named([*events, {"type": "message_stop"}]))
    message = Message.from_dict(json.loads(json.dumps(items[-1].message.to_dict())))
    sent = body("messages", Message.user("hi"), message, Message.tool(message.calls[0], "seen"))
    content = sent["messages"][1]["content"]
    assert [{k: v for k, v in each.items() if k != "cache_control"} for each in content] == blocks
    assert "cache_control" not in content[0]


@pytest.mark.parametrize("wire", ["messages", "responses"])
def test_a_turn_keeps_its_reasoning_and_the_other_wire_does_without(wire):
    first = Said("", "I should look", [("look", {"n": 1})])
    other = "responses" if wire == "messages" else "messages"
    with Loopback(first.on(wire), Said("seen it").on(wire)) as server:
        agent = Agent(model_on(wire, server.url), Toolset([LOOK]), system="be")
        take_turn(agent, "look")
        asyncio.run(agent.model.aclose())
        again = server.bodies[1]
    mine = again["messages"] if wire == "messages" else again["input"]
    secret = "c2lnbmVk" if wire == "messages" else "ZW5j"
    assert json.dumps(mine).count(secret) == 1
    assert "index" not in json.dumps(mine)
    elsewhere = json.dumps(body(other, *agent.messages))
    assert secret not in elsewhere
    assert "I should look" not in elsewhere


@pytest.mark.parametrize("wire", WIRES)
def test_a_session_goes_on_with_another_wire(wire):
    """A turn with a call on one wire, then one on each of the others."""
    others = [each for each in WIRES if each != wire]
    agent = None
    for each in (wire, *others):
        replies = Said("", "hm", [("look", {"n": 1})]).on(each), Said(f"by {each}").on(each)
        with Loopback(*replies) as server:
            model = model_on(each, server.url)
            agent = agent or Agent(model, Toolset([LOOK]), system="be")
            agent.model = model
            take_turn(agent, "look")
            assert agent.messages[-1].text == f"by {each}"
            assert agent.messages[-2].text == "seen 1"
            if each == "responses":
                SCHEMA.validate_python(server.bodies[-1])
            asyncio.run(model.aclose())
    assert [message.role for message in agent.messages].count("tool") == 3
    assert len({call.id for message in agent.messages for call in message.calls}) == 3


DELTAS = (TextDelta, ReasoningDelta)  # how a text is cut into pieces is a test's above
DOT = Image("QUJD")
LOOKS, BOTH = [("look", {"n": 1})], [("look", {"n": 1}), ("look", {"n": 2})]
SOON = "Wed, 21 Oct 2015 07:28:00 GMT"
CONVERSATIONS = {
    "a question": [("hi", [Said("hello")])],
    "three turns": [("a", [Said("1")]), ("b", [Said("2")]), ("c", [Said("3", "hm")])],
    "a call": [("look", [Said("", calls=LOOKS), Said("seen")])],
    "text before a call": [("look", [Said("I look.", calls=LOOKS), Said("seen")])],
    "thought before a call": [("look", [Said("", "hm", LOOKS), Said("seen", "so")])],
    "parallel calls": [("look", [Said("", calls=BOTH), Said("both")])],
    "calls after calls": [("look", [Said("", calls=BOTH), Said("", calls=LOOKS), Said("done")])],
    "a call in every turn": [("a", [Said("", calls=LOOKS), Said("1")])] * 3,
    "a failed call": [("fail", [Said("", calls=[("fail", {})]), Said("it failed")])],
    "an unknown tool": [("x", [Said("", calls=[("nothing", {})]), Said("sorry")])],
    "arguments of a wrong type": [("x", [Said("", calls=[("look", {"n": "x"})]), Said("sorry")])],
    "arguments that are no JSON": [("x", [Said("", calls=[("look", '{"n": ')]), Said("sorry")])],
    "an image": [(DOT, [Said("a dot")]), ("and now?", [Said("still a dot")])],
    "an image in a result": [("draw", [Said("", calls=[("draw", {})]), Said("drawn")])],
    "images and parallel calls": [
        (DOT, [Said("", calls=[("draw", {}), ("look", {"n": 3})]), Said("both")])
    ],
    "an empty reply": [("hi", [Said(""), Said("hello")])],
    "empty replies only": [("hi", [Said("")])],
    "an empty reply after a call": [("look", [Said("", calls=LOOKS), Said(""), Said("seen")])],
    "only a thought": [("hi", [Said("", "hm"), Said("hello")])],
    "cut at the limit": [("hi", [Said("a long", finish="length"), Said("er answer")])],
    "a call cut at the limit": [
        ("look", [Said("", calls=[("look", '{"n"')], finish="length"), Said("again")])
    ],
    "a refusal": [("hi", [Said("No.", finish="filtered")]), ("why?", [Said("Because.")])],
    "thoughts in the text": [("hi", [Said("<think>hm</think>hello", size=3)])],
    "a rate limit with a date": [("hi", [(429, "slow down", {"retry_after": SOON}), Said("hi")])],
    "a rate limit with seconds": [("hi", [(429, "slow down", {"retry_after": "3"}), Said("hi")])],
    "rate limits only": [("hi", [(429, "slow down", {})])],
    "overload, then an answer": [("hi", [(529, "Overloaded", {}), Said("hi")])],
    "a rate limit between calls": [
        ("look", [Said("", calls=LOOKS), (429, "slow down", {}), Said("seen")])
    ],
    "overflow": [
        ("hi", [Said("hello")]),
        ("more", [(400, "prompt is too long: 210000 tokens > 200000 maximum", {})]),
    ],
    "a wrong key": [("hi", [(401, "invalid key", {})]), ("again", [Said("hello")])],
    "a request that is refused": [("hi", [(400, "temperature: out of range", {})])],
}


@pytest.mark.parametrize("title", CONVERSATIONS)
def test_a_conversation_is_the_same_on_every_wire(title):
    """The same events and messages, and each request in the format that its SDK describes."""
    found = {wire: conversation(wire, CONVERSATIONS[title]) for wire in WIRES}
    assert found["messages"] == found["chat"]
    assert found["responses"] == found["chat"]


def conversation(wire, turns):
    """Return the events and messages of a conversation; nothing waits for a retry."""

    def fail(_, _arguments):
        raise ToolError("the file is gone")

    empty = {"type": "object", "properties": {}}
    draw = lambda *_: ToolOutput("a dot", (DOT,))  # noqa: E731
    tools = [
        LOOK,
        Tool(name="draw", description="Draw.", parameters=empty, run=draw),
        Tool(name="fail", description="Fail.", parameters=empty, run=fail),
    ]
    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    replies = [
        reply.on(wire) if isinstance(reply, Said) else refused(wire, *reply[:2], **reply[2])
        for _, listed in turns
        for reply in listed
    ]
    with Loopback(*replies) as server:
        model = Retrying(model_on(wire, server.url), sleep=sleep, random=lambda: 1.0)
        agent = Agent(model, Toolset(tools), system="be")
        events = []
        for prompt, _ in turns:
            asked = prompt if isinstance(prompt, str) else Message.user("see", images=[prompt])
            turn = [e for e in take_turn(agent, asked) if not isinstance(e, DELTAS)]
            events += [described(event).replace(NAMES[wire], "MODEL") for event in turn]
        asyncio.run(model.aclose())
        if wire == "responses":
            for sent in server.bodies:
                SCHEMA.validate_python(sent)
    messages = [replace(message, echo={}).to_dict() for message in agent.messages]
    ended = sorted(event for event in events if event.startswith("ToolFinished"))  # in any order
    return [event for event in events if event not in ended], ended, messages, waits


def described(event):
    """Return an event without times, and without what one protocol alone sends back."""
    told = {name: getattr(event, name) for name in event.__dataclass_fields__ if name != "seconds"}
    if isinstance(event, MessageAdded):
        told["message"] = replace(event.message, echo={})
    return f"{type(event).__name__} {told}"


@pytest.mark.parametrize("wire", WIRES)
def test_a_recording_of_one_wire_replays_on_each_other(wire, tmp_path):
    path = tmp_path / "story.jsonl"

    def story(model):
        agent = Agent(model, Toolset([LOOK]), system="be")
        take_turn(agent, "look")
        take_turn(agent, "and again")
        asyncio.run(model.aclose())
        return [message.to_dict() for message in agent.messages]

    replies = [Said("", "hm", [("look", {"n": 1})]), Said("one"), Said("two")]
    with Loopback(*(said.on(wire) for said in replies)) as server:
        told = story(Cassette(model_on(wire, server.url), path, "record"))
    for other in WIRES:
        assert story(Cassette(model_on(other), path, "replay")) == told


@pytest.mark.parametrize(
    ("wire", "refusal", "before", "after"),
    [
        ("messages", "max_tokens: 32000 > 8192, which is the maximum", "32000", "8192"),
        ("messages", "messages.1.content.0: Invalid `signature` in `thinking` block", "c2ln", None),
        ("messages", "cache_control: extra inputs are not permitted", "cache_control", None),
        ("responses", "Encrypted content is not supported with this model.", "include", None),
        ("responses", "Item with id 'rs_1' not found.", "ZW5j", None),
        ("responses", "must be verified to generate reasoning summaries", '"auto"', None),
    ],
)
def test_what_an_endpoint_refuses_is_not_sent_again(wire, refusal, before, after):
    echo = {
        "thinking_blocks": [{"type": "thinking", "thinking": "", "signature": "c2ln", "index": 0}],
        "reasoning_items": [
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "encrypted_content": "ZW5j",
                "index": 0,
            }
        ],
    }
    said = replace(Message.assistant("yes"), echo=echo)
    messages = (Message.user("hi"), said, Message.user("more"))
    items, exchanges = ask(
        wire, refused(wire, 400, refusal), Said("ok").on(wire), messages=messages
    )
    first, second = (json.dumps(each.json) for each in exchanges)
    assert items[-1].message.text == "ok"
    assert before in first
    assert before not in second
    assert after is None or after in second


def test_reasoning_by_effort():
    assert body("messages", Message.user("hi"), effort="low")["output_config"] == {"effort": "low"}
    old = body("messages", Message.user("hi"), effort="high", name="claude-sonnet-4-5")
    assert old["thinking"] == {"type": "enabled", "budget_tokens": 24_576}
    assert old["max_tokens"] == 32_000
    # With a budget, calls that another model made without signed reasoning would be rejected.
    other = body("messages", *TURN[:5], effort="high", name="claude-sonnet-4-5")
    assert "thinking" not in other
    assert "thinking" in body("messages", *TURN, effort="high", name="claude-sonnet-4-5")
    assert "thinking" not in body("messages", *TURN)


def test_a_budget_fits_into_the_longest_answer_that_the_endpoint_allows():
    """The limit is learnt from a refusal, and holds for later requests of the model."""

    async def twice(url):
        model = model_on("messages", url, name="unknown-model")
        asked = Request(messages=HI, effort="high")
        for _ in range(2):
            async with aclosing(model.stream(asked)) as items:
                assert [item async for item in items][-1].message.text == "ok"
        await model.aclose()

    ok = Said("ok").on("messages")
    too_long = refused("messages", 400, "max_tokens: 32768 > 16384, which is the maximum")
    with Loopback(too_long, ok) as server:
        asyncio.run(twice(server.url))
        sent = [(each["max_tokens"], each["thinking"]["budget_tokens"]) for each in server.bodies]
    assert sent == [(32_768, 24_576), (16_384, 14_336), (16_384, 14_336)]


def test_each_provider_and_model_has_its_wire():
    claude, openai = "https://api.anthropic.com/v1", "https://api.openai.com/v1"
    for name, url, wire in [
        ("claude-opus-4-8", claude, "messages"),
        ("gpt-5", openai, "chat"),
        ("gpt-5-pro", openai, "responses"),
        ("gpt-5.1-codex-mini", openai, "responses"),
        ("o3-pro-2025-06-10", openai, "responses"),
        ("o4-mini-deep-research", openai, "responses"),
        ("gpt-4o", openai, "chat"),
        ("anthropic/claude-opus-4.8", "https://openrouter.ai/api/v1", "chat"),
    ]:
        assert profile_for(name, url).wire == wire, name
    for name in ("claude-opus-4-1-20250805", "claude-sonnet-4-20250514", "claude-haiku-4-5"):
        assert profile_for(name, claude).effort == "thinking", name
    for name in ("claude-sonnet-4-6", "claude-opus-4-7", "claude-opus-5-5", "claude-fable-5"):
        assert profile_for(name, claude).effort == "adaptive", name


def test_the_key_goes_into_one_header():
    for wire in WIRES:
        _, (exchange,) = ask(wire, Said("ok").on(wire))
        sent = exchange.headers
        if wire == "messages":
            assert (sent["x-api-key"], sent["anthropic-version"]) == (
                "opaque;key-0815",
                "2023-06-01",
            )
            assert "authorization" not in sent
        else:
            assert sent["authorization"] == "Bearer opaque;key-0815"
            assert "x-api-key" not in sent


def test_gemini_gets_the_signatures_of_its_calls_back():
    signed = {"google": {"thought_signature": "c2ln+/="}}
    start = {"index": 0, "id": "a", "function": {"name": "look", "arguments": '{"n": 1}'}}
    calls = [start | {"extra_content": signed}, start | {"index": 1, "id": "b"}]
    reply = stream([chunk({"tool_calls": calls}), chunk(finish="tool_calls")])
    items, _ = ask("chat", reply)
    message = items[-1].message
    results = [Message.tool(call, "seen") for call in message.calls]
    gemini = profile_for("gemini-3-pro", "https://generativelanguage.googleapis.com/v1beta/openai")
    sent = body("chat", Message.user("hi"), message, *results, profile=gemini)["messages"][1]
    assert sent["tool_calls"][0]["extra_content"] == signed
    assert "extra_content" not in sent["tool_calls"][1]
    elsewhere = body("chat", Message.user("hi"), message, *results)
    assert "extra_content" not in json.dumps(elsewhere)


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": "c2ln"}
USE = {"type": "tool_use", "id": "a", "name": "look", "input": {"n": 1}}
BLOCKS = [THOUGHT, {"type": "text", "text": "hello"}, USE]
FUNCTION = {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"}
SUMMARY = {"type": "reasoning", "encrypted_content": "ZQ==", "summary": [{"text": "hm"}]}
ITEMS = [SUMMARY, {"type": "message", "content": [{"text": "hello"}]}, FUNCTION]
EVENTS = {
    "messages": [
        {"type": "message_start", "message": {"content": BLOCKS, "usage": {"input_tokens": 1}}},
        *({"type": "content_block_start", "index": 3, "content_block": each} for each in BLOCKS),
        {"type": "content_block_delta", "index": 3, "delta": {"type": "text_delta", "text": "x"}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message", "content": BLOCKS, "stop_reason": "end_turn"},
    ],
    "responses": [
        *({"type": "response.output_item.added", "output_index": 0, "item": i} for i in ITEMS),
        {"type": "response.output_text.delta", "output_index": 1, "delta": "x"},
        *({"type": "response.output_item.done", "output_index": 2, "item": i} for i in ITEMS),
        {"type": "response.incomplete", "response": {"incomplete_details": {"reason": "x"}}},
        {"object": "response", "output": ITEMS, "usage": {"input_tokens": 1}},
    ],
}


def changed(value, new):
    """Yield copies of a JSON value, each with one value in it replaced."""
    yield new
    if not isinstance(value, dict | list):
        return
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
        for each in changed(inner, new):
            copy = value.copy()
            copy[key] = each
            yield copy


@pytest.mark.parametrize("wire", EVENTS)
def test_an_event_with_a_value_of_the_wrong_type_is_read_or_refused(wire):
    for number, whole in enumerate(EVENTS[wire]):
        for new in (None, True, 7, 1.5, "x", [], {}, [1], {"a": 1}):
            for broken in changed(whole, new):
                model, reply = model_on(wire), Assembly(PlainReader())
                events = model._wire.events()
                try:
                    for each in [*EVENTS[wire][:number], broken]:
                        for found in events.chunks(each):
                            reply.feed(found)
                except ModelError:
                    continue
                said = reply.finish()[1].message
                results = [Message.tool(call, "seen") for call in said.calls]
                json.loads(model.body(Request(messages=(*HI, said, *results))))


TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
STEPS = st.lists(
    st.one_of(
        st.builds(Message.user, TEXTS),
        st.builds(Message.system, TEXTS),
        st.builds(Message.assistant, TEXTS, calls=st.just(CALLS[:1]), interrupted=st.booleans()),
        st.builds(Message.assistant, TEXTS),
        st.builds(Message.tool, st.just(CALLS[0]), TEXTS, failed=st.booleans()),
    ),
    min_size=1,
    max_size=9,
)


@given(STEPS)
def test_any_conversation_is_valid_and_extends_its_own_beginning(messages):
    for wire in ("messages", "responses"):
        model = model_on(wire)
        sent = json.loads(model.body(Request(messages=(Message.system("be"), *messages))))
        parts = model._wire.items(messages)
        assert model._wire.items(messages[:-1]) == parts[: len(model._wire.items(messages[:-1]))]
        if wire == "responses":
            SCHEMA.validate_python(sent)
            continue
        roles = [message["role"] for message in sent["messages"]]
        assert roles == (["user", "assistant"] * len(roles))[: len(roles)]
        assert all(message["content"] for message in sent["messages"])
        for message in sent["messages"]:
            for block in message["content"]:
                assert block.get("text", "x").strip()
        assert json.dumps(sent).count('"cache_control": {') <= 4


def test_a_profile_without_marks_has_none():
    profile = replace(with_wire(Profile(), "messages", "m"), caching="prefix")
    sent = body("messages", *TURN, profile=profile)
    assert "cache_control" not in json.dumps(sent)
