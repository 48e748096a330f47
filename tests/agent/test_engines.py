"""Context engines in whole sessions: chosen by settings, with their tools, and undone."""

from __future__ import annotations

import pytest
from hermes_nb import Hermes
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import ContextCompressed
from hermes_nb.core.text import estimate_tokens
from hermes_nb.models.scripted import ScriptedModel, call

FILLER = "line of a log that nobody reads twice\n" * 400


@pytest.fixture
def work(tmp_path):
    for n in range(8):
        (tmp_path / f"f{n}.log").write_text(f"ERROR: port {8100 + n} is taken\n{FILLER}")
    return tmp_path


def steps(*last):
    reads = [step for n in range(8) for step in (call("read_file", path=f"f{n}.log"), f"Read {n}.")]
    return [*reads, *last]


def test_the_lossless_engine_brings_its_tools(work, monkeypatch):
    monkeypatch.setenv("HERMES_NB_CONTEXT_ENGINE", "lossless")
    model = ScriptedModel(
        steps(call("context_search", query="port 8103 is taken"), "It was 8103."), window=20_000
    )
    compressed = []
    with Hermes(model, cwd=work) as hermes:
        for n in range(8):
            turn = hermes.ask(f"Read file {n}")
            compressed += [e for e in turn.events if isinstance(e, ContextCompressed)]
        assert compressed
        assert "context_expand" in model.requests[0].tools
        turn = hermes.ask("Which port was taken in file 3?")
    found = next(m.text for m in turn.messages if m.role == "tool")
    assert "8103" in found


def test_the_compressor_keeps_a_long_session_within_its_window(work):
    model = ScriptedModel([*steps(), "ok"], window=20_000)
    beside = ScriptedModel(["Nothing to save, and eight logs were read."] * 30)
    with Hermes(model, cwd=work, auxiliary=beside) as hermes:
        turns = [hermes.ask(f"Read file {n}") for n in range(8)]
        assert [turn.reason for turn in turns] == ["answered"] * 8
        assert any(isinstance(e, ContextCompressed) for turn in turns for e in turn.events)
        assert all(estimate_tokens(each.messages) < 20_000 for each in model.requests)
        assert hermes.session_id in hermes.system_prompt


def test_an_unknown_engine_is_said(work, monkeypatch):
    monkeypatch.setenv("HERMES_NB_CONTEXT_ENGINE", "wishful")
    with pytest.raises(ConfigError, match="wishful"), Hermes(ScriptedModel([]), cwd=work) as hermes:
        hermes.ask("hello")


def test_switched_off_nothing_is_compressed(work, monkeypatch):
    monkeypatch.setenv("HERMES_NB_COMPRESSION_ENABLED", "false")
    with Hermes(ScriptedModel(steps(), window=20_000), cwd=work) as hermes:
        turns = [hermes.ask(f"Read file {n}") for n in range(8)]
    assert not any(isinstance(e, ContextCompressed) for turn in turns for e in turn.events)
