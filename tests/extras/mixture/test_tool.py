"""The toolset `mixture`: the conversation's model asks several about one question."""

from __future__ import annotations

from hermes_nb import Hermes
from hermes_nb.core.events import UsageReported

from tests.loopback import Loopback, calls, says


def write(home, text):
    home.mkdir(mode=0o700, exist_ok=True)
    (home / "config.yaml").write_text(text, encoding="utf-8")


def test_several_models_are_asked_about_a_hard_question(home, tmp_path):
    with Loopback(says("Seven.")) as one, Loopback(says("Eight.")) as two, Loopback() as main:
        write(
            home,
            "hermes_nb:\n  mixture:\n    careful:\n      references:\n"
            f"        - {{model: one, base_url: '{one.url}'}}\n"
            f"        - {{model: two, base_url: '{two.url}'}}\n",
        )
        main.replies = [
            calls(("ask_models", {"question": "How many?"})),
            says("It is eight."),
            says("Eight, they say."),
        ]
        with Hermes("main", base_url=main.url, cwd=tmp_path, tools=["mixture"]) as hermes:
            turn = hermes.ask("Ask around.")
    assert turn.text == "Eight, they say."
    result = next(m.text for m in turn.messages if m.role == "tool")
    assert result.startswith("It is eight.") and "**one** · 1 request" in result
    assert "Seven." in str(main.bodies[1]), "the conversation's model weighs them"
    told = [(e.purpose, e.model) for e in turn.events if isinstance(e, UsageReported)]
    mine, theirs = ("", "loopback"), ("reference", "loopback")
    assert told == [mine, theirs, theirs, ("mixture", "mixture:careful"), mine]


def test_a_replay_asks_none_of_them(home, tmp_path, monkeypatch):
    monkeypatch.setenv("HERMES_NB_CASSETTE_FILE", str(tmp_path / "story.hermes.jsonl"))
    monkeypatch.setenv("HERMES_NB_CASSETTE", "record")
    asking = calls(("ask_models", {"question": "How many?"}))
    with Loopback(says("Seven.")) as one, Loopback(asking, says("7, I say."), says("7.")) as main:
        write(
            home,
            f"hermes_nb:\n  model: main\n  base_url: {main.url}\n"
            f"  mixture: {{m: {{references: [{{model: one, base_url: '{one.url}'}}]}}}}\n",
        )
        with Hermes(cwd=tmp_path, tools=["mixture"]) as hermes:
            told = hermes.ask("Ask around.")
    monkeypatch.setenv("HERMES_NB_CASSETTE", "replay")
    with Hermes(cwd=tmp_path, tools=["mixture"]) as hermes:
        again = hermes.ask("Ask around.")
    assert (told.text, again.text) == ("7.", "7.")
    assert again.messages == told.messages and again.usage == told.usage
