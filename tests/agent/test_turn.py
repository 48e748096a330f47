"""A turn as a value, its progress on a terminal, and the agent without Jupyter."""

from __future__ import annotations

import io
import subprocess
import sys

import pytest
from hermes_nb import Hermes
from hermes_nb.agent.api import CLEAR, VARIABLE, ProgressLine, wanted
from hermes_nb.core.messages import Message, Reply, Usage
from hermes_nb.core.text import amount, used
from hermes_nb.models.scripted import ScriptedModel, call
from hypothesis import given
from hypothesis import strategies as st


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_a_turn_shows_itself_with_what_it_used():
    usage = Usage(input=1_000, cached=500, output=20, requests=1, cost=0.0123)
    reply = Reply(message=Message.assistant("**42** <script>x</script>"), usage=usage, model="m")
    with Hermes(ScriptedModel([reply])) as hermes:
        turn = hermes.ask("?")
    shown = turn._repr_markdown_()
    assert shown.startswith("**42**")
    assert "<script>" not in shown
    assert str(turn) == turn.text
    assert turn.status == "✓ · m · 1 request · 1.0k in (50 % cached) · 20 out · $0.012"
    assert "0.012" in shown
    assert turn.model == "m"


def test_a_failed_turn_says_why_in_its_status():
    with Hermes(ScriptedModel([RuntimeError("broken")])) as hermes:
        turn = hermes.ask("?")
    assert turn.status.startswith("✗ · RuntimeError: broken")
    assert "broken" in turn._repr_markdown_()


def test_a_scripts_session_has_a_budget_too(monkeypatch):
    monkeypatch.setenv("HERMES_NB_BUDGET_TOKENS", "20")
    with Hermes(ScriptedModel(["never"])) as hermes:
        turn = hermes.ask("?")
    assert turn.reason == "budget"
    assert "20 tokens for this session" in turn.note


def test_progress_is_one_line_that_goes(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with Hermes(ScriptedModel([call("list_files", path="."), "Two files."], delay=0.08)) as hermes:
        hermes.ask("Which files?")
    written = terminal.getvalue()
    assert "list_files ." in written
    assert "answering" in written
    assert "\n" not in written
    assert written.endswith(CLEAR)


@pytest.mark.parametrize(
    ("stream", "environment"),
    [(io.StringIO(), {}), (Terminal(), {VARIABLE: "0"}), (Terminal(), {"TERM": "dumb"})],
)
def test_where_nobody_looks_there_is_no_progress(monkeypatch, stream, environment):
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv(VARIABLE, raising=False)
    assert wanted(Terminal())
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not wanted(stream)


@given(st.lists(st.text(max_size=300), max_size=5))
def test_no_text_breaks_the_line(texts):
    terminal = Terminal()
    line = ProgressLine(terminal)
    for text in texts:
        line._show(text)
    for shown in terminal.getvalue().split(CLEAR):
        assert len(shown) <= 80
        assert not set(shown) & {"\n", "\r", "\x1b"}


def test_progress_can_be_switched_off(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    hermes = Hermes(ScriptedModel(["x"]))
    hermes.progress = False
    with hermes:
        hermes.ask("?")
    assert not terminal.getvalue()


WITHOUT = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Block())
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel, call
with Hermes(ScriptedModel([call("list_files"), "ok"])) as hermes:
    turn = hermes.ask("hello")
print(turn.text, turn.reason, turn._repr_markdown_()[:2])
"""
JUPYTER = (
    "IPython ipykernel ipywidgets traitlets nbformat nbclient comm jupyter_client jupyter_core"
)


def test_it_works_where_there_is_no_jupyter(tmp_path):
    code = WITHOUT.format(blocked=set(JUPYTER.split()))
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert out.returncode == 0, out.stderr
    assert out.stdout.split() == ["ok", "answered", "ok"]
    assert not out.stderr


@given(st.integers(0, 10**11))
def test_amounts_are_short(tokens):
    assert len(amount(tokens)) <= 9
    assert used(Usage()) == []
