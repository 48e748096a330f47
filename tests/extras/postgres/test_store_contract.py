"""What every session store promises holds for a server's."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings

from tests.memory.test_store_contract import *  # noqa: F403 - its tests, run here once more
from tests.memory.test_store_contract import Model, operations, play


@pytest.fixture
def store(postgres, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = postgres.store("ada", tmp_path)
    yield store
    store.close()
    store.close()


@given(steps=operations)
@settings(max_examples=12, deadline=None, suppress_health_check=list(HealthCheck))
def test_any_history_is_what_the_model_says_on_a_server(postgres, tmp_path, steps):
    store = postgres.store("ada", tmp_path)
    play(store, store.start(), Model(), steps)
    store.close()
