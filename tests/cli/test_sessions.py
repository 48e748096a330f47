"""`jupyter hermes sessions` and `export`, over a store that turns have written."""

from __future__ import annotations

import json

import pytest
from hermes_nb.agent.session.export import FORMATS
from hermes_nb.cli.main import main
from hermes_nb.core.messages import Message, Text
from hermes_nb.memory.sessions import SqliteStore

from tests.cli.conftest import KEY


@pytest.fixture
def stored(home):
    """Return the id of one of two sessions, with a secret and with what would steer a terminal."""
    home.mkdir()
    store = SqliteStore(home / "notebook.db")
    first = store.start(title="first \x1b[2J", notebook="/n/penguins.ipynb")
    store.append(first, Message.user(f"how heavy are penguins? {KEY}"))
    store.append(first, Message.assistant("About four \x1b]0;owned\x07kilograms."))
    second = store.start(title="second")
    added = (Text("something else"), Text("[Notebook context] a walrus in cell 3"))
    store.append(second, Message(role="user", parts=added))
    store.close()
    return first


def test_lists(stored, capsys):
    assert main(["sessions"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [("second" in lines[0]), ("penguins.ipynb" in lines[1])] == [True, True]
    assert "\x1b" not in "".join(lines)
    assert main(["sessions", "--limit", "1", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["title"], row["messages"]) == ("second", 1)


def test_search(stored, capsys):
    assert main(["sessions", "--search", "penguins kilograms"]) == 0
    said = capsys.readouterr().out
    assert stored in said
    assert KEY not in said
    assert "\x1b" not in said
    assert main(["sessions", "--search", "walrus", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


@pytest.mark.parametrize("form", FORMATS)
def test_export(stored, capsys, tmp_path, form):
    path = tmp_path / "out"
    assert main(["export", stored, "--format", form, "-o", str(path)]) == 0
    assert path.stat().st_mode & 0o777 == 0o600
    capsys.readouterr()
    assert main(["export", stored[:-1], "--format", form]) == 0
    said = capsys.readouterr().out
    assert said == path.read_text(encoding="utf-8")
    assert "kilograms" in said
    assert KEY not in said
    assert main(["export", stored, "-o", str(path)]) == 1
    assert "already exists" in capsys.readouterr().err


def test_where_there_are_none(home, capsys):
    for words in (["sessions"], ["sessions", "--search", "x"]):
        assert main(words) == 0
        assert "nothing was found" in capsys.readouterr().err
    assert main(["sessions", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"
    assert main(["export", "none"]) == 1
    assert "there are no sessions" in capsys.readouterr().err
    assert not home.exists()


def test_a_name_that_is_no_session_or_several(stored, capsys):
    assert main(["export", "none"]) == 1
    assert "there is no session 'none'" in capsys.readouterr().err
    assert main(["export", stored[:8]]) == 1
    assert "several sessions match" in capsys.readouterr().err


def test_a_damaged_store_is_said(home, capsys):
    home.mkdir()
    (home / "notebook.db").write_bytes(b"no database at all" * 100)
    assert main(["sessions"]) in (0, 1)
    said = capsys.readouterr().err
    assert "notebook.db" in said
    assert "Traceback" not in said
