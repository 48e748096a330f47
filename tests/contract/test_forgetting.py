"""What was forgotten is in no file of the home, and nothing else is missing."""

from __future__ import annotations

import threading
from contextlib import closing

import pytest
from hermes_nb import use_model
from hermes_nb.core.errors import ConfigError
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call
from IPython.core.interactiveshell import InteractiveShell

from tests.faults.stores import is_intact

WORDS = ("quetzalcoatl", "popocatepetl", "axolotlian", "tlahuizcalli")


def traces(home):
    """Return which of the words stand in which files of the home."""
    files = [path for path in home.rglob("*") if path.is_file()]
    found = [(path, word) for path in files for word in WORDS if word.encode() in path.read_bytes()]
    return {(str(path.relative_to(home)), word) for path, word in found}


def left(home):
    return len(list(home.glob("outputs/*"))), len(list(home.glob("checkpoints/blobs/*")))


@pytest.fixture
def run(home, tmp_path, monkeypatch, capsys):
    """Return a function that runs a cell of a shell and returns what it prints."""
    work = tmp_path / "work"
    work.mkdir()
    (work / "garden.txt").write_text("axolotlian\n" * 9_000, encoding="utf-8")
    monkeypatch.chdir(work)
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


@pytest.fixture
def garden(run, home):
    """Take turns in a session that is to be forgotten, and in one that stays; return its id."""
    steps = [
        call("terminal", command="cat garden.txt"),
        call("write_file", path="garden.txt", content="tlahuizcalli"),
        "The popocatepetl is a volcano.",
        "A new one.",
    ]
    use_model(ScriptedModel(steps))
    run("%%hermes --approve all --session secret\nWhat is quetzalcoatl?")
    run("%%hermes --new --session kept\nA walrus, please.")
    with closing(SqliteStore(home / "notebook.db")) as store:
        store.search("quetzalcoatl")
        return next(each.id for each in store.sessions() if each.title == "secret")


def check_forgotten(home):
    assert traces(home) == set()
    assert left(home) == (0, 0)
    with closing(SqliteStore(home / "notebook.db")) as store:
        assert [session.title for session in store.sessions()] == ["kept"]
        assert [hit.snippet for hit in store.search("walrus", roles=("user",))]
        assert [hit.snippet for hit in store.search("walru")], "the list of words is whole"
    assert is_intact(home / "notebook.db")


def test_a_session_is_deleted_after_one_question(run, garden, home, monkeypatch):
    assert {word for _, word in traces(home)} >= {"quetzalcoatl", "popocatepetl", "axolotlian"}
    assert min(left(home)) > 0
    asked = []
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, said in (("", "Nothing was deleted."), ("y", "Deleted 1 session")):
        monkeypatch.setattr("builtins.input", lambda q, a=answer: asked.append(q) or a)
        assert said in run(f"%hermes sessions delete {garden}")
    assert len(asked) == 2
    assert "1 session (6 messages, " in asked[0] and " MB)" in asked[0]
    check_forgotten(home)


def test_where_nobody_can_be_asked_it_has_to_be_said(run, garden, home):
    for words, why in (
        (f"delete {garden}", r"`--yes` to delete 1 session \(6 messages, "),
        ("delete --older-than soon --yes", "invalid number value"),
        ("delete kept --yes", "run `%hermes new` first"),
        ("delete nothing --yes", "no session 'nothing'"),
    ):
        with pytest.raises(ConfigError, match=why):
            run(f"%hermes sessions {words}")
    (output,) = home.glob("outputs/*")
    kept = output.rename(home / "kept.txt")
    output.mkdir()  # it cannot be removed as a file can
    with pytest.raises(ConfigError, match="run the same line again"):
        run(f"%hermes sessions delete {garden} --yes")
    output.rmdir()
    kept.rename(output)
    tried = call("run_python", code=f"%hermes sessions delete {garden} --yes")
    model = ScriptedModel([tried, "It did not work."])
    use_model(model)
    run("%%hermes --approve all\nForget it.")
    assert "code that an agent runs cannot use this command" in model.requests[-1].messages[-1].text
    assert traces(home)
    assert "Deleted 1 session" in run(f"%hermes sessions delete {garden} --yes")
    check_forgotten(home)


def age(store, session, days):
    query = "UPDATE messages SET at = at - ? WHERE session = ?"
    store.database.write(lambda c: c.execute(query, (days * 86_400, session)))
    query = "UPDATE sessions SET started = 1.0 WHERE id = ?"
    store.database.write(lambda c: c.execute(query, (session,)))


def test_what_is_old_is_deleted_with_what_was_made_for_it(run, garden, home):
    with closing(SqliteStore(home / "notebook.db")) as store:
        age(store, garden, 100)
        child = store.start(source="child", parent=garden, title="axolotlian")
        store.append(child, Message.user("popocatepetl"))
    assert "No session is that old." in run("%hermes sessions delete --older-than 101d --yes")
    assert "Deleted 1 session (7 messages" in run("%hermes sessions delete --older-than 99d --yes")
    check_forgotten(home)


def test_sessions_are_kept_for_so_many_days(run, garden, home):
    with closing(SqliteStore(home / "notebook.db")) as store:
        age(store, garden, 100)
    (home / "config.yaml").write_text("hermes_nb: {store: {keep_days: 99}}\n", encoding="utf-8")
    run("%reload_ext hermes_nb")
    run("%hermes sessions")
    for thread in threading.enumerate():
        if thread.name == "hermes-forget":
            thread.join(60)
    assert "older than 99 days (store.keep_days)" in run("%hermes sessions")
    run("%unload_ext hermes_nb\n%load_ext hermes_nb")
    check_forgotten(home)
