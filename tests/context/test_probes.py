"""How many planted facts survive: on the way to the summariser, in the context, within one call."""

from __future__ import annotations

import asyncio

import pytest
from hermes_nb.context.archive import Archive, everything
from hermes_nb.context.compressor import Compressor
from hermes_nb.context.lossless import Lossless
from hermes_nb.core.text import estimate_tokens
from hermes_nb.models.scripted import ScriptedModel

from tests.context import plain_facts, unmarked
from tests.context.conversations import stored
from tests.context.probes import Story
from tests.tools.support import run

SEEDS = range(4)
WINDOW = 200_000


def in_view(probe, messages):
    return any(probe.key in everything(message) for message in messages)


def share(found):
    return sum(found) / len(found)


@pytest.fixture(scope="module")
def stories():
    return [Story(seed, 110) for seed in SEEDS]


def compressed(engine, messages):
    assert engine.should_compress(max(estimate_tokens(messages), 100_000))
    return list(asyncio.run(engine.compress(messages, "where we stand")))


def test_facts_reach_the_summariser(stories):
    found = []
    for story in stories:
        model = ScriptedModel(["## Goal\nReport"] * 20, window=WINDOW)
        compressed(Compressor(model), story.messages)
        sent = "\n".join(request.messages[-1].text for request in model.requests)
        found += [probe.key in sent for probe in story.probes]
        for request in model.requests:
            assert estimate_tokens(request.messages) <= 0.7 * WINDOW
    assert share(found) >= 0.95


def test_without_a_model_facts_stay_in_view(stories):
    found = []
    for story in stories:
        made = compressed(Compressor(None, window=WINDOW), story.messages)
        assert estimate_tokens(made) <= 50_000
        found += [in_view(probe, made) for probe in story.probes]
    assert share(found) >= 0.9


def test_the_compressor_leaves_every_fact_within_one_search(stories):
    for story in stories[:2]:
        store, session = stored(story.messages)
        model = ScriptedModel(["## Goal\nReport"] * 20, window=WINDOW)
        made = compressed(Compressor(model, archive=Archive(store, session)), story.messages)
        for probe in story.probes:
            if not in_view(probe, made):
                hits = store.search(probe.key, session_id=session, limit=10)
                rows = [store.rows(session, first=h.position, last=h.position) for h in hits]
                assert in_view(probe, [row.message for each in rows for row in each]), probe


def test_lossless_brings_every_fact_back(stories):
    for story in stories[:2]:
        store, session = stored(story.messages)
        engine = Lossless(store, session, window=WINDOW)
        made = compressed(engine, story.messages)
        search = engine.tools().get("context_search")
        for probe in story.probes:
            if not in_view(probe, made):
                assert probe.key in run(search, query=probe.key), probe


@pytest.mark.parametrize(
    ("limit", "rounds", "ideal", "least"),
    [
        (64_000, 1, False, 0.55),
        (100_000, 1, False, 0.7),
        (64_000, 1, True, 0.92),
        (64_000, 5, False, 0.5),
    ],
)
def test_facts_that_are_worded_like_all_else_stay_in_view(limit, rounds, ideal, least):
    steps = 240 if rounds == 1 else 90
    assert plain_facts.in_view(1, steps=steps, limit=limit, rounds=rounds, ideal=ideal) >= least


def test_facts_of_a_very_long_stretch_reach_the_summariser_in_a_bounded_number_of_requests():
    stories = [Story(seed, 110) for seed in range(100, 125)]
    messages = [message for story in stories for message in story.messages]
    model = ScriptedModel(["## Goal\nReport"] * 20, window=WINDOW)
    compressed(Compressor(model), messages)
    sent = "\n".join(request.messages[-1].text for request in model.requests)
    assert len(model.requests) <= 12
    assert all(estimate_tokens(request.messages) <= 0.7 * WINDOW for request in model.requests)
    assert share([probe.key in sent for story in stories for probe in story.probes]) >= 0.99


@pytest.mark.parametrize("name", ["river-sensors", "ryokan"])
def test_facts_that_nobody_marked_stay_in_view_without_a_model(name):
    session = unmarked.make.build("tuning", name)
    made = unmarked.compressed(session, limit=64_000)
    assert estimate_tokens(made) <= 64_000 * 5 // 8  # half of the limit, and a quarter of that
    found = unmarked.in_view(session, made)
    assert share(found["all"]) >= 0.7
    assert share(found["assistant_prose"] + found["one_line_result"]) >= 0.7


def test_facts_that_nobody_marked_survive_five_rounds_with_an_ideal_summary():
    session = unmarked.make.build("tuning", "river-sensors")
    made = unmarked.compressed(session, limit=64_000, rounds=5, ideal=True, focus="where we stand")
    assert share(unmarked.in_view(session, made)["all"]) >= 0.9
