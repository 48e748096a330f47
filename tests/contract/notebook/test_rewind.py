"""Turns taken back: conversation, files and what is found later go back together."""

from __future__ import annotations

from pathlib import Path

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import call

from tests.notebook.conftest import desk, shell

__all__ = ["desk", "shell"]


def said(desk):
    return [message.text for message in desk.agent.session.messages if message.role != "tool"]


def test_a_turn_is_taken_back_with_its_file_and_asked_again(desk):
    write = call("write_file", path="plan.txt", content="walrus first")
    desk.plays("Noted.", write, "A plan about walruses.", "A plan about seals.", "ok")
    desk("approve edits")
    desk.ask("We count seals.")
    desk.ask("Write the plan, costs $`1+1`$.")
    assert Path("plan.txt").read_text() == "walrus first"
    desk("retry")
    assert not Path("plan.txt").exists()
    sent = [m.text for m in desk.model.requests[-1].messages if m.role == "user"]
    assert len(sent) == 2
    assert "Write the plan, costs 2$." in sent[1]
    assert "A plan about seals." in said(desk)
    assert "walrus" not in "".join(said(desk))
    assert "Nothing found" in desk("search walruses")
    assert "seals" in desk("search plan about seals")
    session = desk.agent.session
    states = [(row.message.role, row.state) for row in session.store.rows(session.id)]
    assert states[2:6] == [(r, "undone") for r in ("user", "assistant", "tool", "assistant")]
    assert {state for _, state in states[6:]} == {"active"}
    # Another kernel resumes what is left, byte for byte.
    other = SqliteStore(session.store.path)
    assert other.messages(session.id) == list(session.messages)
    other.close()
    desk.ask("Thanks.")
    assert session.agent.turns == 3


def test_several_turns_are_taken_back_to_be_edited(desk, monkeypatch):
    offered = []
    monkeypatch.setattr(desk.shell, "set_next_input", offered.append)
    write = call("write_file", path="a.txt", content="one")
    again = call("write_file", path="a.txt", content="two")
    desk.plays("Hello.", write, "One.", again, "Two.", "Third time.")
    desk("approve edits")
    for prompt in ("hi", "write one", "write two"):
        desk.ask(prompt)
    assert "2 turns taken back" in desk("retry 2 edit")
    assert offered == ["%%hermes\nwrite one"]
    assert not Path("a.txt").exists()
    assert [text for text in said(desk) if "context" not in text][-1] == "Hello."
    with pytest.raises(
        ConfigError, match="cannot undo 2 turns; this session has 1 turn that can be undone"
    ):
        desk("retry 2")


def test_what_somebody_changed_since_stops_it_unless_forced(desk):
    write = call("write_file", path="a.txt", content="one")
    desk.plays(write, "One.", "Again.")
    desk("approve edits")
    desk.ask("write one")
    Path("a.txt").write_text("mine")
    told = desk("retry")
    assert "`%hermes retry --force`" in told
    assert "The conversation stays as it is." in told
    assert "One." in said(desk)
    assert Path("a.txt").read_text() == "mine"
    desk("retry --force")
    assert not Path("a.txt").exists()
    assert said(desk)[-1] == "Again."


def test_a_turn_behind_a_compression_is_taken_back_and_the_compression_undone_later(desk):
    desk.plays(*[f"answer {n} " + "long words " * 400 for n in range(8)], "A summary.", "last", "x")
    for number in range(8):
        desk.ask(f"question {number} " + "more words " * 400)
    before = list(desk.agent.session.messages)
    assert "older messages were replaced by a" in desk("compress")
    desk.ask("one more")
    desk("retry edit")
    assert said(desk)[-1].startswith("answer 7")
    desk("compress --undo")
    assert list(desk.agent.session.messages) == before


def test_a_session_is_renamed(desk):
    desk.plays("ok")
    desk.ask("hi there")
    desk("rename Penguins in April")
    assert "Penguins in April" in desk("sessions")
    desk("new")
    assert "Resumed" in desk("resume Penguins in April")
    with pytest.raises(ConfigError, match="TITLE is missing"):
        desk("rename")


def test_a_session_branches_off_another_and_leaves_it_alone(desk):
    desk.plays("Seals it is.", "A walrus, then.", "Seals still.")
    desk.ask("We count seals.", session="main")
    main = desk.agent.session.id
    desk.ask("What if it were a walrus?", session="main.walrus")
    branch = desk.agent.session
    assert branch.id != main
    first, second = (request.messages for request in desk.model.requests)
    assert second[: len(first)] == first  # the same prefix, which a provider has cached
    desk.ask("And now?", session="main")
    assert desk.agent.session.id == main
    assert "walrus" not in "".join(said(desk))
    listed = desk("sessions")
    assert listed.index(main) < listed.index(f"└ `{branch.id}`")
    desk.plays("ok")
    desk.ask("go on", session="main.walrus")
    assert desk.agent.session.id == branch.id


def test_a_search_shows_what_was_said_and_marks_it(desk):
    desk.shell.user_ns["flipper_table"] = [1, 2]
    desk.plays("They measure **217 mm** at the flipper.", call("list_variables"), "Two | three.")
    desk.ask("How long are they?", session="birds")
    desk.ask("Anything else?", session="birds")
    told = desk("search flipper")
    assert "at the **flipper**" in told
    assert "Notebook context" not in told
    assert "Anything else" not in told  # the table's name stands in its context alone


def test_a_turn_of_which_nothing_could_be_saved_says_so(desk, capsys):
    home = desk.agent.settings().home
    home.mkdir(parents=True, exist_ok=True)
    (home / "checkpoints").write_text("no directory", encoding="utf-8")
    desk.plays(call("write_file", path="plan.txt", content="seals"), "Written.", "ok")
    desk("approve edits")
    desk.ask("Write the plan.")
    assert (
        "cannot be undone, because their previous state could not be saved: Not a directory"
        in capsys.readouterr().out
    )
    desk.ask("hi")
    assert "could not be saved" not in capsys.readouterr().out


def test_a_slip_finds_what_was_said_and_nothing_that_was_added_for_the_model(desk):
    desk.shell.user_ns["penguin"] = 1
    desk.plays("Hello.", "Twelve.")
    desk.ask("Good morning.")
    assert "Nothing found" in desk("search penguin")
    assert "Nothing found" in desk("search penguinz")
    desk.ask("Count the penguins.")
    shown = desk("search penguinz")
    assert "Count the **penguins**" in shown and "morning" not in shown
