"""Breakpoints: at most four, on what can carry one, and nothing else about the request changes."""

from __future__ import annotations

import asyncio
import copy
import itertools
import json
from pathlib import Path

import pytest
from hermes_nb.core.json_values import dumps
from hermes_nb.core.loop import Agent
from hermes_nb.core.messages import Image, Message, ToolCall
from hermes_nb.core.protocols import Request
from hermes_nb.core.tools import Tool, Toolset
from hermes_nb.models import caching
from hermes_nb.models.caching import breakpoints, mark_items, with_breakpoints
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.models.chat.stream import read_usage
from hermes_nb.models.profiles import Profile
from hypothesis import given
from hypothesis import strategies as st

from tests.conftest import take_turn
from tests.loopback import Loopback, failure, says, stream, text_chunks, tool_chunks

EPHEMERAL = {"type": "ephemeral"}
ROUTER = "https://openrouter.ai/api/v1"

part = st.one_of(
    st.builds(lambda t: {"type": "text", "text": t}, st.text(max_size=5)),
    st.just({"type": "image_url", "image_url": {"url": "data:image/png;base64,QQ=="}}),
)
content = st.one_of(st.none(), st.text(max_size=5), st.lists(part, max_size=3))
wire_message = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "system"]), "content": content},
    optional={"tool_calls": st.just([{"id": "c", "function": {"name": "f", "arguments": "{}"}}])},
)
conversation = st.lists(wire_message, max_size=12)


def marks(messages):
    """Return the positions that have a mark, at the message or at its last part alone."""
    found = []
    for position, message in enumerate(messages):
        parts = message["content"] if isinstance(message["content"], list) else []
        assert not any("cache_control" in part for part in parts[:-1])
        on_part = bool(parts) and "cache_control" in parts[-1]
        assert not (on_part and "cache_control" in message)
        if on_part or "cache_control" in message:
            found.append(position)
    return found


def text(message):
    if isinstance(message["content"], list):
        return "".join(part.get("text", "") for part in message["content"])
    return message["content"] or ""


def turns(count):
    """Return a system message and so many exchanges."""
    out = [{"role": "system", "content": "be"}]
    for n in range(count):
        out += [{"role": "user", "content": f"u{n}"}, {"role": "assistant", "content": f"a{n}"}]
    return out


def test_the_system_prompt_and_the_last_three():
    out = with_breakpoints(turns(4))
    assert marks(out) == [0, 6, 7, 8]
    part = {"type": "text", "text": "a3", "cache_control": EPHEMERAL}
    assert out[8] == {"role": "assistant", "content": [part]}


@pytest.mark.parametrize(
    "nothing", [None, "", "  \n", [], [{"type": "text", "text": ""}], [{"type": "text"}], ["x"]]
)
def test_what_is_empty_is_passed_over(nothing):
    messages = [*turns(2), {"role": "assistant", "content": nothing}]
    assert marks(with_breakpoints(messages[:-1])) == [0, 2, 3, 4] == breakpoints(messages)
    assert with_breakpoints(messages)[-1] == messages[-1]


def test_a_tool_result_carries_one_only_natively():
    messages = [*turns(3), {"role": "tool", "tool_call_id": "c", "content": "seen"}]
    assert marks(with_breakpoints(messages)) == [0, 4, 5, 6]
    out = with_breakpoints(messages, native=True)
    assert marks(out) == [0, 5, 6, 7]
    assert out[7] == {**messages[7], "cache_control": EPHEMERAL}


@given(conversation, st.booleans(), st.sampled_from(["5m", "1h"]))
def test_nothing_but_marks_is_added(messages, native, ttl):
    before = copy.deepcopy(messages)
    out = with_breakpoints(messages, ttl=ttl, native=native)
    assert messages == before
    assert [text(message) for message in out] == [text(message) for message in messages]
    positions = marks(out)
    assert positions == breakpoints(messages, native=native)
    assert len(positions) <= 4
    others = [p for p in positions if messages[p]["role"] != "system"]
    assert len(others) <= 3
    assert len(positions) - len(others) <= 1
    for position, (new, old) in enumerate(zip(out, messages, strict=True)):
        if position not in positions:
            assert new == old
        assert new is not old
        if isinstance(old["content"], list):
            assert all(a is not b for a, b in zip(new["content"], old["content"], strict=True))


@given(conversation, st.booleans())
def test_marking_twice_is_marking_once(messages, native):
    once = with_breakpoints(messages, native=native)
    assert with_breakpoints(once, native=native) == once
    again = with_breakpoints(with_breakpoints(messages, ttl="1h"), native=native)
    assert marks(again) == marks(once)


@given(conversation)
def test_serialised_messages_are_marked_alike(messages):
    items = [dumps(message) for message in messages]
    cleaned = [json.loads(item) for item in items]
    assert [json.loads(item) for item in mark_items(items)] == with_breakpoints(cleaned)
    out = mark_items(items, results=True)
    positions = breakpoints(cleaned, native=True)
    for p in positions:
        assert json.loads(out[p])["content"][-1]["cache_control"] == EPHEMERAL
    assert all(
        new is old
        for p, (new, old) in enumerate(zip(out, items, strict=True))
        if p not in positions
    )


CALL = ToolCall(id="c1", name="look", text="{}")
TURN = [
    *(Message.system("be"), Message.user("hi", images=[Image("QQ==")])),
    *(Message.assistant("", calls=[CALL]), Message.tool(CALL, "seen"), Message.assistant("done")),
    Message.user("more"),
]


def body(*messages, name="anthropic/claude-sonnet-4.5", url=ROUTER, **options):
    model = OpenAIChat(name, base_url=url, **options)
    return json.loads(model.body(Request(messages=messages)))["messages"]


def test_claude_behind_openrouter_is_told_what_to_cache():
    assert marks(body(*TURN)) == [0, 3, 4, 5]
    part = {"type": "text", "text": "seen", "cache_control": EPHEMERAL}
    assert body(*TURN)[3] == {"role": "tool", "tool_call_id": "c1", "content": [part]}
    last = body(*TURN, cache_ttl="1h")[5]["content"][0]
    assert last["cache_control"] == {"type": "ephemeral", "ttl": "1h"}
    with pytest.raises(ValueError, match="'2h'"):
        with_breakpoints([], ttl="2h")
    for name, url in [("openai/gpt-5", ROUTER), ("claude-x", "https://example.com/v1")]:
        assert b"cache_control" not in dumps(body(*TURN, name=name, url=url))


def test_only_what_is_marked_is_serialised_anew(monkeypatch):
    model = OpenAIChat("anthropic/claude-sonnet-4.5", base_url=ROUTER)
    messages = [Message.system("be"), *(Message.user(f"message {n}") for n in range(200))]
    model.body(Request(messages=tuple(messages)))
    count = []
    monkeypatch.setattr(caching, "dumps", lambda value: count.append(1) or dumps(value))
    monkeypatch.setattr(
        "hermes_nb.models.chat.wire.dumps", lambda value: count.append(2) or dumps(value)
    )
    model.body(Request(messages=tuple(messages)))
    assert count == [1] * 4
    kept = model._wire.items(messages)
    assert not any(b"cache_control" in item for item in kept)


DIALECTS = json.loads(Path(__file__).with_name("usages.json").read_text(encoding="utf-8"))
"""How providers say what was used, with input, cached and written tokens."""


@pytest.mark.parametrize(
    ("usage", "expected"),
    [*DIALECTS, ({"cache_creation": "x", "prompt_tokens": float("nan")}, [0, 0, 0])],
)
def test_cached_and_written_tokens_in_every_dialect(usage, expected):
    found = read_usage(usage)
    assert [found.input, found.cached, found.written] == expected


def test_a_session_at_such_a_provider_extends_its_prefix_but_for_the_marks():
    replies = [
        stream(tool_chunks(("look", {"n": 1}))),
        stream(tool_chunks(("look", {"n": 2}))),
        stream(text_chunks("all seen")),
        stream(text_chunks("again")),
    ]
    look = Tool(name="look", description="Look.", parameters={}, run=lambda *_: "seen")
    with Loopback(*replies) as server:
        model = OpenAIChat("m", base_url=server.url, profile=Profile(caching="system_and_3"))
        agent = Agent(model, Toolset([look]), system="be")
        take_turn(agent, "look twice")
        take_turn(agent, "and again")
        asyncio.run(model.aclose())
    sent = [body["messages"] for body in server.bodies]
    assert [len(messages) for messages in sent] == [2, 4, 6, 8]
    assert [marks(messages) for messages in sent] == [[0, 1], [0, 1, 3], [0, 1, 3, 5], [0, 5, 6, 7]]
    plain = [[text(message) for message in messages] for messages in sent]
    for shorter, longer in itertools.pairwise(plain):
        assert longer[: len(shorter)] == shorter


CACHE = Profile(caching="system_and_3")
LOOP = [stream(tool_chunks(("look", {"n": n}), ids=f"call_{n}_")) for n in range(10)]


def loop_of_ten(*replies):
    """Take a turn that looks ten times; return the requests' messages."""
    look = Tool(name="look", description="Look.", parameters={}, run=lambda *_: "seen " * 800)
    with Loopback(*replies) as server:
        model = OpenAIChat("m", base_url=server.url, profile=CACHE)
        take_turn(Agent(model, Toolset([look]), system="be " * 2_000, max_requests=20), "look")
        asyncio.run(model.aclose())
    return [body["messages"] for body in server.bodies]


def test_a_loop_of_ten_calls_is_billed_as_if_each_token_was_written_once():
    sent = loop_of_ten(*LOOP, stream(text_chunks("all seen")))
    kept, paid, bound, before = 0, 0.0, 0.0, 0
    for messages in sent:
        size = [
            len(text(message)) + len(dumps(message.get("tool_calls", ""))) for message in messages
        ]
        # What is written up to the last mark, is read by the next request from there on.
        assert not kept or any(sum(size[: end + 1]) == kept for end in marks(messages))
        last = sum(size[: marks(messages)[-1] + 1])
        paid += kept * 0.1 + (last - kept) * 1.25 + sum(size) - last
        bound += before * 0.1 + (sum(size) - before) * 1.25
        kept, before = last, sum(size)
    assert len(sent) == 11
    assert paid / bound < 1.01


def test_who_refuses_marks_on_tool_results_gets_them_on_what_is_next_to_those():
    told = "messages.3.content.0.tool_result.content.0.cache_control: extra inputs"
    sent = loop_of_ten(
        LOOP[0], failure(400, {"error": {"message": told}}), *LOOP[1:3], says("done")
    )
    assert [marks(messages) for messages in sent] == [[0, 1], [0, 1, 3], [0, 1], [0, 1], [0, 1]]
