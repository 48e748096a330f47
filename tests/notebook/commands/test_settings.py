"""`%hermes config` and `%hermes models`."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.notebook.commands.table import find, perform
from hermes_nb.notebook.kernel_agent import Resident
from hermes_nb.notebook.reference import help_

from tests.loopback import Loopback, stream, text_chunks


@pytest.fixture
def resident(shell, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = Resident(shell, say=print)
    yield found
    found.close()


def run(resident, line):
    command, words = find(line)
    return asyncio.run(perform(command, resident, words))


def row(told, key):
    return next(line for line in told.splitlines() if f"`{key}`" in line)


def test_every_setting_has_a_value_and_a_source(resident, home, monkeypatch):
    home.mkdir()
    (home / "config.yaml").write_text(
        "hermes_nb:\n  approve: edits\ncompression:\n  threshold: 0.4\n"
    )
    monkeypatch.setenv("HERMES_NB_MAX_REQUESTS", "7")
    told = run(resident, "config")
    assert row(told, "approve") == "| `approve` | edits | config.yaml, hermes_nb |"
    assert row(told, "compression.threshold") == "| `compression.threshold` | 0.4 | config.yaml |"
    assert "HERMES_NB_MAX_REQUESTS" in row(told, "max_requests")
    assert "default" in row(told, "window")
    for field in dataclasses.fields(resident.settings().compression):
        assert field.name[:7] in told or field.name == "engine"


def test_a_setting_holds_for_this_kernel_and_goes_again(resident):
    resident.use(ScriptedModel(["one", "two"]))
    asyncio.run(resident.ask("a"))
    before = resident.workshop
    assert "this kernel" in run(resident, "config compression.threshold 0.7")
    assert resident.settings().compression.threshold == 0.7
    assert resident.workshop is not before
    asyncio.run(resident.ask("b"))
    assert len(resident.session.messages) == 4
    assert "default" in run(resident, "config compression.threshold default")
    assert resident.settings().compression.threshold == 0.5


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("config compression.treshold 0.3", "did you mean compression.threshold"),
        ("config compression.threshold 7", "use 0.05 to 0.95"),
        ("config approve sometimes", "use one of"),
        ("config api_key sk-something", "environment"),
        ("config zzzz", "lists them"),
    ],
)
def test_what_cannot_be_set_is_said_and_changes_nothing(resident, line, told):
    before = resident.settings()
    with pytest.raises(ConfigError, match=told):
        run(resident, line)
    assert resident.settings() == before


def test_a_key_is_never_shown(resident, monkeypatch):
    key = "sk-proj-" + "a1B2c3D4" * 6
    monkeypatch.setenv("HERMES_NB_API_KEY", key)
    told = run(resident, "config")
    assert key not in told
    assert "set, not shown" in row(told, "api_key")


def test_words_that_yaml_takes_for_switches_stay_words(resident):
    run(resident, "config cassette off")
    assert resident.settings().cassette == "off"
    run(resident, "config skills.enabled off")
    assert resident.settings().skills.enabled is False
    run(resident, "config vision on")
    assert resident.settings().vision is True


def test_the_models_at_hand(resident, monkeypatch):
    with Loopback(stream(text_chunks("x"))) as server:
        monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
        monkeypatch.setenv("HERMES_NB_MODEL", "gpt-4o")
        told = run(resident, "models")
    assert "128.0k | yes | yes | not known" in row(told, "gpt-4o")
    assert "embedded" in told


def test_help_says_what_one_command_takes(resident):
    assert "`%hermes undo [TURN] [--force]`" in help_(resident, "undo")
    with pytest.raises(ConfigError, match="no command"):
        help_(resident, "nothing")
