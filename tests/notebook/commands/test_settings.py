"""`%hermes config` and `%hermes models`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Literal, get_args, get_origin

import pytest
import yaml
from hermes_nb.core.errors import ConfigError

from tests.loopback import Loopback, document, stream, text_chunks


def row(told, key):
    return next(line for line in told.splitlines() if f"`{key}`" in line)


def test_every_setting_has_a_value_and_a_source(desk, home, monkeypatch):
    home.mkdir()
    (home / "config.yaml").write_text(
        "hermes_nb:\n  approve: edits\ncompression:\n  threshold: 0.4\n"
    )
    monkeypatch.setenv("HERMES_NB_MAX_REQUESTS", "7")
    told = desk("config")
    assert row(told, "approve") == "| `approve` | edits | config.yaml, hermes_nb |"
    assert row(told, "compression.threshold") == "| `compression.threshold` | 0.4 | config.yaml |"
    assert "HERMES_NB_MAX_REQUESTS" in row(told, "max_requests")
    assert "default" in row(told, "window")
    for field in dataclasses.fields(desk.agent.settings().compression):
        assert field.name[:7] in told or field.name == "engine"


def test_a_setting_holds_for_this_kernel_and_goes_again(desk):
    desk.plays("one", "two")
    desk.ask("a")
    before = desk.agent.runtime
    assert "this kernel" in desk("config compression.threshold 0.7")
    assert desk.agent.settings().compression.threshold == 0.7
    assert desk.agent.runtime is not before
    desk.ask("b")
    assert len(desk.agent.session.messages) == 4
    assert "default" in desk("config compression.threshold default")
    assert desk.agent.settings().compression.threshold == 0.5


def words(setting):
    """Return two values of a setting as they are typed."""
    if get_origin(setting.kind) is Literal:
        return [each for each in get_args(setting.kind) if each][-2:]
    if setting.kind in (int, float):
        return [setting.text(setting.least or 1), setting.text(min(setting.most, 3_000))]
    return {bool: ["true", "false"], str: ["text", "7"], tuple: ["a", "[a, b]"]}[setting.kind]


def test_every_setting_is_set_and_reset_and_described(desk):
    """`config KEY VALUE` is what turns get, `config KEY` shows it and `default` takes it back."""
    before = desk.agent.settings()
    keyed = [s for s in before.declared.values() if s.read is None and s.kind is not Mapping]
    for setting in (s for s in keyed if not (s.secret or s.file_only)):
        key = setting.key
        if key in ("memory.provider", "session_store", "context.engine"):  # need a package
            continue
        for word in words(setting):
            desk(f"config {key} {word}")
            found = desk.agent.settings()
            assert setting.converted(found.values[key]) == setting.converted(yaml.safe_load(word))
            assert "| this kernel |" in row(desk(f"config {key}"), key)
        assert setting.expected in desk(f"config {key} default")
        assert setting.description in desk(f"config {key}")
        assert key not in desk.agent.settings().sources
    assert desk.agent.settings() == before
    assert len(keyed) > 50


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("config mcp.allow files", "can only be set in config.yaml"),
        ("config gateway x", "can only be set in config.yaml"),
        ("config prompt_caching.cache_ttl 10m", "given here.; expected 5m or 1h"),
        ("config compression.treshold 0.3", "did you mean compression.threshold"),
        ("config compression.threshold 7", "expected 0.05 to 0.95"),
        ("config approve sometimes", "expected ask, edits, all or never"),
        ("config api_key sk-something", "environment"),
        ("config zzzz", "lists them"),
    ],
)
def test_what_cannot_be_set_is_said_and_changes_nothing(desk, line, told):
    before = desk.agent.settings()
    with pytest.raises(ConfigError, match=told):
        desk(line)
    assert desk.agent.settings() == before


def test_a_key_is_never_shown(desk, monkeypatch):
    key = "sk-proj-" + "a1B2c3D4" * 6
    monkeypatch.setenv("HERMES_NB_API_KEY", key)
    told = desk("config")
    assert key not in told
    assert "set, not shown" in row(told, "api_key")


def test_words_that_yaml_takes_for_switches_stay_words(desk):
    desk("config cassette off")
    assert desk.agent.settings().cassette == "off"
    desk("config skills.enabled off")
    assert desk.agent.settings().skills.enabled is False
    desk("config vision on")
    assert desk.agent.settings().vision is True


def test_the_models_at_hand(desk, monkeypatch):
    with Loopback(stream(text_chunks("x"))) as server:
        monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
        monkeypatch.setenv("HERMES_NB_MODEL", "gpt-4o")
        told = desk("models")
    assert "128.0k | yes | yes | not known" in row(told, "gpt-4o")


def test_models_of_every_provider_with_a_key_are_listed(desk, monkeypatch):
    """Besides the one in use: by the name that chooses it, with window, tools, images and price."""
    listed = document({"object": "list", "data": [{"id": "gpt-4o"}, {"id": "grok-4"}]})
    with Loopback(listing=listed) as azure:
        monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", azure.url.removesuffix("/v1"))
        monkeypatch.setenv("AZURE_OPENAI_API_KEY", "opaque;key-0815")
        told = desk("models")
    assert "offered | 128.0k | yes | yes | not known" in row(told, "azure/gpt-4o")
    assert [each.path for each in azure.asked] == ["/openai/v1/models"]
    assert azure.asked[0].headers["authorization"] == "Bearer opaque;key-0815"
    assert "opaque" not in told


def test_help_says_what_one_command_takes(desk):
    assert (
        "`%hermes undo [TURN] [--to TURN] [--keep-variables] [checkpoint] [--force] [of SESSION…]`"
    ) in desk("help undo")
    with pytest.raises(ConfigError, match="no command"):
        desk("help nothing")
