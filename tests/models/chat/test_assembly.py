"""Replies come together whatever the server's idea of the format is."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import CallDelta, ReasoningDelta, TextDelta
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


def piece(index, call_id, name, arguments):
    function = {"name": name, "arguments": arguments}
    return chunk({"tool_calls": [{"index": index, "id": call_id, "function": function}]})


def calls_of(chunks):
    return [(c.id, c.name, dict(c.arguments)) for c in assemble(chunks)[1].message.calls]


@given(st.integers(0, 2**32))
def test_interleaved_calls_come_apart(seed):
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


def test_what_a_reply_holds_counts_and_not_its_finish_reason():
    for finish in ("stop", "tool_calls", "function_call", "eos"):
        _, reply = assemble([piece(0, "a", "f", "{}"), chunk(finish=finish)])
        assert reply.finish == "tool_calls" and len(reply.message.calls) == 1
    assert assemble([chunk({"content": "x"}, finish="tool_calls")])[1].finish == "stop"


@pytest.mark.parametrize("ending", [[chunk(finish="length")], []])
@pytest.mark.parametrize("arguments", ['{"x": [1, 2', ""])
def test_arguments_that_did_not_arrive_whole_are_a_problem(ending, arguments):
    chunks = [piece(0, "a", "f", "{}"), piece(1, "b", "g", arguments), *ending]
    whole, cut = assemble(chunks, done=False)[1].message.calls
    assert not whole.problem
    assert "cut off" in cut.problem and not cut.arguments


def test_a_call_is_shown_while_it_is_written():
    pieces = [{"name": "run_python", "arguments": ""}, {"arguments": '{"code": "a'}]
    pieces += [{"arguments": r"\nb"}, {"arguments": '"}'}]
    calls = [{"index": i, "id": f"c{i}", "function": p} for i in (0, 1) for p in pieces]
    shown, reply = assemble([{"choices": [{"delta": {"tool_calls": [call]}}]} for call in calls])
    texts = ['{"code": "a', r"\nb", '"}']
    assert shown == [CallDelta(n, "run_python", text) for n in (0, 1) for text in texts]
    assert [each.arguments for each in reply.message.calls] == [{"code": "a\nb"}] * 2


def test_a_whole_reply_in_place_of_a_stream():
    calls = [
        {"id": i, "type": "function", "function": {"name": "f", "arguments": "{}"}} for i in "xy"
    ]
    message = {"role": "assistant", "content": "hi", "tool_calls": calls}
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    whole = {"choices": [{"message": message, "finish_reason": "tool_calls"}], "usage": usage}
    shown, reply = assemble([whole])
    assert shown == [TextDelta("hi")]
    assert [call.id for call in reply.message.calls] == ["x", "y"]
    assert reply.usage.output == 2


def detail(**more):
    return {"reasoning_details": [{"type": "reasoning.text", "index": 0} | more]}


@pytest.mark.parametrize(
    ("deltas", "shown"),
    [
        ([{"reasoning_content": "let "}, {"reasoning_content": "me"}], ["let ", "me"]),
        ([{"reasoning": "let "}, {"reasoning": "me"}], ["let ", "me"]),
        ([detail(text="let "), detail(text="me"), detail(signature="s")], ["let ", "me"]),
        (  # Mistral thinks in parts
            [{"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "let me"}]}]}],
            ["let me"],
        ),
        ([{"content": [{"type": "thinking", "thinking": "let me"}]}], ["let me"]),
    ],
)
def test_reasoning_is_kept_apart(deltas, shown):
    found, reply = assemble([*map(chunk, deltas), *text_chunks("ok")])
    assert found[: len(shown)] == [ReasoningDelta(text) for text in shown]
    assert (reply.message.reasoning, reply.message.text) == ("let me", "ok")
    if "reasoning_details" in deltas[0]:
        whole = {"type": "reasoning.text", "index": 0, "text": "let me", "signature": "s"}
        assert reply.message.echo == {"reasoning_details": [whole]}


def test_hidden_reasoning_in_very_many_pieces_is_joined_once_and_bounded():
    data = chunk(detail(data="x" * 1_000))
    _, reply = within(3, assemble, [data] * 20_000, limit=10_000_000)
    (block,) = reply.message.echo["reasoning_details"]
    assert len(block["data"]) == 20_000_000
    assembly = Assembly(PlainReader(), limit=10_000)
    for _ in range(11):
        assembly.feed(data)
    assert assembly.full


def test_refusals_usage_and_prices():
    shown, reply = assemble([chunk({"refusal": "I cannot."}), chunk(finish="stop")])
    assert shown == [TextDelta("I cannot.")] and reply.message.text == "I cannot."
    counts = [{"prompt_tokens": 5, "completion_tokens": n} for n in (1, 2, 3)]
    said = [chunk({"content": "x"}, usage=each) for each in counts]
    _, reply = assemble([*said, chunk(finish="stop", usage=None)])
    assert (reply.usage.input, reply.usage.output, reply.usage.requests) == (5, 3, 1)
    assert assemble([usage_chunk(cost=0.25)])[1].usage.cost == 0.25
    assert assemble([usage_chunk()])[1].usage.cost is None


K = FailureKind


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        ({"error": {"message": "slow down", "code": 429}}, K.RATE_LIMIT),
        ({"error": {"message": "Overloaded", "type": "overloaded_error"}}, K.OVERLOADED),
        ({"error": "upstream gone"}, K.OVERLOADED),
        (
            {"object": "error", "message": "maximum context length is 4096 tokens", "code": 400},
            K.CONTEXT_OVERFLOW,
        ),
        ({"type": "error", "error": {"type": "authentication_error", "message": "no"}}, K.AUTH),
        ({"choices": [{"delta": {}, "error": {"message": "x", "code": 502}}]}, K.OVERLOADED),
        (chunk({"content": ""}, finish="error"), K.MALFORMED),
    ],
)
def test_an_error_inside_the_stream_is_one(error, kind):
    with pytest.raises(ModelError) as caught:
        assemble([chunk({"content": "half"}), error])
    assert caught.value.kind is kind


DELTA = {
    "content": [
        {"type": "thinking", "thinking": [{"text": "so"}]},
        {"type": "text", "text": "a"},
    ],
    "reasoning_details": [{"type": "reasoning.text", "index": 0, "text": "so"}],
    "refusal": None,
    "tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}],
}
FULL = [
    chunk(DELTA),
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
