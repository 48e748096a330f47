"""What the proxy counts is what the provider bills, in each form of an answer, or the worst case.

A real proxy process between a user and a provider on 127.0.0.1; the answers are made by a seeded
generator: the usage of seven kinds of providers, whole and streamed, written in many ways.
"""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import random

import pytest

from tests.loopback import Reply, disconnect
from tests.patience import until

pytestmark = pytest.mark.slow
RICH = {"tokens": 10**12}
PROMPT = [{"role": "user", "content": "x" * 4_000}]
READ = 1_000
"""Tokens of the prompt by the proxy's estimate, at least."""
FAKE = {"usage": {"prompt_tokens": 9, "completion_tokens": 9}, "type": "message_stop"}
"""Words of an answer that look like figures."""


def openai(read, cached, written, dice):
    """Return a document, the events of a stream."""
    usage = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    usage["prompt_tokens_details"] = {"cached_tokens": cached}
    usage["completion_tokens_details"] = {"reasoning_tokens": written // 2}
    said = {"content": json.dumps(FAKE, indent=dice.choice([None, 1]))}
    whole = {"choices": [{"message": said, "finish_reason": "stop"}], "usage": usage}
    events = [
        {"choices": [{"delta": said, "finish_reason": None}], "usage": None},
        {"choices": [{"delta": {}, "finish_reason": "stop"}], "usage": None},
        {"choices": [], "usage": usage},
    ]
    return whole, events


def openrouter(read, cached, written, dice):
    """Return a document and events: figures come with an empty choice after the last one."""
    whole, events = openai(read, cached, written, dice)
    events[-1]["choices"] = [{"delta": {"content": ""}, "finish_reason": None}]
    events[-1]["usage"] |= {"cost": 0.00031, "is_byok": False}
    return whole, events


def mistral(read, cached, written, dice):
    """Return a document and events: figures come with the last choice."""
    whole, events = openai(read, cached, written, dice)
    events[1]["usage"] = events.pop()["usage"]
    return whole, events


def gemini_compatible(read, cached, written, dice):
    """Return a document and events: thoughts are in the total alone, figures in every event."""
    whole, events = mistral(read, cached, written, dice)
    thoughts = dice.randrange(written + 1)
    whole["usage"]["completion_tokens"] -= thoughts
    events[0]["usage"] = whole["usage"] | {"completion_tokens": 0, "total_tokens": read}
    return whole, events


def gemini(read, cached, written, dice):
    """Return a document and events of the provider's own form."""
    thoughts = dice.randrange(written + 1)
    usage = {"promptTokenCount": read, "cachedContentTokenCount": cached}
    usage |= {"candidatesTokenCount": written - thoughts, "thoughtsTokenCount": thoughts}
    first = usage | {"candidatesTokenCount": 0, "totalTokenCount": read}
    usage["totalTokenCount"] = read + written
    last = {"candidates": [{"finishReason": "STOP"}], "usageMetadata": usage}
    call = {"functionCall": {"args": FAKE}}
    events = [{"candidates": [{"content": {"parts": [call]}}], "usageMetadata": first}, last]
    return dice.choice([last, events]), events


def responses(read, cached, written, dice):
    """Return a document and events of OpenAI's responses."""
    usage = {"input_tokens": read, "output_tokens": written, "total_tokens": read + written}
    usage["input_tokens_details"] = {"cached_tokens": cached}
    whole = {"status": "completed", "output": [FAKE], "usage": usage}
    events = [
        {"type": "response.created", "response": {"status": "in_progress", "usage": None}},
        {"type": "response.output_text.delta", "delta": "{"},
        {"type": "response.completed", "response": whole},
    ]
    return whole, events


def anthropic(read, cached, written, dice):
    """Return a document and events; what was cached is not among the tokens of the prompt."""
    made = dice.randrange(read - cached)
    usage = {"input_tokens": read - cached - made, "cache_creation_input_tokens": made}
    usage |= {"cache_read_input_tokens": cached, "output_tokens": written}
    said = {"type": "tool_use", "input": FAKE}
    whole = {"type": "message", "content": [said], "stop_reason": "end_turn", "usage": usage}
    events = [
        {"type": "message_start", "message": {"usage": usage | {"output_tokens": 1}}},
        {"type": "content_block_delta", "delta": {"partial_json": json.dumps(FAKE)}},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": usage},
        {"type": "message_stop"},
    ]
    return whole, events


def ollama(read, cached, written, dice):
    """Return a document and events of the provider's own form."""
    whole = {"message": {"content": "{", "tool_calls": [FAKE]}, "done": True}
    whole |= {"total_duration": 10**10, "prompt_eval_count": read, "eval_count": written}
    return whole, [{"message": {"content": "{"}, "done": False}, whole]


PROVIDERS = (openai, openrouter, mistral, gemini_compatible, gemini, responses, anthropic, ollama)


def as_document(whole, dice):
    """Return the headers and bytes of an answer that is no stream."""
    text = json.dumps(whole, indent=dice.choice([None, 0, 1, 4, "\t"]))
    text = text.replace("\n", dice.choice(["\n", "\r\n"])) + dice.choice(["", "\n", "\n\n"])
    kind = dice.choice(["application/json", "Application/JSON; charset=utf-8", "text/plain"])
    return {"Content-Type": kind}, text.encode()


def as_events(events, dice):
    """Return the headers and bytes of a stream."""
    end, text = dice.choice(["\n", "\r\n"]), ""
    space, parted = dice.choice(["", " "]), dice.random() < 0.8
    indent = dice.choice([None, None, 1]) if parted else None
    for each in events:
        text += dice.choice(["", f": OPENROUTER PROCESSING{end}{end}", f"event: e{end}id: 7{end}"])
        for line in json.dumps(each, indent=indent).split("\n"):
            text += f"data:{space}{line}{end}"
        text += end if parted else ""
    text += dice.choice(["", f"data: [DONE]{end}{end}"])
    kind = dice.choice(["text/event-stream", "text/event-stream; charset=utf-8"])
    return {"Content-Type": kind}, text.encode()


def as_lines(events, dice):
    """Return the headers and bytes of a stream of JSON lines."""
    text = "".join(f"{json.dumps(each)}\n" for each in events)
    return {"Content-Type": "application/x-ndjson"}, text.encode()


def pieces(body, dice):
    """Return the body in chunks that end anywhere."""
    cuts = sorted(dice.randrange(len(body) + 1) for _ in range(dice.randrange(6)))
    return [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True) if a < b]


def made(dice, *, whole=True):
    """Return a reply and the tokens that it is billed with."""
    read, written = dice.randrange(2, 3_000_000), dice.randrange(1, 200_000)
    cached = dice.randrange(read - 1)
    document, events = dice.choice(PROVIDERS)(read, cached, written, dice)
    write = dice.choice([as_document, as_events, as_events, as_lines]) if whole else as_events
    headers, body = write(document if write is as_document else events, dice)
    if dice.random() < 0.2:
        headers, body = headers | {"Content-Encoding": "gzip"}, gzip.compress(body)
    return Reply(pieces(body, dice), headers=headers, length=dice.random() < 0.3), read + written


def counted(proxy, reply, **more):
    """Return the status of a request and the tokens that it was counted with."""
    before = proxy.used()["tokens"]
    proxy.server.exchanges.clear()
    proxy.server.replies[:] = [reply]
    status = None
    with contextlib.suppress(http.client.HTTPException, OSError):
        status, _ = proxy.ask(messages=PROMPT, **more)
    assert until(proxy.settled)
    return status, proxy.used()["tokens"] - before


def test_93_usage_in_every_form_is_counted(serving):
    with serving(Reply(), budget=RICH) as proxy:
        for seed in range(300):
            reply, billed = made(random.Random(seed))
            assert counted(proxy, reply) == (200, billed), (seed, reply)


def test_93_an_answer_that_is_cut_counts_the_worst_case(serving):
    with serving(Reply(), budget=RICH) as proxy:
        for seed in range(60):
            dice = random.Random(seed)
            (reply, billed), allowed = made(dice, whole=False), 250_000
            steps = list(reply.steps)
            body = b"".join(steps)[: dice.randrange(sum(map(len, steps)))]
            cut = Reply([*pieces(body, dice), disconnect], headers=reply.headers)
            _, found = counted(proxy, cut, stream=True, max_tokens=allowed)
            # What was billed, where its figures came through; else the whole of what was allowed.
            assert found == billed or found >= READ + allowed, (seed, cut)


@pytest.mark.parametrize(
    "usage",
    [None, {}, [], {"prompt_tokens": 0, "completion_tokens": 0}, {"prompt_tokens": -4}, "many"],
)
def test_93_answers_without_figures_count_the_worst_case(serving, usage):
    whole = {"choices": [{"message": {"content": "Hi."}, "finish_reason": "stop"}], "usage": usage}
    dice = random.Random(0)
    models = {"small": {"longest": 7_000}}
    with serving(Reply(), budget=RICH, models=models) as proxy:
        for write, answer in ((as_document, whole), (as_events, [whole]), (as_lines, [whole])):
            headers, body = write(answer, dice)
            reply = Reply([body], headers=headers)
            assert READ + 7_000 < counted(proxy, reply)[1] < READ + 7_200
            for limit in ("max_tokens", "max_completion_tokens"):
                found = counted(proxy, reply, **{limit: 500})[1]
                assert READ + 500 < found < READ + 700
        assert counted(proxy, reply, max_tokens=10**19)[1] >= 1 << 31
        # What was streamed may be more than was allowed.
        said = {"choices": [{"delta": {"content": "word " * 20_000}}]}
        found = counted(proxy, Reply(pieces(as_events([said], dice)[1], dice)), max_tokens=10)[1]
        assert found > READ + 20_000
    assert "the provider reported no token usage" in proxy.said


def test_93_what_a_provider_refuses_counts_nothing(serving):
    error = json.dumps({"error": {"message": "no"}}).encode()
    with serving(Reply(), budget=RICH) as proxy:
        for status in (302, 400, 401, 404, 422, 429, 500, 503, 529):
            refused = Reply([error], status=status, length=True)
            assert counted(proxy, refused) == (status, 0)
        worked = {"error": {"message": "filtered"}, "usage": {"prompt_tokens": 70}}
        assert counted(proxy, Reply([json.dumps(worked).encode()], status=400)) == (400, 70)
