"""Replies come together whatever the server's idea of the format is."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import ReasoningDelta, TextDelta
from hermes_nb.models.call_reader import PlainReader
from hermes_nb.models.chat.stream import Assembly
from hypothesis import given
from hypothesis import strategies as st

from tests.cpu import within
from tests.loopback import chunk, text_chunks, tool_chunks, usage_chunk


def assemble(chunks, *, limit=1_000_000, done=True):
    assembly = Assembly(PlainReader(), limit=limit)
    shown = [delta for value in chunks for delta in assembly.feed(value)]
    rest, reply = assembly.finish(done=done)
    return [*shown, *rest], reply


def piece(index=None, call_id=None, name=None, arguments=None):
    call = {"function": {}}
    if index is not None:
        call["index"] = index
    if call_id is not None:
        call["id"] = call_id
    if name is not None:
        call["function"]["name"] = name
    if arguments is not None:
        call["function"]["arguments"] = arguments
    return chunk({"tool_calls": [call]})


def calls_of(chunks, **options):
    _, reply = assemble(chunks, **options)
    return [(c.id, c.name, dict(c.arguments)) for c in reply.message.calls]


def test_text_and_usage():
    shown, reply = assemble([*text_chunks("hello world"), usage_chunk(7, 3)])
    assert "".join(delta.text for delta in shown) == reply.message.text == "hello world"
    assert (reply.usage.input, reply.usage.output, reply.usage.requests) == (7, 3, 1)
    assert (reply.finish, reply.model) == ("stop", "loopback")


@given(st.permutations(range(6)), st.integers(0, 2**32))
def test_interleaved_calls_come_apart(order, seed):
    """Fragments of different calls may alternate in any way, each call's own stay in order."""
    values = [("f", {"x": 1}), ("g", {}), ("f", {"x": '{"y": 2}'})]
    queues = [tool_chunks(value, size=3)[:-1] for value in values]
    for index, queue in enumerate(queues):
        for value in queue:
            call = value["choices"][0]["delta"]["tool_calls"][0]
            call["index"] = index
            if "id" in call:
                call["id"] = f"id{index}"
    merged = [queue.pop(0) for queue in queues]
    chance = random.Random(seed)
    while any(queues):
        merged.append(chance.choice([queue for queue in queues if queue]).pop(0))
    expected = [(f"id{i}", name, arguments) for i, (name, arguments) in enumerate(values)]
    assert calls_of(merged) == expected


NUMBERED = json.loads(Path(__file__).with_name("odd_numbering.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("odd", NUMBERED.values(), ids=NUMBERED)
def test_odd_numbering(odd):
    chunks = [*map(chunk, odd["deltas"]), chunk(finish="tool_calls")]
    assert calls_of(chunks) == [tuple(each) for each in odd["calls"]]


def test_calls_count_whatever_the_finish_reason_says():
    for finish in ("stop", "tool_calls", "function_call", "eos"):
        _, reply = assemble([piece(0, "a", "f", "{}"), chunk(finish=finish)])
        assert reply.finish == "tool_calls" and len(reply.message.calls) == 1


def test_a_finish_of_calls_without_calls_is_a_stop():
    assert assemble([chunk({"content": "x"}, finish="tool_calls")])[1].finish == "stop"


@pytest.mark.parametrize("ending", [[chunk(finish="length")], []])
def test_arguments_that_did_not_arrive_whole_are_a_problem(ending):
    chunks = [piece(0, "a", "f", "{}"), piece(1, "b", "g", '{"x": [1, 2'), *ending]
    _, reply = assemble(chunks, done=False)
    whole, cut = reply.message.calls
    assert not whole.problem
    assert "cut off" in cut.problem and not cut.arguments
    _, reply = assemble([piece(0, "a", "f", ""), *ending], done=False)
    assert reply.message.calls[0].problem


def test_odd_chunks_are_ignored():
    odd = [
        *(None, 3, [], {}, {"choices": []}, {"choices": None}, {"choices": [None]}),
        *({"choices": [{}]}, {"choices": [{"delta": None}]}, chunk({"content": None})),
        *(chunk({"tool_calls": None}), chunk({"tool_calls": [None, 3]})),
        chunk({"tool_calls": [{"index": "x", "function": None}]}),
        chunk({"content": [None, {"type": "text", "text": "b"}]}),
    ]
    _, reply = assemble([*odd, *text_chunks("a")])
    assert reply.message.text == "ba"


def test_a_whole_reply_in_place_of_a_stream():
    calls = [
        {"id": "x", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}},
        {"id": "y", "type": "function", "function": {"name": "g", "arguments": "{}"}},
    ]
    message = {"role": "assistant", "content": "hi", "tool_calls": calls}
    whole = {
        "choices": [{"message": message, "finish_reason": "tool_calls"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2},
    }
    shown, reply = assemble([whole])
    assert shown == [TextDelta("hi")]
    assert [call.id for call in reply.message.calls] == ["x", "y"]
    assert reply.usage.output == 2


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_is_kept_apart(field):
    shown, reply = assemble([chunk({field: "let "}), chunk({field: "me"}), *text_chunks("ok")])
    assert shown[:2] == [ReasoningDelta("let "), ReasoningDelta("me")]
    assert (reply.message.reasoning, reply.message.text) == ("let me", "ok")


def test_signed_reasoning_comes_back_whole():
    def detail(**more):
        return chunk({"reasoning_details": [{"type": "reasoning.text", "index": 0} | more]})

    shown, reply = assemble(
        [detail(text="a"), detail(text="b"), detail(signature="s"), *text_chunks("ok")]
    )
    expected = {"type": "reasoning.text", "index": 0, "text": "ab", "signature": "s"}
    assert reply.message.echo == {"reasoning_details": [expected]}
    assert reply.message.reasoning == "ab"
    assert shown[0] == ReasoningDelta("a")


def test_reasoning_in_very_many_pieces_costs_no_more_than_its_size():
    def details(**more):
        return chunk({"reasoning_details": [{"type": "reasoning.encrypted", "index": 0} | more]})

    piece = "x" * 1_000
    _, reply = within(3, assemble, [details(data=piece)] * 20_000, limit=10_000_000)
    (block,) = reply.message.echo["reasoning_details"]
    assert len(block["data"]) == 20_000_000
    assembly = Assembly(PlainReader(), limit=10_000)
    for _ in range(11):
        assembly.feed(details(data=piece))
    assert assembly.full, "what is not shown is bounded as well"


def test_mistral_thinks_in_parts():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}
    _, reply = assemble([chunk({"content": [thinking]}), *text_chunks("ok")])
    assert (reply.message.reasoning, reply.message.text) == ("hm", "ok")


def test_a_refusal_is_text():
    shown, reply = assemble([chunk({"refusal": "I cannot."}), chunk(finish="stop")])
    assert shown == [TextDelta("I cannot.")]
    assert reply.message.text == "I cannot."


def test_usage_is_the_last_that_was_said():
    cumulative = [
        chunk({"content": "x"}, usage={"prompt_tokens": 5, "completion_tokens": n})
        for n in (1, 2, 3)
    ]
    assert assemble([*cumulative, chunk(finish="stop", usage=None)])[1].usage.output == 3


def test_a_price_is_taken_where_the_provider_names_one():
    assert assemble([usage_chunk(cost=0.25)])[1].usage.cost == 0.25
    assert assemble([usage_chunk()])[1].usage.cost is None


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": {"message": "slow down", "code": 429}}, FailureKind.RATE_LIMIT),
        ({"error": {"message": "Overloaded", "type": "overloaded_error"}}, FailureKind.OVERLOADED),
        ({"error": "upstream gone"}, FailureKind.OVERLOADED),
        (
            {"object": "error", "message": "maximum context length is 4096 tokens", "code": 400},
            FailureKind.CONTEXT_OVERFLOW,
        ),
        (
            {"type": "error", "error": {"type": "authentication_error", "message": "no"}},
            FailureKind.AUTH,
        ),
        (
            {"choices": [{"delta": {}, "error": {"message": "x", "code": 502}}]},
            FailureKind.OVERLOADED,
        ),
        (chunk({"content": ""}, finish="error"), FailureKind.MALFORMED),
    ],
)
def test_an_error_inside_the_stream_is_one(error, kind):
    with pytest.raises(ModelError) as caught:
        assemble([chunk({"content": "half"}), error])
    assert caught.value.kind is kind


FULL = [
    chunk(
        {
            "content": [
                {"type": "thinking", "thinking": [{"text": "so"}]},
                {"type": "text", "text": "a"},
            ],
            "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "so"}],
            "refusal": None,
            "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}],
        }
    ),
    usage_chunk(7, 3),
    {"error": {"message": "no", "code": "429", "type": "t", "n_ctx": 9, "metadata": {"raw": "r"}}},
]
ODD = [None, True, 0, -1, 10**400, 1.5, float("nan"), "", "\u00b2", "9" * 5_000, "\ud800", [], {}]
ODD += [[None], [[]], {"": None}, {"a": [1]}, ["x"]]


def places(value, above=()):
    """Yield the way to every value inside a chunk, and to the chunk itself."""
    yield above
    inside = enumerate(value) if isinstance(value, list) else getattr(value, "items", tuple)()
    for key, item in inside:
        yield from places(item, (*above, key))


def with_odd(value, place, odd):
    if not place:
        return odd
    copy = list(value) if isinstance(value, list) else dict(value)
    copy[place[0]] = with_odd(value[place[0]], place[1:], odd)
    return copy


@pytest.mark.parametrize("whole", FULL, ids=["delta", "usage", "error"])
def test_no_value_in_any_place_breaks_the_reading(whole):
    """Either there is a reply that can be stored and sent, or a `ModelError`."""
    for place in places(whole):
        for odd in ODD:
            try:
                _, reply = assemble([with_odd(whole, place, odd)])
            except ModelError:
                continue
            json.dumps(reply.message.to_dict(), allow_nan=False).encode("utf-8")
            assert 0 <= reply.usage.input < 2**63


def test_reasoning_details_nested_without_end_are_cut():
    deep = json.loads("[" * 900 + "]" * 900)
    _, reply = assemble([chunk({"content": "a", "reasoning_details": [{"type": "t", "x": deep}]})])
    assert len(json.dumps(reply.message.to_dict())) < 1_000


def test_thinking_in_one_piece_is_shown():
    shown, reply = assemble([chunk({"content": [{"type": "thinking", "thinking": "so"}]})])
    assert shown == [ReasoningDelta("so")]
    assert reply.message.reasoning == "so"
