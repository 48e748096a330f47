"""What every engine promises, over random conversations."""

from __future__ import annotations

import asyncio
import copy

import pytest
from hermes_nb.context.archive import Archive
from hermes_nb.context.boundaries import flat, grouped
from hermes_nb.context.compressor import Compressor
from hermes_nb.context.lossless import Lossless
from hermes_nb.context.policy import CompressionLimits
from hermes_nb.core.errors import FailureKind, ModelError
from hermes_nb.core.messages import Message, ToolCall, Usage
from hermes_nb.core.text import estimate_tokens
from hermes_nb.models.scripted import ScriptedModel
from hypothesis import example, given, settings

from tests.context.conversations import check_valid, last_words, sessions, stored, work

SUMMARY = "## Goal\nGo on.\n## Critical values\n- x = 17"
WINDOW = 16_000
LARGE_ORPHAN = Message.tool(ToolCall(id="orphan", name="ghost"), "giant line\n" * 6_000)
LIMITS = {"threshold": 0.5, "protect_last_n": 4}


def by_model(messages, window=WINDOW):
    return Compressor(ScriptedModel([SUMMARY] * 200, window=window), **LIMITS)


def by_model_with_store(messages, window=WINDOW):
    model = ScriptedModel([SUMMARY] * 200, window=window)
    return Compressor(model, archive=Archive(*stored(messages)), **LIMITS)


def by_rule(messages, window=WINDOW):
    return Compressor(None, window=window, archive=Archive(*stored(messages)), **LIMITS)


def broken(messages, window=WINDOW):
    error = ModelError("down", kind=FailureKind.OVERLOADED)
    return Compressor(ScriptedModel([error] * 200, window=window), **LIMITS)


def lossless(messages, window=WINDOW):
    return Lossless(*stored(messages), window=window, limits=CompressionLimits(**LIMITS))


ENGINES = [by_model, by_model_with_store, by_rule, broken, lossless]


def compress(engine, messages, focus=""):
    return asyncio.run(engine.compress(messages, focus))


LARGE_SPEECH = [Message.user("begin"), Message.assistant("src/a.py" + "giant line\n" * 6_000)]


@pytest.mark.parametrize("make", ENGINES)
@given(messages=sessions(16))
@example(messages=[Message.user("giant line\n" * 3_000), Message.user("\r")])
@example(messages=[Message.user("go"), Message.assistant("the run\n" * 60), LARGE_ORPHAN])
@example(messages=[*LARGE_SPEECH, Message.user("go"), Message.assistant("the")])
@settings(max_examples=25)
def test_a_compressed_conversation_is_valid_and_fits(make, messages):
    engine = make(messages)
    before = copy.deepcopy(messages)
    size = estimate_tokens(messages)
    engine.should_compress(size)
    made = compress(engine, messages)
    assert messages == before
    check_valid(made.messages)
    valid = flat(grouped(messages))
    for message in last_words(valid):
        if estimate_tokens([message]) < 1_500:
            assert (message.role, message.parts) in [(m.role, m.parts) for m in made.messages]
    goal, large = engine.gauge.threshold * 0.5, estimate_tokens(last_words(valid))
    goal *= 1.25 if made.phase == "pruned" else 1  # lines of shortened results may add a quarter
    if size >= engine.gauge.threshold:
        # Sizes are added up by group, each of them rounded, and so is where a message is cut.
        rounded = len(made.messages) // 2 + 1 + made.shortened
        assert estimate_tokens(made.messages) <= max(goal, large + 0.3 * goal + 20) + rounded
        assert estimate_tokens(made.messages) <= 0.8 * WINDOW
    again = compress(engine, made.messages)
    check_valid(again.messages)


@pytest.mark.parametrize("make", ENGINES)
def test_again_and_again(make):
    messages: list = []
    engine = make(messages)
    every = work(120)
    for start in range(0, len(every), 24):
        messages = [*messages, *every[start : start + 24]]
        size = estimate_tokens(messages)
        if engine.should_compress(size):
            messages = list(compress(engine, messages))
            check_valid(messages)
            assert estimate_tokens(messages) <= engine.gauge.threshold * 0.5
        engine.observe(Usage(input=estimate_tokens(messages), requests=1))
    assert messages[0] == every[0]


@pytest.mark.parametrize("make", ENGINES)
def test_nothing_to_gain_changes_nothing(make):
    messages = work(3, lines=2)
    assert list(compress(make(messages), messages)) == messages
    assert list(compress(make([]), [])) == []


@pytest.mark.parametrize("make", ENGINES)
def test_a_system_message_stays_first_and_gets_the_note_once(make):
    messages = [Message.system("You are a test."), *work(60)]
    engine = make(messages)
    engine.should_compress(estimate_tokens(messages))
    made = compress(engine, messages)
    assert made[0].text == f"You are a test.\n\n{made.note}"
    again = compress(engine, [*made.messages, *work(60)[1:]])
    assert again[0] == made[0]
