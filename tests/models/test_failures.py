"""Failures are told apart, retried where it helps, and never show a key."""

from __future__ import annotations

import asyncio
import json
import socket
from contextlib import aclosing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.events import RequestRetried, TextDelta
from hermes_nb.core.messages import Message, Reply
from hermes_nb.core.protocols import Request
from hermes_nb.models.chat.errors import asked_delay, classify, window_in
from hermes_nb.models.chat.retries import Fallback, Retrying
from hypothesis import given
from hypothesis import strategies as st

KEY = "opaque;key-0815"
REQUEST = Request(messages=(Message.user("hi"),))


class StatusError(Exception):
    """Shaped like an SDK's error for a status; no SDK is loaded for these tests."""

    def __init__(self, status, body=None, **headers):
        super().__init__(f"Error code: {status}")
        self.status_code = status
        self.body = body
        self.response = SimpleNamespace(
            headers={k.replace("_", "-"): v for k, v in headers.items()}
        )


def said(message, **more):
    return {"error": {"message": message} | more}


K = FailureKind
SAID = json.loads(Path(__file__).with_name("failures.json").read_text(encoding="utf-8"))
"""What many providers say: statuses, words for too long a prompt, and how long to wait."""


@pytest.mark.parametrize(("status", "body", "kind"), SAID["statuses"])
def test_a_status_and_its_words_say_what_happened(status, body, kind):
    error = classify(StatusError(status, body))
    assert error.kind is FailureKind(kind)
    assert str(status) in str(error)


@pytest.mark.parametrize(("text", "window"), SAID["overflows"])
@pytest.mark.parametrize("status", [400, 413, 500])
def test_overflow_in_the_words_of_many_providers(text, window, status):
    error = classify(StatusError(status, said(text)))
    assert (error.kind, error.window) == (K.CONTEXT_OVERFLOW, window)


@pytest.mark.parametrize(
    "text",
    [
        "max_tokens is too large: 100000. This model supports at most 16384 completion tokens",
        "invalid context",
        "the tool 'context' is unknown",
        "Rate limit reached for tokens per min",
    ],
)
def test_other_complaints_are_no_overflow(text):
    assert classify(StatusError(400, said(text))).kind is not K.CONTEXT_OVERFLOW
    assert window_in("nothing here") is None


def named(name, base=Exception, **fields):
    """Return an exception of a library that is not loaded."""
    return type(name, (base,), fields)


NETWORK = [
    (ConnectionRefusedError(111, "Connection refused"), K.NETWORK),
    (socket.gaierror(-2, "Name or service not known"), K.NETWORK),
    (ConnectionResetError("reset"), K.NETWORK),
    (TimeoutError("late"), K.TIMEOUT),
    (named("ReadTimeout")(), K.TIMEOUT),
    (named("RemoteProtocolError", named("TransportError"))("cut"), K.NETWORK),
    (named("APIConnectionError", body=None)("Connection error."), K.NETWORK),
    (UnicodeEncodeError("ascii", "é", 0, 1, "ordinal"), K.BAD_REQUEST),
    (ValueError("?"), K.MALFORMED),
]


@pytest.mark.parametrize(("error", "kind"), NETWORK)
def test_without_a_reply_the_kind_of_exception_tells(error, kind):
    assert classify(error).kind is kind


def test_what_stands_behind_or_beside_a_message_is_heard():
    outer = named("APIConnectionError")("Connection error.")
    outer.__cause__ = ConnectionRefusedError(111, "Connection refused")
    assert "Connection refused" in str(classify(outer))
    body = said("the request exceeds the available context size", n_ctx=2048)
    assert classify(StatusError(400, body)).window == 2048  # llama.cpp
    body = said("Provider returned error", metadata={"raw": "the real reason"})
    assert "the real reason" in str(classify(StatusError(400, body)))  # OpenRouter


@given(st.text(max_size=40), st.sampled_from([401, 429, 500, 302]), st.booleans())
def test_no_text_shows_a_key_or_a_second_line(noise, status, nested):
    text = f"bad key {KEY} {noise}\nsk-ant-{'a1B2' * 10}\x1b" + "long " * 500
    body = said(text) if nested else text
    error = classify(StatusError(status, body, location=f"http://x/{KEY}"), secret=KEY)
    assert KEY not in str(error) and "a1B2a1B2" not in str(error)
    assert len(str(error)) <= 300 and "\n" not in str(error)


@pytest.mark.parametrize(("headers", "text", "delay"), SAID["delays"])
def test_how_long_to_wait_is_read_in_every_form(headers, text, delay):
    assert asked_delay(headers, text) == delay
    ahead = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    assert 25 < asked_delay({"retry-after": ahead}) <= 31


class Model:
    """Answers with the scripted outcomes: a failure behind some text, or a reply."""

    def __init__(self, *outcomes, name="m", window=None):
        self.outcomes = list(outcomes)
        self.name, self.window = name, window
        self.requests = 0
        self.open = 0
        self.closed = False

    async def stream(self, request):
        outcome = self.outcomes[min(self.requests, len(self.outcomes) - 1)]
        self.requests += 1
        self.open += 1
        try:
            yield TextDelta(f"{self.name}{self.requests}")
            if isinstance(outcome, Exception):
                raise outcome
            yield Reply(message=Message.assistant(outcome))
        finally:
            self.open -= 1

    async def aclose(self):
        self.closed = True


def failed(kind, **more):
    return ModelError(kind.value, kind=kind, **more)


def run(model):
    """Return what a model yields, and the failure that ended it."""

    async def consume():
        items = []
        try:
            async with aclosing(model.stream(REQUEST)) as stream:
                async for item in stream:
                    items.append(item)
        except ModelError as error:
            return items, error
        return items, None

    return asyncio.run(consume())


def retrying(model, slept, **options):
    async def sleep(seconds):
        slept.append(seconds)

    return Retrying(model, sleep=sleep, random=lambda: 1.0, **options)


@pytest.mark.parametrize("kind", [K.RATE_LIMIT, K.OVERLOADED, K.NETWORK, K.TIMEOUT, K.MALFORMED])
def test_what_can_help_is_tried_three_times_with_growing_waits(kind):
    slept = []
    model = Model(failed(kind))
    items, error = run(retrying(model, slept))
    assert error.kind is kind
    assert model.requests == 3 and slept == [1.0, 2.0]
    notices = [item for item in items if isinstance(item, RequestRetried)]
    told = kind.value
    assert notices == [RequestRetried(told, 1.0, 1, "m", 3), RequestRetried(told, 2.0, 2, "m", 3)]


@pytest.mark.parametrize("kind", [K.AUTH, K.QUOTA, K.BAD_REQUEST, K.CONTEXT_OVERFLOW])
def test_what_cannot_help_is_not_tried_again(kind):
    slept = []
    model = Model(failed(kind))
    assert run(retrying(model, slept))[1].kind is kind
    assert model.requests == 1 and not slept


@given(st.integers(1, 200), st.floats(0, 1, exclude_max=True), st.none() | st.floats(0, 1e9))
def test_a_wait_is_never_negative_nor_above_the_cap(attempt, chance, asked):
    model = Retrying(Model("x"), random=lambda: chance)
    assert 0 <= model._delay(failed(K.RATE_LIMIT, retry_after=asked), attempt) <= 60
    assert model._delay(failed(K.NETWORK), 3) == 4 * chance, "the jitter is full"


@pytest.mark.parametrize(
    "kind", [K.AUTH, K.QUOTA, K.RATE_LIMIT, K.OVERLOADED, K.NETWORK, K.TIMEOUT, K.MALFORMED]
)
def test_the_next_model_answers_when_another_provider_can_help(kind):
    items, error = run(Fallback([Model(failed(kind), name="a"), Model("ok", name="b")]))
    assert error is None
    assert items[:-1] == [TextDelta("a1"), RequestRetried(kind.value, 0.0, 1, "b"), TextDelta("b1")]


def test_what_no_other_model_can_mend_is_raised_and_the_last_failure_otherwise():
    other = Model("ok")
    assert run(Fallback([Model(failed(K.BAD_REQUEST)), other]))[1].kind is K.BAD_REQUEST
    assert other.requests == 0
    assert run(Fallback([Model(failed(K.AUTH)), Model(failed(K.QUOTA))]))[1].kind is K.QUOTA


def test_what_is_too_long_even_compressed_goes_to_the_next_model():
    long = failed(K.CONTEXT_OVERFLOW)
    first = Model(long, long, "short", long, name="a")
    model = Fallback([first, Model("ok", name="b")])
    assert run(model)[1].kind is K.CONTEXT_OVERFLOW, "now it is compressed"
    items, error = run(model)
    assert error is None
    assert items[-2] == TextDelta("b1")
    assert model.name == "a", "it does not rest: a shorter conversation is for it again"
    assert run(model)[0][0] == TextDelta("a3")
    assert run(model)[1].kind is K.CONTEXT_OVERFLOW, "an answer in between begins anew"


def test_a_failed_model_rests_for_a_while():
    now = [0.0]
    first = Model(failed(K.OVERLOADED), "back", name="a", window=1)
    second = Model("ok", name="b", window=2)
    model = Fallback([first, second], rest=10, clock=lambda: now[0])
    assert (model.name, model.window) == ("a", 1)
    run(model)
    assert (model.name, model.window) == ("b", 2)
    run(model)
    assert (first.requests, second.requests) == (1, 2)
    now[0] = 11
    run(model)
    assert (first.requests, second.requests) == (2, 2)


def test_leaving_early_and_closing_reach_every_model():
    async def scenario(wrapper):
        async with aclosing(wrapper.stream(REQUEST)) as stream:
            async for _ in stream:
                break
        await wrapper.aclose()

    models = [Model("a"), Model("b")]
    asyncio.run(scenario(Retrying(Fallback(models))))
    assert [(model.open, model.closed) for model in models] == [(0, True)] * 2
