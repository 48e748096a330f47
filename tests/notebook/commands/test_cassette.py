"""`%hermes cassette` on an agent, and what its deck does with models and files."""

from __future__ import annotations

import asyncio

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.models.cassette import Cassette, CassetteFiles, Deck, shelf_for
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.notebook.interrupt import TurnFailed
from hermes_nb.testing import normalise

from tests.loopback import Loopback, stream, text_chunks


@pytest.fixture
def kernel(desk, tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_NB_CASSETTE_FILE", str(tmp_path / "tape.jsonl"))
    monkeypatch.delenv("HERMES_NB_CASSETTE", raising=False)
    return desk


@pytest.fixture
def server(monkeypatch):
    with Loopback(*(stream(text_chunks(f"Answer {n}.")) for n in (1, 2, 3))) as server:
        monkeypatch.setenv("HERMES_NB_BASE_URL", server.url)
        monkeypatch.setenv("HERMES_NB_MODEL", "loopback-model")
        yield server


def test_off_is_how_it_begins_and_a_wrong_word_is_said(kernel, tmp_path, monkeypatch):
    assert "**off**" in kernel("cassette")
    assert not (tmp_path / "tape.jsonl").exists()
    with pytest.raises(ConfigError, match="takes status, record, replay"):
        kernel("cassette rewind")
    with pytest.raises(ConfigError, match="nothing was recorded"):
        kernel("cassette prune")
    monkeypatch.setenv("HERMES_NB_CASSETTE", "reply")
    with pytest.raises(ConfigError, match="reply"):
        kernel("cassette")


def test_it_records_lists_and_prunes(kernel, server, tmp_path):
    assert "sent to the model and recorded" in kernel("cassette record")
    for prompt in ("one", "two"):
        assert kernel.ask(prompt).startswith("Answer")
    told = kernel("cassette")
    assert "2, of loopback-model" in told
    assert "2 used, 0 not" in told
    assert "replay from the start" in kernel("cassette replay")
    kernel("new")
    assert kernel.ask("one") == "Answer 1."
    told = kernel("cassette status")
    assert "1 used, 1 not" in told
    assert "- “one” → Answer 2." not in told
    assert "→ Answer 2." in told
    with (tmp_path / "tape.jsonl").open("a") as file:
        file.write("<script>\n")
    assert "tape.jsonl, line 7" in kernel("cassette")
    told = kernel("cassette prune")
    assert told.startswith("1 recordings")
    assert "1 used, 0 not" in kernel("cassette")
    assert len(server.bodies) == 2


def test_a_miss_fails_the_turn_and_is_shown_in_full(kernel, server):
    kernel("cassette record")
    kernel.ask("how many rows?")
    kernel("cassette replay")
    kernel("new")
    with pytest.raises(TurnFailed, match="how many columns"):
        kernel.ask("how many columns?")
    assert "recorded: “…how many rows" in kernel("cassette").replace("“how", "“…how")
    assert len(server.bodies) == 1


def test_off_goes_back_to_the_model(kernel, server):
    kernel("cassette auto")
    assert kernel.ask("one") == "Answer 1."
    kernel("cassette off")
    kernel("new")
    assert kernel.ask("one") == "Answer 2."


def test_a_model_that_was_handed_over_is_not_recorded(kernel, tmp_path):
    kernel.agent.use(ScriptedModel(["scripted"]))
    assert "passed as an object" in kernel("cassette record")
    assert kernel.ask("one") == "scripted"
    assert not (tmp_path / "tape.jsonl").exists()


def test_the_users_normaliser_is_part_of_the_key(shell, server, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HERMES_NB_CASSETTE", "auto")
    with pytest.raises(ConfigError, match="load_ext"):
        normalise(str.lower)
    shell.run_line_magic("load_ext", "hermes_nb")
    normalise(str.lower)
    agent = shell.magics_manager.registry["HermesMagics"].agent
    assert asyncio.run(agent.ask("HELLO")) == "Answer 1."
    agent.new()
    assert asyncio.run(agent.ask("hello")) == "Answer 1."
    shell.run_line_magic("unload_ext", "hermes_nb")


# --- the deck


def deck(mode, path):
    return Deck(mode=lambda: mode, shelf=lambda: CassetteFiles(path), home=lambda: path.parent)


def test_a_deck_makes_models_only_where_they_may_be_asked(tmp_path):
    def none():
        raise ConfigError("no model")

    path = tmp_path / "a.jsonl"
    model = ScriptedModel(["one"])
    assert deck("off", path).wrap(lambda: model) is model
    assert isinstance(deck("replay", path).wrap(none), Cassette)
    assert isinstance(deck("auto", path).wrap(none), Cassette)
    assert deck("auto", path).wrap(lambda: model).name == "scripted"
    for mode in ("record", "off"):
        with pytest.raises(ConfigError, match="no model"):
            deck(mode, path).wrap(none)
    with pytest.raises(ConfigError):
        _ = deck("loud", path).mode


def test_where_a_cassette_lies(tmp_path):
    home = tmp_path / "home"
    (tmp_path / "b.hermes.jsonl").write_text("")

    def at(**options):
        return shelf_for(home=home, cwd=tmp_path, **{"mode": "replay", **options})

    assert at(explicit=str(tmp_path / "x.jsonl"), notebook="/n.ipynb").path == tmp_path / "x.jsonl"
    assert at(notebook=str(tmp_path / "n.ipynb")) == CassetteFiles(tmp_path / "n.hermes.jsonl")
    unknown = at()
    assert unknown.path.parent == home / "cassettes"
    assert unknown.private
    assert unknown.also == (tmp_path / "b.hermes.jsonl",)
    assert at(mode="record").also == ()
    assert not home.exists()
