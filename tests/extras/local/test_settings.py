"""Where settings lead to the built-in model, and what is said of it."""

from __future__ import annotations

import pytest
from hermes_nb.agent.models import build_model
from hermes_nb.agent.settings.config import Settings, load_settings
from hermes_nb.core.errors import ConfigError
from hermes_nb.extras.local.model import EmbeddedModel
from hermes_nb.models.installed import Endpoint, model_names
from hermes_nb.models.profiles import traits_of
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.notebook.commands.doctor import endpoints
from hermes_nb.notebook.commands.table import Completions
from hermes_nb.notebook.magics import HermesMagics

from tests.agent.test_filling import parts
from tests.notebook.conftest import desk, shell

__all__ = ["desk", "shell"]


class Small(ScriptedModel):
    traits = EmbeddedModel().traits


def test_without_anything_it_is_the_embedded_model():
    pytest.importorskip("xllamacpp")
    model = build_model(load_settings(environ={"HERMES_NB_LOCAL_SERVERS": "off"}))
    assert "qwen2.5-coder" in model.name
    assert "often wrong" in traits_of(model).notice
    other = build_model(load_settings(environ={}, overrides={"model": "gpt-x", "api_key": "k"}))
    assert not traits_of(other).notice


def test_it_is_told_of_a_few_tools(tmp_path):
    found = parts(model := Small(["hi"]), tmp_path)["tools"]
    assert int(found.name.split()[0]) <= 4 < len(model.requests[0].tools)


def test_without_its_library_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"xllamacpp; pip install \"hermes_nb\[local\]\""):
        build_model(load_settings(environ={}, overrides={"model": "embedded"}))


def test_it_needs_no_server(tmp_path):
    end = Endpoint(model="embedded")
    assert endpoints(Settings(home=tmp_path, endpoint=end)) == []


def test_its_name_is_offered_first_and_listed(desk):
    assert model_names()[0] == "embedded"
    assert "embedded" in desk("models")


@pytest.mark.parametrize("typed", ["%%hermes --model e", "%hermes model emb"])
def test_its_name_is_completed(typed, shell):
    found = Completions(HermesMagics(shell)).offered(typed)
    assert found is not None and found[1] == ["embedded"]
