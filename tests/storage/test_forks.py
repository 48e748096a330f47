"""No child inherits an open file, not even one that another thread was just opening."""

from __future__ import annotations

import sys

import pytest

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
