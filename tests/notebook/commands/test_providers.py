"""The providers of docs/howto/choose-a-model.md, each by the line that names it, in one session.

A server of this machine is the proxy to all of them, so hosts, paths and keys are the real ones;
only TLS is left out.
"""

from __future__ import annotations

import re
from dataclasses import replace
from urllib.parse import urlsplit

from hermes_nb.agent.settings.endpoints import PROVIDERS
from hermes_nb.models import profiles

from tests.docs.blocks import ROOT
from tests.loopback import Loopback
from tests.notebook.conftest import desk, shell
from tests.wires import Said

__all__ = ["desk", "shell"]

AZURE = "http://mine.openai.azure.com"
HEADERS = {"anthropic": "x-api-key"}
WIRES = {"Messages": "messages", "Responses": "responses", "chat completions": "chat"}
PATHS = {"messages": "/messages", "responses": "/responses", "chat": "/chat/completions"}


def recipes():
    """Return provider, model, variables and protocol of each line of the table that names one."""
    text = (ROOT / "docs" / "howto" / "choose-a-model.md").read_text("utf-8")
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        model = re.match(r"`((\w+)/[^`…]+)`", cells[1]) if len(cells) == 4 else None
        if model and model[2] in PROVIDERS:
            wire = WIRES[cells[3].partition(";")[0]]
            yield model[2], model[1], re.findall(r"`([A-Z_]+)`", cells[2]), wire


RECIPES = [*recipes(), ("openai", "openai/gpt-5-pro", ["OPENAI_API_KEY"], "responses")]


def test_every_provider_has_a_recipe():
    assert {name for name, *_ in RECIPES} == set(PROVIDERS)


def test_one_session_goes_through_every_provider(desk, monkeypatch, tmp_path):
    """With a call of a tool on each: what one protocol has recorded, the next one sends."""
    monkeypatch.chdir(tmp_path)
    for name, known in PROVIDERS.items():
        plain = (known.base_url or profiles.OPENAI).replace("https://", "http://")
        monkeypatch.setitem(PROVIDERS, name, replace(known, base_url=plain))
    replies = []
    for name, _, _, wire in RECIPES:
        replies += [Said("", "hm", [("list_files", {})]), Said(f"by {name}")]
        replies[-2:] = [said.on(wire) for said in replies[-2:]]
    with Loopback(*replies) as proxy:
        for variable in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(variable, proxy.url.removesuffix("/v1"))
        monkeypatch.setenv("NO_PROXY", "")
        for number, (name, model, variables, wire) in enumerate(RECIPES):
            if name == "ollama":  # is on this machine, which no proxy leads to
                monkeypatch.setitem(PROVIDERS, name, replace(PROVIDERS[name], base_url=proxy.url))
            for variable in variables:
                value = AZURE if "ENDPOINT" in variable else f"key-{name}"
                monkeypatch.setenv(variable, value)
            desk(f"model {model}")
            desk.ask("look around")
            asked = proxy.exchanges[-2:]
            assert len(proxy.exchanges) == 2 * number + 2
            for exchange in asked:
                address = PROVIDERS[name].base_url.replace("$AZURE_OPENAI_ENDPOINT", AZURE)
                host = exchange.headers["host"].partition(":")[0]
                assert exchange.path.endswith(PATHS[wire])
                assert host == urlsplit(address).hostname
                assert exchange.json["model"] == model.partition("/")[2]
                if variables:
                    sent = exchange.headers[HEADERS.get(name, "authorization")]
                    assert sent.removeprefix("Bearer ") == f"key-{name}"
            told = desk.agent.session.messages
            assert told[-1].text == f"by {name}"
            assert [each.role for each in told].count("tool") == number + 1
