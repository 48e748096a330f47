"""On a full disk the turn goes on in memory with one warning, and is saved when there is room."""

from __future__ import annotations

import subprocess

from hermes_nb.agent.recorder import Recorder
from hermes_nb.core.events import MessageAdded, TurnEnded
from hermes_nb.core.messages import Message
from hermes_nb.memory.sessions import SqliteStore

from tests.faults.stores import is_intact

DISK, TURNS, LONG = "2m", 60, "x" * 20_000


def play(store, session, warnings, *, room):
    """Take turns until the disk is full and some more, then make room; all of it is saved."""
    recorder = Recorder(store, session, warnings.append)
    recorder.begin(title="the walrus")
    most = 0
    for n in range(TURNS):
        recorder(MessageAdded(Message.user(f"{n} {LONG}")))
        recorder(TurnEnded("answered"))
        most = max(most, recorder.unsaved)
    assert most > 5
    room()
    recorder(TurnEnded("answered"))
    assert recorder.unsaved == 0
    assert len(warnings) == 1
    texts = [message.text.split()[0] for message in store.messages(session)]
    assert texts == [str(n) for n in range(TURNS)]


def enlarge(disk):
    subprocess.run(["mount", "-o", "remount,size=20m", str(disk)], check=True)


def test_11_disk_full(small_disk):
    path = small_disk / "home" / "n.db"
    store, warnings = SqliteStore(path), []
    play(store, "s", warnings, room=lambda: enlarge(small_disk))
    assert "full" in warnings[0]
    store.close()
    assert store.warnings == []
    assert is_intact(path)


def test_11_disk_full_from_the_beginning(small_disk):
    ballast = small_disk / "ballast"
    with ballast.open("wb") as file:
        file.write(b"x" * (2 * 1024 * 1024 - 32_768))
    path = small_disk / "home" / "n.db"
    store, warnings = SqliteStore(path), []
    play(store, "s", warnings, room=lambda: enlarge(small_disk))
    assert store.get("s").title == "the walrus"
    store.close()


def test_11_no_more_pages(tmp_path):
    path = tmp_path / "n.db"
    store, warnings = SqliteStore(path), []

    def limit(pages):
        store.database.read(lambda c: c.execute(f"PRAGMA max_page_count = {pages}").fetchone())

    store.sessions()
    limit(200)
    play(store, "s", warnings, room=lambda: limit(1_000_000))
    store.close()
    assert is_intact(path)
