"""What the tests of the session store's faults share: writers to kill, and what must hold after."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

KILLS = int(os.environ.get("HERMES_FAULT_KILLS", "4"))
"""How often a process is killed; the fault matrix asks for 50."""
ROUNDS = int(os.environ.get("HERMES_FAULT_ROUNDS", "1"))
"""How often processes race each other; the fault matrix asks for 10."""

WRITER = """
import sys, time
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = SqliteStore(path)
session = store.start(title=name)
print(session, flush=True)
for i in range(count):
    begun = time.perf_counter()
    store.append(session, Message.user(f"{i} the walrus said"))
    print(i, time.perf_counter() - begun, flush=True)
store.close()
"""


def run_python(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a script in a process of its own, its input and output in pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> list[str]:
    """Return the lines a process wrote, once it has ended well."""
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return out.splitlines()


def killed(process: subprocess.Popen[str], seconds: float) -> list[str]:
    """Return the lines a process wrote before it was killed, `seconds` after its first one."""
    with process:
        first = process.stdout.readline()
        time.sleep(seconds)
        process.send_signal(signal.SIGKILL)
        lines = [first.strip(), *process.stdout.read().splitlines()]
    assert process.returncode in (0, -signal.SIGKILL)
    return lines


def filled(path: Path, *, sessions: int = 3, messages: int = 40) -> list[str]:
    """Make a store of some pages, close it, and return its sessions' ids."""
    store = SqliteStore(path)
    ids = []
    for number in range(sessions):
        ids.append(store.start(title=f"session {number}", system_prompt="p" * 3_000))
        for i in range(messages):
            long = "carpenter " * (1_000 if i % 10 == 5 else 10)
            store.append(ids[-1], Message.user(f"{number}.{i} the walrus said {long}"))
    store.search("walrus")  # makes the index that some of the faults are about
    store.close()
    return ids


def is_intact(path: Path) -> bool:
    """Say whether SQLite itself finds nothing wrong with a file."""
    connection = sqlite3.connect(path)
    try:
        return connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    finally:
        connection.close()


def names(path: Path) -> set[str]:
    """Return what lies in the directory of a store, without the lock that always stays."""
    return {each.name for each in path.parent.iterdir()} - {path.name + ".lock"}


def set_aside(path: Path) -> list[Path]:
    """Return the damaged files that were put aside, without their logs."""
    found = path.parent.glob(path.name + ".damaged-*")
    return [each for each in found if not each.name.endswith(("-wal", "-shm"))]


def fill(path):
    """Write to `path` until there is no room left, and return it."""
    with path.open("wb", buffering=0) as file:
        size = 4_096
        while size:
            try:
                file.write(b"x" * size)
            except OSError:
                size //= 2
    return path


def room(size):
    """Mark a test as one on a `small_disk` of this size."""
    return pytest.mark.parametrize("small_disk", [size], indirect=True)
