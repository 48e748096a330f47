"""A home as an earlier version left it opens, and everything in it can be gone on with.

`make_home.py` says how `data/home` came to be.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from hermes_nb import Hermes, use_model
from hermes_nb.memory.curated import CuratedMemory
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.skills.library import Library
from IPython.core.interactiveshell import InteractiveShell

from tests.conftest import every_call_has_one_result
from tests.contract.make_home import AGENTS, WORK

HERE = Path(__file__).parent / "data" / "home"
FIRST, SECOND = "20261123-192254-27d411", "20261123-192256-ed2f23"
SCALES = "The scales show 12 g too much."
LIKES = "Prefers kilograms to pounds."


@pytest.fixture
def work(tmp_path, monkeypatch):
    """Return the folder of the story, as it was left."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "harvest.txt").write_text("pumpkins: 7\n", encoding="utf-8")
    (folder / "AGENTS.md").write_text(AGENTS, encoding="utf-8")
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def opened(home, work):
    """Copy the home; what is in it is of this folder, and what waits has waited for a minute."""
    shutil.copytree(HERE, home)
    home.chmod(0o700)
    for file in [home / "trust.json", *home.glob("checkpoints/*.json")]:
        text = file.read_text(encoding="utf-8")
        assert WORK in text
        file.write_text(text.replace(WORK, str(work)), encoding="utf-8")
    queue = home / "notebook-pending.json"
    pending = json.loads(queue.read_text(encoding="utf-8"))
    for each in pending["waiting"]:
        each["at"] = time.time() - 60
    queue.write_text(json.dumps(pending), encoding="utf-8")
    return home


@pytest.fixture
def run(opened, capsys, monkeypatch):
    """Return a function that runs a cell and returns what it prints, on a wide terminal."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("HERMES_NB_MODEL", "a-model")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-not-a-real-key")
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext hermes_nb").raise_error()

    def run(cell):
        capsys.readouterr()
        shell.run_cell(cell).raise_error()
        return capsys.readouterr().out

    yield run
    shell.run_line_magic("unload_ext", "hermes_nb")
    InteractiveShell.clear_instance()


def test_sessions_are_listed_found_and_gone_on_with(run, opened):
    listed = run("%hermes sessions")
    assert "How heavy is the pumpkin?" in listed
    assert "What comes next?" in listed
    assert "4.2" in run("%hermes search kilograms")
    run(f"%hermes resume {FIRST}")
    model = ScriptedModel(["Beans, then."])
    use_model(model)
    run("%%hermes\nAnd now?")
    said = model.requests[0].messages
    assert next(m.text.strip() for m in said if m.role == "user").endswith(
        "How heavy is the pumpkin?"
    )
    assert "Seven pumpkins are in harvest.txt." in [message.text for message in said]
    assert every_call_has_one_result(said)
    with closing(SqliteStore(opened / "notebook.db")) as store:
        assert [m.text for m in store.messages(FIRST)][-1] == "Beans, then."
        assert [m.text for m in store.messages(SECOND)][-1] == "A new season, a new session."
        assert {hit.session_id for hit in store.search("pumpkin")} == {FIRST}
    with closing(sqlite3.connect(opened / "notebook.db")) as database:
        assert database.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_memory_is_there_and_its_last_write_is_taken_back(run, opened):
    memory = CuratedMemory(opened)
    assert memory.entries("memory") == [SCALES]
    assert memory.entries("user") == [LIKES]
    run("%hermes memory undo")
    assert CuratedMemory(opened).entries("user") == []
    assert CuratedMemory(opened).entries("memory") == [SCALES]


def test_skills_are_there_and_their_last_change_is_taken_back(run, opened):
    library = Library([opened / "skills"])
    assert "Roll the pumpkin onto the scales." in library.view("weigh-pumpkins").text
    run("%hermes skills undo weigh-pumpkins")
    assert "Lift the pumpkin." in Library([opened / "skills"]).view("weigh-pumpkins").text


def test_what_a_turn_did_to_files_is_undone(run, work):
    run(f"%hermes resume {FIRST}")
    assert "harvest.txt" in run("%hermes diff")
    run("%hermes undo")
    assert (work / "harvest.txt").read_text() == "pumpkins: 6\n"


def test_what_waits_still_waits_and_is_saved_when_it_is_allowed(run, opened):
    assert "The barn is locked at night." in run("%hermes memory pending")
    run("%hermes memory approve 1")
    assert CuratedMemory(opened).entries("memory") == [SCALES, "The barn is locked at night."]
    assert "lock-barn" in run("%hermes skills pending")
    run("%hermes skills approve 2")
    assert "Lock it." in Library([opened / "skills"]).view("lock-barn").text
    assert json.loads((opened / "notebook-pending.json").read_text())["waiting"] == []


def test_settings_identity_trust_and_long_outputs_hold(opened, work):
    (spilled,) = (opened / "outputs").iterdir()
    steps = [
        call("read_file", path=str(spilled)),
        call("write_file", path="unasked.txt", content="a"),
        "Done.",
    ]
    with Hermes(ScriptedModel(steps), cwd=work) as hermes:
        turn = hermes.ask("Look and write.")
        assert "You are a gardener." in hermes.system_prompt
        assert "Ignore all previous instructions" in hermes.system_prompt  # the user trusts it
        assert SCALES in hermes.system_prompt
        assert "weigh-pumpkins" in hermes.system_prompt
    assert "pumpkin" in turn.messages[2].text
    assert (work / "unasked.txt").exists()  # `approve: edits`
