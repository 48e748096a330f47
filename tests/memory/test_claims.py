"""Each task of a fan-out is begun once, whoever asks and whatever dies on the way."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory import sessions
from hermes_nb.memory.schema import salvage
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.storage.database import Database
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.faults.stores import is_intact, killed, run_python

TASKS = st.sampled_from(["a", "b", "c"])
OWNERS = st.sampled_from(["one", "two", "three"])
STATES = ("running", "done", "failed", "stopped")


@pytest.fixture
def store(tmp_path):
    store = SqliteStore(tmp_path / "n.db")
    yield store
    store.close()


class Ledger(RuleBasedStateMachine):
    """The ledger against a dictionary; between two calls it may be closed."""

    def __init__(self):
        super().__init__()
        self.store = SqliteStore(":memory:")
        self.known = {}
        self.begun = {}

    def teardown(self):
        self.store.close()

    @rule(task=TASKS, owner=OWNERS, again=st.sets(st.sampled_from(STATES[2:] + STATES[:1])))
    def claim(self, task, owner, again):
        before = self.known.get(task)
        got = self.store.claim("run", task, owner=owner, again=again)
        if before is None or before[0] in again:
            self.known[task] = ("running", owner, "")
            self.begun[task] = [*self.begun.get(task, []), bool(before)]
        assert (got.state, got.owner, got.result) == self.known[task]

    @rule(task=TASKS, owner=OWNERS, state=st.sampled_from(STATES[1:]), result=st.text(max_size=5))
    def settle(self, task, owner, state, result):
        ours = self.known.get(task, ("", "", ""))[:2] == ("running", owner)
        assert self.store.settle("run", task, owner=owner, state=state, result=result) is ours
        if ours:
            self.known[task] = (state, owner, result)

    @rule(task=TASKS, owner=OWNERS)
    def release(self, task, owner):
        ours = self.known.get(task, ("", "", ""))[:2] == ("running", owner)
        assert self.store.release("run", task, owner=owner) is ours
        if ours:
            del self.known[task]
            self.begun[task] = []

    @invariant()
    def agrees(self):
        found = {c.task: (c.state, c.owner, c.result) for c in self.store.claims("run")}
        assert found == self.known

    @invariant()
    def nothing_begins_twice_unasked(self):
        for begun in self.begun.values():
            assert all(begun[1:])  # each after the first took over what stood there


TestLedger = Ledger.TestCase
TestLedger.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


def test_many_threads_claim_each_task_once(tmp_path):
    stores = [SqliteStore(tmp_path / "n.db") for _ in range(4)]
    won = []

    def claim_all(store, owner):
        mine = (store.claim("run", str(task), owner=owner) for task in range(50))
        won.extend(int(claim.task) for claim in mine if claim.owner == owner)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(claim_all, stores, "abcd"))
    assert sorted(won) == list(range(50))
    for store in stores:
        store.close()


def test_claims_that_come_together_are_flushed_together(tmp_path, monkeypatch):
    store, written, write = SqliteStore(tmp_path / "n.db"), [], Database.write

    def slow(self, action, **options):
        written.append(1)
        time.sleep(0.1)
        return write(self, action, **options)

    store.claims("run")
    monkeypatch.setattr(Database, "write", slow)
    with ThreadPoolExecutor(16) as pool:
        claims = list(pool.map(lambda n: store.claim("run", str(n), owner=str(n)), range(16)))
    assert [claim.owner for claim in claims] == [str(n) for n in range(16)]
    assert len(written) <= 3 and len(store.claims("run")) == 16
    monkeypatch.setattr(Database, "write", lambda *_, **__: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        store.claim("run", "x", owner="x")
    store.close()


CLAIMER = """
import sys
from hermes_nb.memory.sessions import SqliteStore
store = SqliteStore(sys.argv[1])
for n in range(100_000):
    store.claim("run", f"{n:06}", owner="doomed")
    print(n, flush=True)
"""


@pytest.mark.slow
def test_a_claim_that_was_answered_survives_a_kill(tmp_path):
    path = tmp_path / "n.db"
    told = killed(run_python(CLAIMER, path), 1.5)
    assert told
    store = SqliteStore(path)
    for n in map(int, told):
        assert store.claim("run", f"{n:06}", owner="next").owner == "doomed"
    store.close()
    assert is_intact(path)


def test_the_oldest_are_forgotten_by_number_not_by_age(store, monkeypatch):
    monkeypatch.setattr(sessions, "KEPT", 10)
    monkeypatch.setattr(sessions, "TIDIED", 5)
    for n in range(20):
        store.claim("old", f"{n:02}", owner="one")
    for n in range(30):
        store.claim("new", f"{n:02}", owner="one")
        assert len(store.claims("old")) in range(max(0, 9 - n), 26)
    assert store.claims("old") == []
    assert len(store.claims("new")) == 30  # however many: what was begun is never begun twice


def test_claims_are_salvaged_from_a_damaged_file(tmp_path):
    path, fresh = tmp_path / "n.db", tmp_path / "fresh.db"
    store = SqliteStore(path)
    session = store.start()
    store.append(session, Message.user("hello"))
    for n in range(30):
        store.claim("run", f"{n:02}", owner="one")
        if n % 2:
            store.settle("run", f"{n:02}", owner="one", state="done", result="{}")
    before = [(c.task, c.state, c.result) for c in store.claims("run")]
    store.close()
    assert salvage(path, fresh).startswith("1 message of 1 session")
    again = SqliteStore(fresh)
    assert [(c.task, c.state, c.result) for c in again.claims("run")] == before
    again.close()
