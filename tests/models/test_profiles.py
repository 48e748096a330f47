"""What is known of a model by its name and place: addresses, families, prices."""

from __future__ import annotations

import re
import socket
import sys
from dataclasses import replace

import pytest
from hermes_nb.core.messages import Message, Reply, Usage
from hermes_nb.models import profiles
from hermes_nb.models.profiles import (
    OPENAI,
    is_address,
    is_loopback,
    price,
    priced,
    profile_for,
    rates,
)
from hypothesis import given
from hypothesis import strategies as st

CLAUDE = "https://api.anthropic.com/v1"
ROUTER = "https://openrouter.ai/api/v1"


@pytest.mark.parametrize(
    ("judge", "right", "wrong"),
    [
        (
            is_loopback,
            "localhost LOCALHOST 127.0.0.1 127.9.9.9 ::1",
            "127.evil.example localhost.evil.example 10.0.0.1",
        ),
        (
            is_address,
            "http://127.0.0.1:8000/v1 https://x.example/v1 http://[::1]:1/v1",
            "x 127.0.0.1:80 http:// http://[oops/ http://h:99999/ ftp://h/",
        ),
    ],
)
def test_what_is_an_address_and_what_of_this_machine(judge, right, wrong):
    assert all(map(judge, right.split()))
    assert not any(map(judge, ["", "http://a b/", *wrong.split()]))


@pytest.mark.parametrize(
    ("name", "window"),
    [
        *(("gpt-4o-mini", 128_000), ("openai/gpt-4.1-nano", 1_047_576), ("gpt-4", 8_192)),
        *(("gpt-5-mini", 400_000), ("anthropic/claude-sonnet-4.5", 200_000)),
        *(("meta-llama/Llama-3.3-70B-Instruct", 131_072), ("llama3.2:3b", 131_072)),
        *(("o3-mini", 200_000), ("google/gemini-2.5-pro", 1_048_576), ("gemma3:27b", 131_072)),
        *(("google/gemma-3-1b-it", 32_768), ("Qwen/Qwen2.5-Coder-0.5B-Instruct", 32_768)),
        *(("nobody-knows-this", None), ("turbo16k", None), ("solo3", None)),
    ],
)
def test_windows_by_family(name, window):
    assert profile_for(name).window == window


def test_strategies_by_family():
    for name in ("gemma-3-27b-it", "meta-llama/Llama-3.1-8B", "codellama:7b", "microsoft/phi-4"):
        assert profile_for(name).strategy == "text"
    for name in ("gpt-4o", "ollama/qwen2.5", "dolphin-mixtral", "Delphi-2"):
        assert profile_for(name).strategy == "structured"


def test_reasoning_goes_back_where_it_is_wanted():
    assert profile_for("gpt-4o").echo_policy == "never"
    assert profile_for("deepseek-reasoner", "https://api.deepseek.com").echo_policy == "turn"
    assert profile_for("deepseek-r1").echo_policy == "never"
    assert profile_for("kimi-k2-thinking").echo == ("reasoning_content",)
    router = profile_for("deepseek/deepseek-r1", ROUTER)
    assert (router.echo, router.echo_policy) == (("reasoning_details",), "always")


def test_caching_breakpoints_are_for_claude_where_they_are_taken():
    assert profile_for("anthropic/claude-opus-4", ROUTER).caching == "system_and_3"
    assert profile_for("claude-opus-4", CLAUDE).caching == "system_and_3"
    assert profile_for("openai/gpt-4o", ROUTER).caching == "prefix"
    assert profile_for("claude-opus-4", "http://localhost:4000").caching == "prefix"


def test_only_what_is_known_to_see_is_sent_pictures():
    seeing = """gpt-4o-mini openai/gpt-4.1-nano o3 anthropic/claude-sonnet-4.5 gemma3:27b
        google/gemini-2.5-flash meta-llama/Llama-3.2-11B-Vision-Instruct llama3.2-vision:11b
        qwen2.5vl:7b Qwen/Qwen2.5-VL-72B-Instruct mistralai/mistral-small-3.2-24b-instruct
        x-ai/grok-4-fast"""
    blind = """gpt-4o-audio-preview gpt-4 gpt-3.5-turbo gpt-oss-120b o3-mini claude-2.1
        google/gemma-3-1b-it meta-llama/Llama-3.3-70B-Instruct Qwen/Qwen3-Coder deepseek-chat
        mistral-small-latest nobody-knows-this revision-7b"""
    assert [name for name in seeing.split() if not profile_for(name).vision] == []
    assert [name for name in blind.split() if profile_for(name).vision] == []


# --- prices: from the provider, else from the data on this machine, else none ------------------

prices = pytest.mark.skipif(not profiles.prices_installed(), reason="needs genai_prices")


@prices
def test_what_was_cached_and_written_has_its_own_price():
    used = Usage(input=100_000, cached=50_000, written=20_000, output=1_000, requests=1)
    fresh, said = rates("claude-sonnet-4-5", CLAUDE)
    expected = (30_000 * fresh + 50_000 * fresh * 0.1 + 20_000 * fresh * 1.25) / 1e6
    expected += 1_000 * said / 1e6
    assert price(used, "claude-sonnet-4-5", CLAUDE) == pytest.approx(expected)
    longer = price(used, "claude-sonnet-4-5", CLAUDE, ttl="1h")
    assert longer - expected == pytest.approx(20_000 * fresh * 0.75 / 1e6)


@prices
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


@prices
@given(*[st.integers(0, 10**9)] * 4)
def test_any_counts_have_a_price_or_none(sent, cached, written, said):
    found = price(Usage(input=sent, cached=cached, written=written, output=said), "gpt-4o", OPENAI)
    assert found is None or found > 0


def cost(known=None, model=""):
    usage = Usage(input=1_000, output=0, requests=1, cost=known)
    reply = Reply(message=Message.assistant("y"), usage=usage, model=model)
    return priced(reply, "gpt-4o", OPENAI).usage.cost


@prices
def test_the_provider_comes_first_and_then_the_model_that_answered(monkeypatch):
    assert cost(0.5) == 0.5
    assert cost(model="gpt-4o-mini") == pytest.approx(rates("gpt-4o-mini", OPENAI)[0] / 1_000)
    assert cost(model="odd") == pytest.approx(rates("gpt-4o", OPENAI)[0] / 1_000)
    monkeypatch.setattr(profiles, "prices_installed", bool)
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    assert cost() == pytest.approx(0.0025)  # by our own table


@prices
def test_the_small_table_says_what_the_large_one_says(monkeypatch):
    used = Usage(input=90_000, cached=40_000, written=20_000, output=1_000, requests=1)
    asked = [
        (
            used if site in table["written"] else replace(used, written=0),
            name,
            f"https://api.{site}",
        )
        for table in [profiles._table()]
        for site, models in table["models"].items()
        for name in models
    ]
    large = [price(*each, ttl=ttl) for each in asked for ttl in ("5m", "1h")]
    monkeypatch.setattr(profiles, "prices_installed", bool)
    assert [price(*each, ttl=ttl) for each in asked for ttl in ("5m", "1h")] == pytest.approx(large)
    assert re.fullmatch(r"20\d\d-\d\d-\d\d", profiles.prices_as_of())
    assert rates("gpt-4o-2024-08-06") == rates("gpt-4o") == (2.5, 10.0)
    for name, where in [
        *(("gpt-4o-audio-preview", OPENAI), ("gpt-4o", "https://notopenai.com/v1")),
        *(("gpt-4o", "http://127.0.0.1:1/v1"), ("gpt-4o", "http://[")),
    ]:
        assert rates(name, where) is None
    assert price(replace(used, input=300_000, written=0), "gpt-5.4") is None


@prices
def test_nothing_is_fetched_to_know_a_price(monkeypatch):
    def refuse(*_args, **_options):
        raise AssertionError("a price was looked up on the network")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    assert rates("gpt-4o", OPENAI)
    from genai_prices import data_snapshot

    assert not data_snapshot.get_snapshot().from_auto_update
