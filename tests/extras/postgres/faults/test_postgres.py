"""A turn never fails because of the server that keeps its session, and nothing is lost or doubled.

The server is a real one, with fsync; it is killed, restarted, stopped, kept from writing.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from contextlib import closing, suppress

import psycopg
import pytest
from hermes_nb import Hermes
from hermes_nb.agent.session.recorder import Recorder
from hermes_nb.core.errors import StoreError
from hermes_nb.core.events import MessageAdded, TurnEnded
from hermes_nb.core.messages import Message, Usage
from hermes_nb.extras.postgres import server as connection
from hermes_nb.extras.postgres.store import PostgresStore
from hermes_nb.models.scripted import ScriptedModel

from tests.extras.postgres.server import PASSWORD, PORT, Postgres
from tests.faults.stores import finished, run_python

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def running():
    running = Postgres("ada", initdb=["--wal-segsize=1"])  # MB: files may be small
    yield running
    running.close()


@pytest.fixture
def server(running, monkeypatch):
    monkeypatch.setattr(connection, "REST", 0.2)
    running.empty()
    yield running
    running.revive()


@pytest.fixture
def store(server, tmp_path):
    store = server.store("ada", tmp_path)
    yield store
    store.close()


@pytest.fixture
def hermes(server, home, tmp_path):
    home.mkdir()
    (home / "config.yaml").write_text(f"hermes_nb: {{session_store: '{server.url('ada')}'}}")
    (home / ".env").write_text(f'PGPASSWORD="{PASSWORD}"\n')
    answers = [f"answer {number}" for number in range(9)]
    with Hermes(ScriptedModel(answers), cwd=tmp_path) as hermes:
        yield hermes


def said(store, session):
    return [message.text.split("\n")[0] for message in store.messages(session)]


def test_a_killed_server_costs_one_line_and_gets_what_it_missed(server, hermes, store):
    assert hermes.ask("first").text == "answer 0"
    server.kill()
    for number in (1, 2):
        begun = time.monotonic()
        assert hermes.ask(f"turn {number}").text == f"answer {number}"
        assert time.monotonic() - begun < 15
    (told,) = hermes.warnings
    assert told.startswith("the session is not being saved for now: postgresql://ada@/hermes: ")
    assert PASSWORD not in told
    server.start()
    time.sleep(0.3)
    assert hermes.ask("last").text == "answer 3"
    wanted = ["first", "answer 0", "turn 1", "answer 1", "turn 2", "answer 2", "last", "answer 3"]
    assert said(store, hermes.session_id) == wanted
    assert [row.position for row in store.rows(hermes.session_id)] == list(range(8))
    assert store.search("turn")[0].session_id == hermes.session_id
    server.stop()
    server.start()  # a restart between two turns is nobody's business
    assert hermes.ask("after a restart").text == "answer 4"
    assert said(store, hermes.session_id) == [*wanted, "after a restart", "answer 4"]
    assert len(hermes.warnings) == 1


def test_without_a_server_a_kernel_begins_in_memory(server, hermes, store):
    server.stop()
    assert hermes.ask("first").text == "answer 0"
    assert "is not being saved for now" in hermes.warnings[0]
    server.start()
    time.sleep(0.3)
    hermes.ask("second")
    assert said(store, hermes.session_id) == ["first", "answer 0", "second", "answer 1"]
    assert len(hermes.warnings) == 1


def test_what_was_acknowledged_survives_a_kill_in_the_middle_of_appends(server, tmp_path):
    store = server.store("ada", tmp_path)
    session = store.start()
    acknowledged, failed = [], []

    def write():
        for number in range(100_000):
            try:
                store.append(session, Message.user(f"m{number}"))
            except StoreError:
                failed.append(number)
                return
            acknowledged.append(number)

    writing = threading.Thread(target=write)
    writing.start()
    while len(acknowledged) < 60:
        time.sleep(0.01)
    server.kill()
    writing.join(60)
    assert len(failed) == 1
    server.start()
    time.sleep(0.3)
    store.append(session, Message.user(f"m{failed[0]}"))  # as the recorder does
    assert said(store, session) == [f"m{number}" for number in [*acknowledged, *failed]]
    assert len(store.search("m7", limit=9)) == 1
    assert store.incidents() > 0
    store.close()


class Between:
    """Stands between a client and the server.

    It loses the next answer that has `cut` in it, with the connection.
    """

    def __init__(self, server, folder):
        self._to = str(server.top / "s" / f".s.PGSQL.{PORT}")
        self.cut: bytes | None = None
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(folder / f".s.PGSQL.{PORT}"))
        self._listening.listen()
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            behind = socket.socket(socket.AF_UNIX)
            behind.connect(self._to)
            for pair in ((client, behind, False), (behind, client, True)):
                threading.Thread(target=self._pass, args=pair, daemon=True).start()

    def _pass(self, source, target, answers):
        with source, suppress(OSError):
            while data := source.recv(1 << 16):
                if answers and self.cut is not None and self.cut in data:
                    self.cut = None
                    break
                target.sendall(data)
            for each in (source, target):
                each.shutdown(socket.SHUT_RDWR)

    def close(self):
        self._listening.close()


@pytest.mark.parametrize(("append", "replace"), [(b"", b""), (b"UPDATE", b"COMMIT")])
def test_what_was_written_before_its_answer_was_lost_is_there_once(
    server, tmp_path, monkeypatch, append, replace
):
    """The first answer that is lost, or the one that says that it is written."""
    with closing(Between(server, tmp_path)) as between:
        url = f"postgresql://ada@/hermes?host={tmp_path}&port={PORT}"
        store = PostgresStore(url, claims=tmp_path / "n.db", password=PASSWORD)
        session = store.start()
        store.follow(session)
        for number in range(3):
            between.cut = append
            store.append(session, Message.user(f"m{number}"), usage=Usage(input=5))
        between.cut = replace
        store.replace(session, [Message.user("m0"), Message.user("m1"), Message.user("m2")])
        monkeypatch.setattr(connection, "PAUSES", ())  # the same, over two calls
        between.cut = append
        with pytest.raises(StoreError):
            store.append(session, Message.user("m3"), usage=Usage(input=5))
        time.sleep(0.3)
        store.append(session, Message.user("m3"), usage=Usage(input=5))
        between.cut = replace
        shorter = [Message.user("summary"), Message.user("m3")]
        with pytest.raises(StoreError):
            store.replace(session, shorter, system_prompt="p")
        time.sleep(0.3)
        store.replace(session, shorter, system_prompt="p")
        assert said(store, session) == ["summary", "m3"]
        assert [each.text for each in store.restore(session)] == ["m0", "m1", "m2", "m3"]
        store.replace(session, shorter)
        assert len(store.rows(session)) == 6 and store.get(session).usage.input == 20
        store.close()


def test_what_is_written_after_an_interrupt_is_there_for_others(server, store, tmp_path):
    """Ctrl-C comes at any moment, also when a transaction has just begun."""

    def interrupted(other):
        other.execute("BEGIN")
        raise KeyboardInterrupt

    session = store.start()
    with pytest.raises(KeyboardInterrupt):
        store.server.run(interrupted)
    store.append(session, Message.user("afterwards"))
    with closing(server.store("ada", tmp_path)) as other:
        assert said(other, session) == ["afterwards"]


def test_a_server_that_does_not_answer_holds_nobody_up(server, store, monkeypatch):
    monkeypatch.setattr(connection, "STATEMENT_SECONDS", 1)
    monkeypatch.setattr(connection, "ANSWER_SECONDS", 2.0)
    session = store.start()
    with psycopg.connect(server.dsn("postgres")) as other:
        other.execute("LOCK TABLE hermes.messages IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(StoreError, match="canceling statement due to"):
            store.append(session, Message.user("waits"))
    store.append(session, Message.user("goes on"))
    server.signal(signal.SIGSTOP)
    try:
        begun = time.monotonic()
        with pytest.raises(StoreError):
            store.append(session, Message.user("while it is stopped"))
        with pytest.raises(StoreError):
            store.sessions()
        assert time.monotonic() - begun < 16
    finally:
        server.signal(signal.SIGCONT)
    time.sleep(0.3)
    store.append(session, Message.user("while it is stopped"))
    assert said(store, session) == ["goes on", "while it is stopped"]


def test_a_server_that_cannot_write_costs_one_line(server, hermes, store):
    hermes.ask("first")
    server.sql("ALTER ROLE ada SET default_transaction_read_only = on")
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ada'")
    try:
        for prompt in ("second", "third"):
            assert hermes.ask(prompt).text.startswith("answer")
        (told,) = hermes.warnings
        assert "in a read-only transaction" in told
        assert said(store, hermes.session_id) == ["first", "answer 0"]  # it is read
    finally:
        server.sql("ALTER ROLE ada RESET default_transaction_read_only")
        server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'ada'")
    hermes.ask("last")
    assert len(said(store, hermes.session_id)) == 8


def test_a_full_disk_refuses_a_message_and_keeps_the_others(server, store):
    session = store.start()
    store.append(session, Message.user("before"))
    server.stop()
    server.start(largest=3_000_000)  # bytes of a file
    signs = bytes(b"!#$%&()*+,-./:;<=>?@[]^{|}~"[n % 27] for n in range(256))
    large = os.urandom(4_000_000).translate(signs).decode()  # no words, and nothing to compress
    assert store.get(session).messages == 1
    with pytest.raises(StoreError, match="could not extend file"):
        store.append(session, Message.user(large))
    store.append(session, Message.user("after"))
    assert said(store, session) == ["before", "after"]


def test_two_kernels_in_a_session_go_on_in_a_copy(server, tmp_path):
    stores = [server.store("ada", tmp_path) for _ in range(2)]
    told: list[str] = []
    session = stores[0].start(title="Penguins")
    first, second = (Recorder(store, session, told.append) for store in stores)
    for store in stores:
        store.follow(session)
    moved: list[str] = []
    second.moved = moved.append
    first(MessageAdded(Message.user("one")))
    second(MessageAdded(Message.user("two")))
    second(TurnEnded("answered"))
    assert said(stores[0], session) == ["one"]
    assert said(stores[0], moved[0]) == ["two"]
    assert told == [
        f"another kernel has continued session {session}; "
        f"this kernel continues in a copy, {moved[0]}"
    ]
    for store in stores:
        store.close()


FORKING = """
import os, sys
from hermes_nb.core.messages import Message
from hermes_nb.extras.postgres.store import PostgresStore
store = PostgresStore(sys.argv[1], claims=sys.argv[2], password=sys.argv[3])
session = store.start()
store.append(session, Message.user("parent"))
pid = os.fork()
if pid == 0:
    store.append(session, Message.user("child"))
    store.close()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
store.append(session, Message.user("parent again"))
print(*(message.text for message in store.messages(session)), sep=",")
"""


def test_a_forked_child_has_a_connection_of_its_own(server, tmp_path):
    arguments = server.url("ada"), tmp_path / "n.db", PASSWORD
    assert finished(run_python(FORKING, *arguments)) == ["parent,child,parent again"]
