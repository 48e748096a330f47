"""Prices: from the provider, else from the data on this machine, else none."""

from __future__ import annotations

import sys

import pytest
from hermes_nb.core.messages import Message, Reply, Usage
from hermes_nb.models.profiles import OPENAI, price, priced, rates
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("genai_prices")
CLAUDE = "https://api.anthropic.com/v1"


def test_what_was_cached_and_written_has_its_own_price():
    used = Usage(input=100_000, cached=50_000, written=20_000, output=1_000, requests=1)
    fresh, read = rates("claude-sonnet-4-5", CLAUDE)[0], 0.1
    expected = (30_000 * fresh + 50_000 * fresh * read + 20_000 * fresh * 1.25) / 1e6
    expected += 1_000 * rates("claude-sonnet-4-5", CLAUDE)[1] / 1e6
    assert price(used, "claude-sonnet-4-5", CLAUDE) == pytest.approx(expected)
    longer = price(used, "claude-sonnet-4-5", CLAUDE, ttl="1h")
    assert longer - expected == pytest.approx(20_000 * fresh * 0.75 / 1e6)


@pytest.mark.parametrize(
    ("model", "where"),
    [
        *(("gpt-4o", "http://127.0.0.1:8000/v1"), ("gpt-4o", "https://gateway.example/v1")),
        *(("a-model-nobody-knows", OPENAI), ("", OPENAI), ("gpt-4o\0", "not an address")),
    ],
)
def test_what_is_not_known_has_no_price(model, where):
    assert price(Usage(input=100, output=10, requests=1), model, where) is None
    assert rates(model, where) is None


@given(*[st.integers(0, 10**9)] * 4)
def test_any_counts_have_a_price_or_none(sent, cached, written, said):
    found = price(Usage(input=sent, cached=cached, written=written, output=said), "gpt-4o", OPENAI)
    assert found is None or found > 0


def reply(cost, model=""):
    usage = Usage(input=1_000, output=0, requests=1, cost=cost)
    return Reply(message=Message.assistant("y"), usage=usage, model=model)


def cost(said, **options):
    return priced(said, "gpt-4o", OPENAI, **options).usage.cost


def test_what_the_provider_says_comes_first():
    assert cost(reply(0.5)) == 0.5


def test_the_model_that_answered_is_the_one_that_is_paid():
    expected = rates("gpt-4o-mini", OPENAI)[0] / 1_000
    assert cost(reply(None, "gpt-4o-mini")) == pytest.approx(expected)
    assert cost(reply(None, "odd")) == pytest.approx(rates("gpt-4o", OPENAI)[0] / 1_000)


def test_nothing_is_fetched_to_know_a_price(monkeypatch):
    import socket

    def refuse(*_args, **_options):
        raise AssertionError("a price was looked up on the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert rates("gpt-4o", OPENAI)
    from genai_prices import data_snapshot

    assert not data_snapshot.get_snapshot().from_auto_update


def test_without_the_extra_costs_are_unknown(monkeypatch):
    from hermes_nb.models import profiles

    monkeypatch.setattr(profiles, "prices_installed", lambda: False)
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert cost(reply(None)) is None
