"""Which model the settings lead to."""

from __future__ import annotations

import asyncio

import pytest
from hermes_nb.agent.models import build_model
from hermes_nb.agent.settings.config import load_settings
from hermes_nb.core.errors import ConfigError
from hermes_nb.models import servers

from tests.conftest import take_turn
from tests.loopback import Loopback, document, failure, stream, text_chunks


def model_for(env=None, **overrides):
    return build_model(load_settings(environ=env or {}, overrides=overrides))


def test_a_server_without_a_model_name_is_asked_for_one():
    with Loopback(listing=document({"data": [{"id": "the-first"}, {"id": "second"}]})) as server:
        assert model_for(base_url=server.url).name == "the-first"
    with (
        Loopback(listing=failure(404, {"error": {}})) as server,
        pytest.raises(ConfigError, match="lists no models; set HERMES_NB_MODEL"),
    ):
        model_for(base_url=server.url)


def test_a_key_without_a_model_says_what_is_missing():
    with pytest.raises(ConfigError, match="HERMES_NB_MODEL"):
        model_for({"OPENAI_API_KEY": "sk-x"})


def test_a_local_server_answers_once_it_is_accepted(monkeypatch, home):
    with Loopback(listing=document({"data": [{"id": "local-model"}]})) as server:
        monkeypatch.setattr(servers, "LOCAL_SERVERS", {"Ollama": server.url})
        monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
        with pytest.raises(ConfigError, match=r"yours; local-model.*found but not accepted"):
            model_for()
        (found,) = servers.local_servers()
        servers.remember(home, [found.identity], ())
        assert model_for().name == "local-model"
        with pytest.raises(ConfigError):
            model_for({"HERMES_NB_LOCAL_SERVERS": "off"})


@pytest.mark.parametrize("status", [401, 404])
def test_a_fallback_answers_when_the_first_provider_will_not(make_agent, home, status):
    with Loopback(stream(text_chunks("from the second"))) as second:
        home.mkdir()
        (home / "config.yaml").write_text(
            f"fallback_providers:\n  - {{base_url: '{second.url}', model: second}}\n",
            encoding="utf-8",
        )
        with Loopback(failure(status, {"error": {"message": "no"}})) as first:
            model = model_for(base_url=first.url, model="first")
            agent = make_agent()
            agent.model = model
            events = take_turn(agent)
    assert events[-1].reason == "answered"
    assert agent.messages[-1].text == "from the second"
    asyncio.run(model.aclose())


def test_the_window_that_is_set_is_that_of_the_model_that_is_named(home):
    home.mkdir()
    text = "fallback_providers: [{base_url: 'http://127.0.0.1:1/v1', model: second}]\n"
    (home / "config.yaml").write_text(text, encoding="utf-8")
    model = model_for(base_url="http://127.0.0.1:2/v1", model="first", window=1_000)
    assert [each.window for each in model._models] == [1_000, None]


def test_the_window_is_the_one_that_a_server_here_serves_with():
    listing = document({"data": [{"id": "qwen3-coder", "max_model_len": 8_192}, {"id": "odd"}]})
    with Loopback(listing=listing) as server:
        assert model_for(base_url=server.url, model="qwen3-coder").window == 8_192
        assert model_for(base_url=server.url, model="odd").window is None
        asked = len(server.asked)
        assert model_for(base_url=server.url, model="odd", window=1_000).window == 1_000
        assert len(server.asked) == asked
    assert model_for(base_url=server.url, model="qwen3-coder").window == 262_144


def test_a_provider_is_not_asked_for_a_window_that_is_known(monkeypatch):
    monkeypatch.setattr(servers, "window_at", lambda *_, **__: pytest.fail("asked"))
    assert model_for(base_url="https://models.example/v1", model="gpt-4o").window == 128_000
