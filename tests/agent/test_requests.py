"""What a request carries besides the conversation: effort and sampling; and what it does not."""

from __future__ import annotations

import json

import pytest
from hermes_nb.agent.models import options_for
from hermes_nb.agent.settings import config
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Message
from hermes_nb.core.protocols import Request
from hermes_nb.models.chat.client import OpenAIChat
from hermes_nb.safety.redact import STUB

from tests.faults.provider import told_by
from tests.loopback import Loopback, calls, says
from tests.notebook.conftest import shell
from tests.notebook.test_modes import magics, plays
from tests.wires import WIRES, Said

__all__ = ["magics", "shell"]

KEY = "sk-proj-" + "aB3dE5gH7jK9mN1pQ3sT5vW7yZ" * 2
ASKED = Request(messages=(Message.user("hello"),), effort="medium")


def body(base_url, **options):
    model = OpenAIChat("m", base_url=base_url, api_key="k", **options)
    return {
        k: v for k, v in json.loads(model.body(ASKED)).items() if k not in ("model", "messages")
    }


@pytest.mark.parametrize(
    ("base_url", "fields"),
    [
        ("https://api.openai.com/v1", {"reasoning_effort": "medium"}),
        ("http://127.0.0.1:1/v1", {"reasoning_effort": "medium"}),
        ("https://openrouter.ai/api/v1", {"reasoning": {"effort": "medium"}}),
        (
            "https://api.anthropic.com/v1",
            {"thinking": {"type": "enabled", "budget_tokens": 8_192}, "max_tokens": 16_384},
        ),
    ],
)
def test_effort_as_each_provider_wants_it(base_url, fields):
    sent = body(base_url, options={"effort": "high", "temperature": 0.5})
    assert sent.pop("stream")
    sent.pop("stream_options", None)
    assert sent == {**fields, "temperature": 0.5}, "a turn's own effort comes first"


def test_the_settings_reach_the_wire(home, tmp_path):
    home.mkdir()
    (home / "config.yaml").write_text(
        "hermes_nb:\n  model_options:\n    '*': {temperature: 1, top_k: 5}\n"
        "    Loopback-*: {temperature: 0, effort: low}\n    other: {seed: 1}\n"
    )
    with Loopback() as server, told_by(server, home, tmp_path / "work") as story:
        story.ask(says("Yes."))
        sent = server.bodies[0]
        assert (sent["temperature"], sent["top_k"], sent["reasoning_effort"]) == (0, 5, "low")
        assert "seed" not in sent and "effort" not in sent
    assert options_for("m", {"M": {"a": 1}, "x": {"a": 2}}) == {"a": 1}


@pytest.mark.parametrize("wire", WIRES)
def test_the_setting_for_the_protocol_reaches_the_wire(home, tmp_path, wire):
    home.mkdir()
    (home / "config.yaml").write_text(f"hermes_nb:\n  wire: {wire}\n")
    reply = Said("Yes.", "hm").on(wire)
    with Loopback(reply) as server, told_by(server, home, tmp_path / "work") as story:
        assert story.hermes.ask("go").text == "Yes."
        path = {"chat": "chat/completions"}.get(wire, wire)
        assert [each.path for each in server.exchanges] == [f"/v1/{path}"]


@pytest.mark.parametrize("wrong", ["7", "{m: 7}", "{m: {messages: []}}", "{m: {effort: huge}}"])
def test_what_is_no_option_is_refused(home, wrong):
    home.mkdir()
    (home / "config.yaml").write_text(f"hermes_nb:\n  model_options: {wrong}\n")
    with pytest.raises(ConfigError, match="model_options"):
        config.load_settings(home=home, environ={})


def test_a_cell_says_its_effort(magics, shell):
    model = plays(magics, "Yes.", "Yes.")
    assert shell.run_cell("%%hermes --effort high\nhello").success
    assert shell.run_cell("%%hermes\nhello").success
    assert [request.effort for request in model.requests] == ["high", ""]
    assert not shell.run_cell("%%hermes --effort huge\nhello").success


def test_secrets_are_not_sent(home, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "REDACTED", True)  # as an administrator sets it
    home.mkdir()
    (home / "config.yaml").write_text("hermes_nb: {redact_requests: false}\n")
    with Loopback() as server, told_by(server, home, tmp_path / "work") as story:
        (story.work / "a.txt").write_text(f"OPENAI_API_KEY={KEY}", encoding="utf-8")
        reads = calls(("read_file", {"path": "a.txt", "limit": 9}))
        story.ask(reads, says(f"It is {KEY}."), prompt=f"is it {KEY}?")
        first, second = (each.body for each in server.exchanges)
        assert second.startswith(first[: first.index(b'],"tools"')]), "the prefix stays"
        story.goes_on()
        for exchange in server.exchanges:
            assert KEY.encode() not in exchange.body
            assert exchange.body.count(STUB.encode()) >= 3
        assert KEY in str(story.hermes.messages), "what was said here stays as it is"
