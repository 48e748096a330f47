"""A home that may not be written is read; new sessions stay in memory, with one warning."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import pytest

from tests.faults.stores import filled, finished, run_python

SCRIPT = """
import json, os, sys
path, action = sys.argv[1], sys.argv[2]
from hermes_nb.agent.recorder import Recorder
from hermes_nb.core.events import MessageAdded, TurnEnded
from hermes_nb.core.messages import Message
from hermes_nb.core.errors import StoreError
from hermes_nb.memory.sessions import SqliteStore
SqliteStore(":memory:").search("walrus")  # the package may be where only root can read it
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
store, warnings = SqliteStore(path), []
recorder = Recorder(store, "new", warnings.append)
recorder.begin(title="in memory")
for n in range(3):
    recorder(MessageAdded(Message.user(f"m{n}")))
recorder(TurnEnded("answered"))
try:
    found = [len(store.sessions()), len(store.search("walrus"))]
except StoreError as error:
    found = str(error)
before = recorder.unsaved
print("tried", flush=True)
sys.stdin.readline() if action == "wait" else None
recorder(TurnEnded("answered"))
print(json.dumps([warnings, before, recorder.unsaved, found]))
"""


@pytest.fixture
def home():
    """Give a home whose way there is open to all: as root, the tests run as somebody else."""
    if sys.platform == "win32":
        pytest.skip("modes of directories are POSIX")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "home"
        Path(folder).chmod(0o755)
        place.mkdir()
        yield place
        place.chmod(0o700)


def forbid(place):
    """Let everybody read a directory and its files, and nobody write them."""
    for each in place.iterdir():
        each.chmod(0o444)
    place.chmod(0o555)


def test_24_read_only_home(home):
    filled(home / "n.db")
    forbid(home)
    _, line = finished(run_python(SCRIPT, home / "n.db", "go"))
    warnings, before, unsaved, found = json.loads(line)
    assert (len(warnings), before, unsaved) == (1, 4, 4)
    assert "cannot be written" in warnings[0]
    assert found[0] == 3 and found[1] > 0
    assert sorted(each.name for each in home.iterdir()) == ["n.db", "n.db.lock"]


def test_24_read_only_and_empty(home):
    home.chmod(0o555)
    _, line = finished(run_python(SCRIPT, home / "n.db", "go"))
    warnings, before, unsaved, found = json.loads(line)
    assert (len(warnings), before, unsaved) == (1, 4, 4)
    assert "Permission denied" in found
    assert list(home.iterdir()) == []


def test_24_read_only_file_until_it_is_not(home):
    filled(home / "n.db")
    (home / "n.db").chmod(0o444)
    (home / "n.db.lock").chmod(0o666)
    home.chmod(0o777)
    process = run_python(SCRIPT, home / "n.db", "wait")
    assert process.stdout.readline() == "tried\n"
    (home / "n.db").chmod(0o666)
    out, err = process.communicate("go on\n", timeout=60)
    assert process.returncode == 0, err
    warnings, before, unsaved, found = json.loads(out)
    assert (len(warnings), before, unsaved) == (1, 4, 0)
    assert found[0] == 3
