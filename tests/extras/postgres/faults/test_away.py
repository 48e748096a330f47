"""The server is away during turns: what it missed is written at its return or at close, or said."""

from __future__ import annotations

import signal
import time
from contextlib import closing

import pytest
from hermes_nb import Hermes
from hermes_nb.models.scripted import ScriptedModel

from tests.extras.postgres.server import PASSWORD, Postgres
from tests.faults.test_away import ANSWERS, CLOSES, all_of, closed, comes_to_hold, texts


@pytest.fixture(scope="module")
def running():
    running = Postgres("ada", initdb=["--wal-segsize=1"])
    yield running
    running.close()


@pytest.fixture
def server(running):
    running.empty()
    yield running
    running.revive()


@pytest.fixture
def hermes(server, home, tmp_path):
    home.mkdir()
    (home / "config.yaml").write_text(f"hermes_nb: {{session_store: '{server.url('ada')}'}}")
    (home / ".env").write_text(f'PGPASSWORD="{PASSWORD}"\n')
    hermes = Hermes(ScriptedModel(ANSWERS), cwd=tmp_path)
    yield hermes
    hermes.close()


@pytest.mark.slow
def test_94_postgres_is_back_before_close(server, hermes, tmp_path):
    hermes.ask("one")
    server.signal(signal.SIGSTOP)
    hermes.ask("two")
    hermes.ask("three")
    server.signal(signal.SIGCONT)
    with closing(server.store("ada", tmp_path)) as other:
        comes_to_hold(hermes.session_id, prompts=["one", "two", "three"], store=other)
        assert [row.position for row in other.rows(hermes.session_id)] == list(range(6))
    assert len(hermes.warnings) == 1


@pytest.mark.slow
def test_94_postgres_is_back_at_close(server, hermes, tmp_path):
    hermes.ask("one")
    server.kill()
    hermes.ask("two")
    server.start()
    time.sleep(0.3)
    assert closed(hermes) < CLOSES
    with closing(server.store("ada", tmp_path)) as other:
        assert all_of(hermes.session_id, prompts=["one", "two"], store=other)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGSTOP, signal.SIGKILL])
def test_94_postgres_is_not_back(server, hermes, tmp_path, how):
    hermes.ask("one")
    server.signal(how) if how == signal.SIGSTOP else server.kill()
    hermes.ask("two")
    try:
        assert closed(hermes) < CLOSES
    finally:
        server.signal(signal.SIGCONT) if how == signal.SIGSTOP else server.start()
    last = hermes.warnings[-1]
    assert hermes.session_id in last and "could not be saved" in last and PASSWORD not in last
    with closing(server.store("ada", tmp_path)) as other:
        assert texts(other, hermes.session_id)[:2] == ["one", "answer 0"]
