"""When to compress, down to what, and which engine does it."""

from __future__ import annotations

from importlib.metadata import EntryPoint

import pytest
from hermes_nb.context import engine as registry
from hermes_nb.context.compressor import Compressor
from hermes_nb.context.engine import Setup, engine_names, make_engine
from hermes_nb.context.lossless import Lossless
from hermes_nb.context.policy import CompressionLimits, Gauge, overdue
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Usage
from hermes_nb.core.protocols import ContextEngine
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel
from hypothesis import given
from hypothesis import strategies as st


def gauge(window=200_000, **limits):
    return Gauge(None, window, CompressionLimits(**limits))


def test_the_goals_at_the_threshold():
    watch = gauge()
    assert watch.threshold == 100_000
    assert watch.due(100_000)
    aim = watch.aim(100_000)
    assert (aim.whole, aim.hard, aim.tail, aim.most) == (50_000, 50_000, 20_000, 20_000)
    aim = watch.aim(25_000)  # the provider counts four tokens for an estimated one
    assert (aim.whole, aim.tail, aim.scale) == (12_500, 5_000, 4.0)
    aim = gauge().aim(10_000)  # a small conversation is compressed by its own measure
    assert (aim.whole, aim.hard, aim.tail, aim.most) == (5_000, 50_000, 2_000, 20_000)


def test_a_refused_prompt_must_become_smaller():
    watch = gauge()
    watch.due(60_000)
    assert watch.aim(60_000).hard == 30_000
    watch.due(60_000)
    watch.observe(Usage(input=60_000, requests=1))
    assert watch.aim(60_000).hard == 50_000
    assert watch.due(120_000)
    assert watch.aim(120_000).hard == 50_000
    watch.settle(120_000, 50_000)  # it is sent, and refused again
    assert watch.aim(50_000).hard == 25_000


def test_what_was_said_last_may_take_the_window_if_that_is_known():
    assert gauge().aim(1_000).ceiling == 160_000
    assert gauge(None).aim(1_000).ceiling > 10**6
    watch = gauge(None)
    watch.due(60_000)
    assert watch.aim(60_000).ceiling == 60_000


@given(
    st.integers(100, 2_000_000),
    st.integers(0, 3_000_000),
    st.integers(0, 3_000_000),
    st.floats(0.1, 0.8),
)
def test_goals_are_consistent(window, prompt, estimated, ratio):
    watch = gauge(window, target_ratio=ratio)
    watch.due(prompt)
    aim = watch.aim(estimated)
    assert 0 <= aim.tail <= aim.whole
    assert aim.tail <= aim.most + 1
    assert aim.hard * aim.scale <= max(watch.threshold, 4_001)


def test_two_futile_compressions_stop_the_automatic():
    watch = gauge(8_000)
    for _ in range(2):
        assert watch.due(9_000)
        watch.settle(9_000, 8_500)
    assert not watch.due(9_000)
    watch.observe(Usage(input=9_000, requests=1))
    assert not watch.due(9_000)
    watch.observe(Usage(input=3_000, requests=1))
    assert watch.due(9_000)


def test_hygiene():
    assert overdue(4, 90_000, 100_000)
    assert not overdue(3, 90_000, 100_000)
    assert not overdue(40, 80_000, 100_000)
    assert overdue(40, 120_000, None)


class Mine(ContextEngine):
    """A third party's engine, which inherits what it need not have."""

    def __init__(self, setup):
        self.setup = setup

    def observe(self, usage):
        pass

    def should_compress(self, prompt_tokens):
        return False

    async def compress(self, messages, focus=""):
        return list(messages)


def setup():
    store = SqliteStore(":memory:")
    model = ScriptedModel([], window=64_000)
    limits = CompressionLimits(threshold=0.25)
    return Setup(model=model, store=store, session_id=store.start(), limits=limits)


def test_engines_by_name(monkeypatch):
    assert isinstance(make_engine("compressor", setup()), Compressor)
    engine = make_engine("lossless", setup())
    assert isinstance(engine, Lossless)
    assert engine.gauge.threshold == 16_000
    assert [tool.name for tool in engine.tools()] == ["context_search", "context_expand"]
    with pytest.raises(ConfigError, match="one of compressor, lossless"):
        make_engine("lcm", setup())
    points = [
        EntryPoint("mine", "tests.context.test_gauge:Mine", registry.GROUP),
        EntryPoint("broken", "tests.context.nowhere:Mine", registry.GROUP),
        EntryPoint("compressor", "tests.context.nowhere:Mine", registry.GROUP),
    ]
    monkeypatch.setattr(registry, "plugins", lambda group: points)
    mine = make_engine("mine", setup())
    assert len(mine.tools()) == 0
    mine.session_started("s", lambda: None)
    mine.session_ended()
    assert engine_names() == ["compressor", "lossless", "broken", "mine"]
    assert isinstance(make_engine("compressor", setup()), Compressor)
    with pytest.raises(ConfigError, match="broken"):
        make_engine("broken", setup())
