"""Toolsets that have to be named: questions with choices, several models, pictures; own ones."""

from __future__ import annotations

import base64

import pytest
from hermes_nb import Hermes
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.events import ApprovalAsked, ApprovalGiven
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.approval import answer_of, question_line

from tests.loopback import Loopback, calls, says
from tests.notebook.conftest import desk, shell

__all__ = ["desk", "shell"]

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
ASKING = call("clarify", question="Which year?", choices=["2008", "2009"])


class Typing:
    """Somebody who answers questions by typing."""

    def __init__(self, *typed):
        self.typed = list(typed)
        self.seen = []

    async def ask(self, request):
        self.seen.append((request.shown, request.choices, question_line(request)))
        return answer_of(self.typed.pop(0), request)


def results(model):
    return [m.text for m in model.requests[-1].messages if m.role == "tool"]


def write(home, text):
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.yaml").write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("typed", "read", "origin"),
    [
        ("2", "The user: 2009", "ours"),
        ("neither, 2010\n", "The user: neither, 2010", "user"),
        ("\n", "The user chose not to answer.", "ours"),
    ],
)
def test_a_question_is_answered_by_number_or_in_own_words(tmp_path, typed, read, origin):
    somebody = Typing(typed)
    model = ScriptedModel([ASKING, "Good."])
    with Hermes(model, cwd=tmp_path, tools=["clarify"], approve=somebody) as hermes:
        turn = hermes.ask("Count them.")
    assert results(model)[0].startswith(read)
    assert somebody.seen[0][:2] == ("Which year?", ("2008", "2009"))
    assert "1. 2008\n2. 2009\n" in somebody.seen[0][2]
    assert model.requests[-1].messages[-1].origin == origin
    assert any(isinstance(event, ApprovalAsked) for event in turn.events)


def test_where_nobody_is_there_the_model_is_told_to_decide(tmp_path):
    model = ScriptedModel([ASKING, "I took 2009."])
    with Hermes(model, cwd=tmp_path, tools=["clarify"]) as hermes:
        turn = hermes.ask("Count them.")
    assert turn.text == "I took 2009."
    (given,) = [event for event in turn.events if isinstance(event, ApprovalGiven)]
    assert given.reason == "no one was available to answer"
    assert results(model)[0].startswith("No one is available to answer. Decide with what you know")


def test_a_cell_shows_what_was_answered(desk, monkeypatch):
    monkeypatch.setattr("hermes_nb.notebook.approval.can_ask", lambda _: True)
    monkeypatch.setattr("builtins.input", lambda _: "1")
    desk.plays(ASKING, "Fine.")
    assert desk.ask("Count them.", tools="default,clarify") == "Fine."
    assert "answered: 2008" in desk.agent.last.finished()


@pytest.mark.new_prefix
def test_named_toolsets_are_off_until_they_are_named(desk, home):
    groups = "{look: [vision, files], ask: [clarify, look], here: [there], there: [here]}"
    write(home, f"hermes_nb:\n  toolsets: {groups}\n")
    desk.plays("a", "b", "c", "d", "e")
    desk.ask()
    assert not {"clarify", "web_fetch", "view_image", "ask_models"} & set(tools(desk))
    desk.ask(tools="clarify,files")
    assert set(tools(desk)) >= {"clarify", "read_file"} and "terminal" not in tools(desk)
    desk.ask(tools="look")
    assert set(tools(desk)) >= {"view_image", "read_file"} and "clarify" not in tools(desk)
    with pytest.raises(ConfigError, match="'here' contains itself"):
        desk.ask(tools="here")
    desk.ask(tools="ask")
    assert set(tools(desk)) >= {"view_image", "clarify"} and "terminal" not in tools(desk)
    desk.ask(tools="default,look")
    assert set(tools(desk)) >= {"view_image", "terminal"}


def tools(desk):
    return [tool.name for tool in desk.model.requests[-1].tools]


def test_the_usual_toolset_may_have_more_and_a_wrong_name_is_said(home, tmp_path):
    write(home, "hermes_nb:\n  toolsets: {default: [default, clarify], files: [files, clarify]}\n")
    model = ScriptedModel(["a"])
    with Hermes(model, cwd=tmp_path) as hermes:
        hermes.ask("go")
    names = [tool.name for tool in model.requests[0].tools]
    assert "clarify" in names and "terminal" in names
    with pytest.raises(ConfigError, match="did you mean 'clarify'"):
        Hermes(ScriptedModel(["a"]), cwd=tmp_path, tools=["clarfy"]).ask("go")
    with Hermes(model := ScriptedModel(["a"]), cwd=tmp_path, tools=["files"]) as hermes:
        hermes.ask("go")
    assert {"read_file", "clarify"} <= {tool.name for tool in model.requests[0].tools}


def test_a_picture_is_looked_at_and_described_where_the_model_is_blind(home, tmp_path):
    (tmp_path / "chart.png").write_bytes(PIXEL)
    (tmp_path / "notes.txt").write_text("no picture")
    looking = calls(
        ("view_image", {"path": "chart.png", "question": "Which bar is highest?"}),
        ("view_image", {"path": "notes.txt"}),
    )
    with Loopback(says("May is highest.")) as eyes, Loopback(looking, says("May.")) as main:
        write(home, f"auxiliary: {{vision: {{model: eyes, base_url: '{eyes.url}'}}}}\n")
        with Hermes("qwen3-coder", base_url=main.url, cwd=tmp_path, tools=["vision"]) as hermes:
            turn = hermes.ask("Look.")
    assert turn.text == "May."
    asked = str(eyes.bodies[0])
    assert "image_url" in asked and "Which bar is highest?" in asked
    sent = str(main.bodies[1]["messages"])
    assert "as eyes describes it]\\nMay is highest." in sent and "image_url" not in sent
    refused = [m.text for m in turn.messages if m.role == "tool"][1]
    assert "'notes.txt' is text/plain" in refused
