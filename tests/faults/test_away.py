"""The store is away during turns: what it missed is written at its return or at close, or said."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing, contextmanager

import pytest
from hermes_nb import Hermes
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.storage import database

from tests.faults.cells import environment
from tests.kernels import kernel
from tests.loopback import Loopback, says

# 94: The store away during turns, back before close, or not: written at return or at close, or
# said at close, which takes no longer than it should.
ANSWERS = [f"answer {number}" for number in range(9)]
SOON = 20.0
"""Seconds within which what came back is surely tried again."""
CLOSES = 2.5
"""Seconds that closing may take: two for what is unsaved, and a little for the rest."""


@contextmanager
def locked(path):
    """Hold the lock of another program's transaction."""
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield
        other.execute("ROLLBACK")


@pytest.fixture
def impatient_store(monkeypatch):
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.2)


def texts(store, session):
    return [message.text for message in store.messages(session)]


def all_of(session, *, prompts, store):
    """Say whether a session has these prompts and the answers to them, each once and in order."""
    wanted = [text for number, prompt in enumerate(prompts) for text in (prompt, ANSWERS[number])]
    return texts(store, session) == wanted


def comes_to_hold(session, *, prompts, store):
    """Wait, while nothing happens in the conversation, until all of it is there."""
    end = time.monotonic() + SOON
    while not all_of(session, prompts=prompts, store=store):
        assert time.monotonic() < end, texts(store, session)
        time.sleep(0.05)


def closed(hermes):
    """Close it, and return how long that took."""
    begun = time.monotonic()
    hermes.close()
    return time.monotonic() - begun


def test_94_sqlite_is_back_before_close(home, tmp_path, impatient_store):
    path = home / "notebook.db"
    with Hermes(ScriptedModel(ANSWERS), cwd=tmp_path) as hermes:
        hermes.ask("one")
        with locked(path):
            hermes.ask("two")
            hermes.ask("three")
        with closing(SqliteStore(path)) as other:
            comes_to_hold(hermes.session_id, prompts=["one", "two", "three"], store=other)
        assert len(hermes.warnings) == 1


def test_94_sqlite_is_back_at_close(home, tmp_path, impatient_store):
    path = home / "notebook.db"
    hermes = Hermes(ScriptedModel(ANSWERS), cwd=tmp_path)
    hermes.ask("one")
    with locked(path):
        hermes.ask("two")
    hermes.close()
    with closing(SqliteStore(path)) as other:
        assert all_of(hermes.session_id, prompts=["one", "two"], store=other)
    assert len(hermes.warnings) == 1


@pytest.mark.slow
def test_94_sqlite_is_not_back(home, tmp_path):
    path = home / "notebook.db"
    hermes = Hermes(ScriptedModel(ANSWERS), cwd=tmp_path)
    hermes.ask("one")
    with locked(path):
        hermes.ask("two")
        assert closed(hermes) < CLOSES
    first, last = hermes.warnings
    assert "not being saved for now" in first
    assert (
        hermes.session_id in last and "could not be saved" in last and "database is locked" in last
    )
    with closing(SqliteStore(path)) as other:
        assert all_of(hermes.session_id, prompts=["one"], store=other)


def test_94_a_session_that_was_left_is_saved_too(home, tmp_path, impatient_store):
    """Nobody holds the conversation any more; what it said is still to be written."""
    path = home / "notebook.db"
    with Hermes(ScriptedModel(ANSWERS), cwd=tmp_path) as keeper:
        keeper.ask("one")
        with locked(path):
            hermes = Hermes(ScriptedModel(ANSWERS), cwd=tmp_path)
            hermes.ask("never closed")
            session = hermes.session_id
            del hermes
        with closing(SqliteStore(path)) as other:
            comes_to_hold(session, prompts=["never closed"], store=other)


@pytest.mark.kernel
@pytest.mark.parametrize("back", [True, False])
def test_94_a_kernel_is_shut_down(tmp_path, back):
    path = tmp_path / "home" / "notebook.db"
    with Loopback(says("Hello.")) as server:
        more = environment(server, tmp_path, HERMES_NB_LOCAL_SERVERS="off")
        with kernel(more, cwd=str(tmp_path)) as running:
            assert running.run("%load_ext hermes_nb").status == "ok"
            assert running.run("%%hermes\none").status == "ok"
            with locked(path):
                server.replies[:] = [says("And this.")]
                assert running.run("%%hermes\ntwo").status == "ok"
                if not back:
                    running.manager.shutdown_kernel()
            if back:
                running.manager.shutdown_kernel()
            told = "".join(_printed(running))
    with closing(SqliteStore(path)) as store:
        (session,) = store.sessions()
        found = [text.split("\n")[0] for text in texts(store, session.id)]
    assert found == (["one", "Hello.", "two", "And this."] if back else ["one", "Hello."])
    if back:  # else the last words of a kernel may be lost with its sockets; see the tests above
        assert "not saved" not in told


def _printed(running):
    """Yield what the kernel has shown since its last cell."""
    while running.client.iopub_channel.msg_ready():
        content = running.client.get_iopub_msg(timeout=1)["content"]
        yield content.get("text", "") + str(content.get("data", ""))
