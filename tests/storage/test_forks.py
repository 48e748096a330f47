"""No child inherits an open file, not even one that another thread was just opening."""

from __future__ import annotations

import sys
import threading
import time
from contextlib import closing

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import finished, run_python

OPENING = """
import os, sys, threading, time
from hermes_nb.memory.sessions import SqliteStore
from hermes_nb.storage import database
opened, going = database.open_file, threading.Event()
def slowly(path, schema):
    found = opened(path, schema)
    going.set()
    time.sleep(0.3)
    return found
database.open_file = slowly
store = SqliteStore(sys.argv[1])
thread = threading.Thread(target=store.sessions)
thread.start()
going.wait()
pid = os.fork()
if pid == 0:
    links = []
    for name in os.listdir("/proc/self/fd"):
        try:
            links.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            pass
    os._exit(any(sys.argv[1] in link for link in links))
thread.join()
assert os.waitpid(pid, 0)[1] == 0
assert store.sessions() == []
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks /proc")
@pytest.mark.skipif(sys.version_info >= (3, 12), reason="Python warns of forks beside threads")
def test_a_fork_waits_for_a_file_that_is_being_opened(tmp_path):
    assert finished(run_python(OPENING, tmp_path / "n.db")) == []


def test_threads_that_share_a_store_wait_for_no_check_that_has_not_begun(tmp_path, monkeypatch):
    start = threading.Thread.start

    def late(thread):
        if thread.name == "hermes-store":
            entered.set()
            time.sleep(0.3)
        start(thread)

    with closing(SqliteStore(tmp_path / "n.db")) as first:
        first.append(first.start(session_id="s"), Message.user("hello"))
    entered = threading.Event()
    monkeypatch.setattr(threading.Thread, "start", late)
    with closing(SqliteStore(tmp_path / "n.db")) as store:
        # With the second one there is a log, and the file is looked through.
        both = [Message.user("and"), Message.user("there")]
        writing = threading.Thread(target=lambda: [store.append("s", each) for each in both])
        writing.start()
        assert entered.wait(10)
        assert store.incidents() == 0
        writing.join()
