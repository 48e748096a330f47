"""A forked child never touches its parent's connection, and both lose nothing."""

from __future__ import annotations

import os
import sys

import pytest

from tests.faults.stores import finished, run_python

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="only POSIX forks")

FORKING = """
import os, sys, threading
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
store = SqliteStore(sys.argv[1])
session = store.start(session_id="s")
stop = threading.Event()
def write(n):
    count = 0
    while not stop.is_set():
        store.append(session, Message.user(f"thread {n} {count}"))
        count += 1
threads = [threading.Thread(target=write, args=(n,)) for n in range(int(sys.argv[2]))]
for thread in threads:
    thread.start()
children = []
for n in range(5):
    store.append(session, Message.user(f"parent {n}"))
    pid = os.fork()
    if pid == 0:
        assert store.database._opened is None
        for i in range(10):
            store.append(session, Message.user(f"child {n} {i}"))
        os._exit(0) if n % 2 else sys.exit(0)
    children.append(pid)
    store.append(session, Message.user(f"after {n}"))
stop.set()
for thread in threads:
    thread.join()
for pid in children:
    assert os.waitpid(pid, 0)[1] == 0
store.append(session, Message.user("the end"))
texts = [message.text for message in store.messages(session)]
for n in range(5):
    assert [t for t in texts if t.startswith(f"child {n}")] == [f"child {n} {i}" for i in range(10)]
    assert f"parent {n}" in texts and f"after {n}" in texts
for n in range(int(sys.argv[2])):
    mine = [t for t in texts if t.startswith(f"thread {n}")]
    assert mine == [f"thread {n} {i}" for i in range(len(mine))]
assert texts[-1] == "the end"
store.close()
print(sorted(os.listdir(os.path.dirname(sys.argv[1]))))
"""


def test_63_fork(tmp_path):
    path = tmp_path / "n.db"
    assert finished(run_python(FORKING, path, 0)) == ["['n.db', 'n.db.lock']"]


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python warns of forks beside threads")
def test_63_fork_while_threads_write(tmp_path):
    path = tmp_path / "n.db"
    assert finished(run_python(FORKING, path, 2)) == ["['n.db', 'n.db.lock']"]


def test_63_a_child_that_inherits_a_connection_after_all_leaves_it_alone(tmp_path):
    script = """
    import os, sys
    from hermes_nb.core.errors import StoreError
    from hermes_nb.core.messages import Message
    from hermes_nb.memory.sessions import SqliteStore
    store = SqliteStore(sys.argv[1])
    store.start(session_id="s")
    store.database.before_fork = lambda: None  # as if C code forked
    store.database.after_fork = lambda *, child: None
    pid = os.fork()
    if pid == 0:
        try:
            store.append("s", Message.user("child"))
        except StoreError as error:
            assert "forked" in str(error)
            store.close()
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    store.append("s", Message.user("parent"))
    print([message.text for message in store.messages("s")])
    """
    assert finished(run_python(script, tmp_path / "n.db")) == ["['parent']"]
