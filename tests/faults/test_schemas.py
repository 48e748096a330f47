"""Older, newer, dumped and foreign databases, and file systems that cannot do what SQLite asks."""

from __future__ import annotations

import json
import sqlite3
import sys
from contextlib import closing

import pytest
from hermes_nb import Hermes
from hermes_nb.agent.session.recorder import Recorder
from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import MessageAdded, TurnEnded
from hermes_nb.core.messages import Message
from hermes_nb.memory import schema
from hermes_nb.memory.schema import VERSION
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.models.scripted import ScriptedModel
from hermes_nb.storage import opening

from tests.faults.stores import filled, is_intact, killed, names, run_python


# 21: An older schema is brought up to date with its rows; a newer one is read and left alone.
def make_old(path, *, messages):
    """Write a store of the first schema, its text as it was then: ASCII with blanks."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.executescript(schema._FIRST + "PRAGMA user_version = 1;")
    connection.execute("BEGIN")
    connection.execute(
        "INSERT INTO sessions (id, title, source, notebook, model, system_prompt, started, written)"
        " VALUES ('old', 'the walrus', 'notebook', '/w/a.ipynb', 'm', 'p', 1.0, 2.0)"
    )
    for position in range(messages):
        message = Message.user(f"{position} käfer said the walrus")
        connection.execute(
            "INSERT INTO messages (session, position, role, body, at) VALUES ('old', ?, ?, ?, ?)",
            (position, "user", json.dumps(message.to_dict()), float(position)),
        )
    connection.execute("COMMIT")
    connection.close()


def test_21_older(tmp_path):
    path = tmp_path / "n.db"
    make_old(path, messages=50)
    store = SqliteStore(path)
    assert store.get("old").messages == 50
    assert store.search("walrus", limit=50)
    before = store.messages("old")
    store.replace("old", [before[0], Message.user("summary"), *before[40:]])
    assert sum(row.state == "active" for row in store.rows("old", last=49)) == 11
    assert store.restore("old") == before
    assert [session.id for session in store.sessions(notebook="/w/a.ipynb")] == ["old"]
    store.close()
    assert is_intact(path)


def make(path, version):
    """Write a store of a schema with a session of three messages, one of them set aside."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.row_factory = sqlite3.Row
    for step in schema.STEPS[:version]:
        step(connection)
    values = {"id": "old", "title": "t", "source": "notebook", "notebook": "", "model": "m"}
    values |= {"system_prompt": "p" * 9_000, "started": 1.5, "ended": 4.5, "tokens_in": 7}
    values |= {"requests": 2, "cost": 0.25, "written": 3.5, "active": 2}
    columns = {row["name"] for row in connection.execute("PRAGMA table_info(sessions)")}
    kept = [name for name in values if name in columns]
    connection.execute(
        f"INSERT INTO sessions ({', '.join(kept)}) VALUES ({', '.join('?' * len(kept))})",
        [values[name] for name in kept],
    )
    for position, state in enumerate(("compressed", "active", "active")):
        message = Message.user(f"the walrus {position}")
        connection.execute(
            "INSERT INTO messages (session, position, role, body, at, state)"
            " VALUES ('old', ?, 'user', ?, ?, ?)",
            (position, json.dumps(message.to_dict()), position + 1.5, state),
        )
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


@pytest.mark.parametrize("version", range(1, schema.VERSION + 1))
@pytest.mark.parametrize("damaged", [False, True])
def test_21_what_a_session_counts_outlives_every_step(tmp_path, version, damaged):
    path = tmp_path / "n.db"
    make(path, version)
    if damaged:
        with path.open("r+b") as file:
            file.write(b"\0" * 100)
    store = SqliteStore(path)
    (session,) = store.sessions()
    assert (session.started, session.written, session.ended) == (1.5, 3.5, 4.5)
    assert (session.usage.input, session.usage.requests, session.usage.cost) == (7, 2, 0.25)
    assert (session.messages, session.title, len(session.system_prompt)) == (2, "t", 9_000)
    assert len(store.messages("old")) == 2
    assert [hit.position for hit in store.search("walrus")]
    assert bool(store.warnings) == damaged
    store.close()
    assert is_intact(path)


def test_21_the_trigrams_of_words_are_dropped(tmp_path):
    path = tmp_path / "n.db"
    ids = filled(path)
    connection = sqlite3.connect(path)
    connection.execute("CREATE VIRTUAL TABLE search_grams USING fts5(word, tokenize='trigram')")
    connection.execute("INSERT INTO search_grams (rowid, word) SELECT id, word FROM search_words")
    connection.execute("PRAGMA user_version = 5")
    connection.commit()
    connection.close()
    store = SqliteStore(path)
    before = store.search("walrus", limit=500)
    assert {hit.session_id for hit in before} <= set(ids)
    assert store.search("alru", limit=500)
    store.close()
    connection = sqlite3.connect(path)
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
    connection.close()
    assert "search_words" in tables
    assert not [name for name in tables if name.startswith("search_grams")]
    assert is_intact(path)


@pytest.mark.slow
def test_21_older_and_killed_on_the_way(tmp_path):
    path = tmp_path / "n.db"
    make_old(path, messages=4_000)
    script = """
    import sys
    from hermes_nb.memory.sessions import SqliteStore
    print("begun", flush=True)
    SqliteStore(sys.argv[1]).sessions()
    """
    for round_ in range(3):
        killed(run_python(script, path), 0.1 * round_)
    store = SqliteStore(path)
    assert store.get("old").messages == 4_000
    assert store.search("walrus")
    store.close()
    assert is_intact(path)


def test_21_newer(tmp_path):
    path = tmp_path / "n.db"
    ids = filled(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {schema.VERSION + 1}")
    connection.close()
    before = path.read_bytes()
    store = SqliteStore(path)
    assert store.get(ids[0]).title == "session 0"
    assert len(store.messages(ids[0])) == 40
    assert store.search("walrus")
    with pytest.raises(StoreError, match=r"newer hermes_nb \(schema"):
        store.start()
    warnings = []
    recorder = Recorder(store, "new", warnings.append)
    recorder.begin(title="in memory")
    for n in range(3):
        recorder(MessageAdded(Message.user(str(n))))
    recorder(TurnEnded("answered"))
    assert len(warnings) == 1 and recorder.unsaved == 4
    store.close()
    assert path.read_bytes() == before


def test_21_newer_and_damaged_is_left_alone(tmp_path):
    path = tmp_path / "n.db"
    filled(path)
    data = bytearray(path.read_bytes())
    data[60:64] = (schema.VERSION + 1).to_bytes(4, "big")
    data[100:4096] = b"\xff" * 3996
    path.write_bytes(data)
    store = SqliteStore(path)
    with pytest.raises(StoreError):
        store.sessions()
    store.close()
    assert path.read_bytes() == data


# 23: Where the file system has no locks or no shared memory, a rollback journal does it.
def mode(store):
    return store.database.read(lambda c: c.execute("PRAGMA journal_mode").fetchone()[0])


def use(path):
    store = SqliteStore(path)
    session = store.start()
    for n in range(5):
        store.append(session, Message.user(f"{n} the walrus"))
    assert mode(store) == "delete"
    assert len(store.search("walrus", session_id=session)) == 5
    store.close()
    assert store.warnings == []
    return session


@pytest.fixture
def without_locks(monkeypatch):
    """Open every database by SQLite's own driver for file systems without locks."""
    if sys.platform == "win32":
        pytest.skip("the driver is SQLite's for Unix")
    connect = sqlite3.connect

    def plain(address, **options):
        address = address if address.startswith("file:") else f"file:{address}"
        return connect(f"{address}?vfs=unix-none", **options | {"uri": True})

    monkeypatch.setattr(sqlite3, "connect", plain)


def test_23_no_locks(tmp_path, without_locks):
    path = tmp_path / "n.db"
    use(path)
    use(path)
    assert names(path) == {"n.db"}


def test_23_a_wal_meets_a_file_system_without(tmp_path, request):
    path = tmp_path / "n.db"
    ids = filled(path)
    request.getfixturevalue("without_locks")
    use(path)
    store = SqliteStore(path)
    assert len(store.messages(ids[0])) == 40
    store.close()


def test_23_a_network_file_system(tmp_path, monkeypatch):
    path = tmp_path / "n.db"
    ids = filled(path)
    monkeypatch.setattr(opening, "on_network", lambda _: True)
    use(path)
    store = SqliteStore(path)
    assert len(store.messages(ids[0])) == 40
    store.close()
    assert is_intact(path)
    assert names(path) == {"n.db"}
    monkeypatch.undo()
    store = SqliteStore(path)
    store.append(ids[0], Message.user("and on"))
    assert mode(store) == "wal"
    store.close()


# 78: A newer schema, a dumped copy, another program's file: not written, and what to do is said.
def run(path, *statements):
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for statement in statements:
            connection.execute(statement)


def test_78_newer_while_it_is_open(home):
    path = home / "notebook.db"
    with Hermes(ScriptedModel(["one", "two", "three"]), home=home) as hermes:
        hermes.ask("before")
        run(path, f"PRAGMA user_version = {VERSION + 1}")
        assert [hermes.ask("after").reason, hermes.ask("and on").reason] == ["answered"] * 2
        (warning,) = hermes.warnings
        assert "upgrade hermes_nb and restart the kernel" in warning
        with closing(SqliteStore(path)) as store:
            assert len(store.messages(hermes.session_id)) == 2
        run(path, f"PRAGMA user_version = {VERSION}")
        hermes.ask("back again")
        with closing(SqliteStore(path)) as store:
            assert store.messages(hermes.session_id) == hermes.messages
    assert len(hermes.messages) == 8


def test_78_dumped(tmp_path):
    """The remedy that is named makes the copy usable; its index is made anew."""
    ids = filled(tmp_path / "n.db")
    copy = tmp_path / "copy" / "n.db"
    copy.parent.mkdir()
    run(tmp_path / "n.db", "DROP TABLE search_text")  # which only the command line can dump
    with closing(sqlite3.connect(tmp_path / "n.db")) as connection:
        lines = [line for line in connection.iterdump() if "sqlite_sequence" not in line]
    with closing(sqlite3.connect(copy)) as connection:
        connection.executescript("".join(line for line in lines if "search_text" not in line))
    before = copy.read_bytes()
    with closing(SqliteStore(copy)) as store:
        for _ in range(2):
            with pytest.raises(StoreError) as error:
                store.append(ids[0], Message.user("x"))
        assert copy.read_bytes() == before
        _, place, _, remedy, _ = str(error.value).rsplit("'", 4)
        assert place == str(copy)
        run(copy, remedy)
        store.append(ids[0], Message.user("and on"))
        assert len(store.messages(ids[0])) == 41
        assert store.search("walrus")
        assert store.warnings == []


@pytest.mark.parametrize("mark", [(), ("PRAGMA application_id = 77", "PRAGMA user_version = 3")])
def test_78_foreign(home, mark):
    home.mkdir()
    path = home / "notebook.db"
    run(
        path, "CREATE TABLE sessions (id, recipe)", "INSERT INTO sessions VALUES (1, 'soup')", *mark
    )
    before = path.read_bytes()
    with Hermes(ScriptedModel(["one", "two"]), home=home) as hermes:
        assert [hermes.ask("a").reason, hermes.ask("b").reason] == ["answered"] * 2
        (warning,) = hermes.warnings
    assert "is the database of another program: move it away" in warning
    assert "could not be saved" in hermes.warnings[1]
    assert path.read_bytes() == before
    assert names(path) == {"notebook.db", "SOUL.md"}


# 79: A file system without shared memory that is in no list: a rollback journal, for good.
def test_79_no_shared_memory(tmp_path):
    """With a link in its place that leads nowhere, it is the second statement that fails."""
    path = tmp_path / "n.db"
    shared = tmp_path / "n.db-shm"
    shared.symlink_to("nowhere")
    use(path)
    use(path)
    assert path.read_bytes()[18:20] == b"\1\1", "the header says: no write-ahead log"
    shared.unlink()
    use(path)  # not tried again
    assert is_intact(path)


def test_79_a_store_with_a_log_comes_there(tmp_path):
    path = tmp_path / "n.db"
    ids = filled(path)
    (tmp_path / "n.db-shm").symlink_to("nowhere")
    use(path)
    store = SqliteStore(path)
    store.append(ids[0], Message.user("and on"))
    assert len(store.messages(ids[0])) == 41
    store.close()
