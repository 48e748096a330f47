"""What users of the session store rely on, seen on the disk and in what the model is sent."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing

import pytest
from hermes_nb import Hermes
from hermes_nb.core.errors import SessionTakenError
from hermes_nb.core.messages import Message
from hermes_nb.core.tools import ToolOutput
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.tools.schema import tool

from tests.faults.stores import filled, set_aside

PHRASE = "the walrus hid seventeen silver spoons"


def texts(store, session):
    return [message.text for message in store.messages(session)]


def test_a_damaged_file_is_not_exchanged_within_the_transaction_of_another(tmp_path):
    """What was said to be written is in the file that is there afterwards."""
    path = tmp_path / "n.db"
    (session, *_) = filled(path)
    begun, end = threading.Event(), threading.Event()

    def slowly(connection):
        connection.execute("UPDATE sessions SET title = 'written' WHERE id = ?", (session,))
        begun.set()
        end.wait(20)

    with closing(SqliteStore(path)) as writer, closing(SqliteStore(path)) as mending:
        writing = threading.Thread(target=lambda: writer.database.write(slowly))
        writing.start()
        assert begun.wait(20)
        with path.open("r+b") as file:
            file.write(b"\0" * 100)
        repairing = threading.Thread(target=mending.sessions)
        repairing.start()
        repairing.join(1)
        assert not set_aside(path), "it waits for the transaction to end"
        end.set()
        writing.join(20)
        repairing.join(60)
        assert mending.get(session).title == "written"
    assert len(set_aside(path)) == 1


def test_what_is_deleted_is_gone_from_the_file(tmp_path, monkeypatch):
    """Also with a SQLite that leaves it in the file, as it does unless it is built otherwise."""

    def as_it_comes(*arguments, **options):
        connection = connect(*arguments, **options)
        connection.execute("PRAGMA secure_delete = OFF")
        return connection

    connect = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", as_it_comes)
    path = tmp_path / "n.db"
    with closing(SqliteStore(path)) as store:
        kept = store.start(title="kept")
        session = store.start(title=PHRASE, system_prompt=PHRASE)
        for number in range(30):
            store.append(session, Message.user(f"{number} {PHRASE}"))
        store.append(kept, Message.user("something else"))
        store.delete(session)
    assert PHRASE.encode() not in path.read_bytes()
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith("n.db-")] == []


def test_nobody_adds_to_a_session_that_another_went_on_with(tmp_path):
    path = tmp_path / "n.db"
    with closing(SqliteStore(path)) as first, closing(SqliteStore(path)) as second:
        session = first.start()
        first.append(session, Message.user("one"))
        for store in (first, second):
            store.follow(session)
        first.append(session, Message.assistant("two"))
        with pytest.raises(SessionTakenError):
            second.append(session, Message.assistant("no"))
        with pytest.raises(SessionTakenError):
            second.replace(session, [Message.user("no")])
        first.append(session, Message.user("three"))
        assert texts(second, session) == ["one", "two", "three"]


def test_its_own_writes_are_nobody_elses(tmp_path):
    """Also those of a checkpoint: else the file would be looked through after each."""
    path = tmp_path / "n.db"
    with closing(SqliteStore(path)) as store:
        session = store.start()
        store.append(session, Message.user("first"))
        store.incidents()
        before = path.stat().st_size
        for _ in range(60):
            store.append(session, Message.user("x" * 100_000))
        assert path.stat().st_size > before, "there was a checkpoint"
        store.purge()
        store.append(session, Message.user("behind what was rewritten"))
        assert store.incidents() == 0
        store.close()
        store.append(session, Message.user("opened again"))
        assert store.incidents() == 0
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("UPDATE sessions SET title = 'theirs'")
            other.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        store.append(session, Message.user("behind theirs"))
        assert store.incidents() == 1


@pytest.mark.parametrize("engine", ["compressor", "lossless"])
@pytest.mark.parametrize("origin", ["outside", "workspace"])
def test_what_stands_for_text_from_outside_is_trusted_as_little(home, tmp_path, engine, origin):
    """A summary quotes what it was made of, so a write of memory is refused after it as before."""

    @tool(toolset="pages")
    def page() -> ToolOutput:
        """Return a page."""
        return ToolOutput("The harbour office closes at noon.\n" * 9, origin=origin)

    home.mkdir()
    (home / "config.yaml").write_text(
        "compression:\n  max_prompt_tokens: 6000\n  protect_last_n: 4\n"
        f"context:\n  engine: {engine}\n",
        encoding="utf-8",
    )
    noted = call("memory", action="add", target="memory", content="Likes quiet mornings.")
    model = ScriptedModel(["Hi.", call("page"), *["Read."] * 7, noted, "Done."], window=12_000)
    summaries = ScriptedModel(["## Goal\nRead."] * 9, window=12_000)
    options = {"tools": ["memory", page], "auxiliary": summaries, "approve": "all"}
    with Hermes(model, home=home, cwd=tmp_path, **options) as hermes:
        hermes.ask("Hello!")
        hermes.ask("What does the page say?")
        for number in range(6):
            hermes.ask(f"Here is part {number}: " + f"{number} mornings are quiet. " * 200)
        assert not [m for m in hermes.messages if m.role == "tool"], "it is summarised by now"
        hermes.ask("Remember that I like quiet mornings.")
        result = hermes.messages[-2].text
    assert ("not run" in result) is (origin == "outside"), result
