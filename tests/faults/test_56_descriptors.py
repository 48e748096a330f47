"""No descriptor is left: an error, no crash, and all is well when there are some; none leaks."""

from __future__ import annotations

import json

import pytest

from tests.faults.cells import calls, says
from tests.faults.processes import descriptors
from tests.faults.stores import finished, run_python
from tests.loopback import Loopback, Reply, chunk, disconnect, event, failure

TURNS = 200

SCRIPT = """
import contextlib, json, os, resource, sys
from pathlib import Path
from hermes_nb import Hermes
from hermes_nb.memory.sessions import SqliteStore
url, work, home = sys.argv[1:]
told = []
with Hermes("m", base_url=url, cwd=work, home=home, approve="all") as hermes:
    hermes.progress = False
    told.append(hermes.ask("warm up").reason)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    for spare in (0, 1, 2, 3, 4, 6, 8, 10, 12):
        held = []
        with contextlib.suppress(OSError):
            while True:
                held.append(os.open("/dev/null", os.O_RDONLY))
        for each in held[:spare]:
            os.close(each)
        turn = hermes.ask("with few of them")
        results = [each.text for each in turn.messages if each.role == "tool"]
        told.append([turn.reason, turn.error, results])
        for each in held[spare:]:
            os.close(each)
    turn = hermes.ask("and with enough")
    told.append([turn.reason, turn.text, turn.error])
    store = SqliteStore(Path(home) / 'notebook.db')
    saved = store.messages(hermes.session_id) == hermes.messages
    store.close()
print(json.dumps([told, saved]))
"""


def test_56_an_error_and_no_crash(home, tmp_path):
    """With so many to spare, a turn works or fails in one line; with enough it works."""
    work = tmp_path / "work"
    work.mkdir()

    class Answers(Loopback):
        def take(self, exchange):
            super().take(exchange)
            asked = exchange.json["messages"][-1]["role"] == "user"
            return calls(("terminal", {"command": "echo hi"})) if asked else says("Done.")

    with Answers(says("unset")) as server:
        _, line = ["", *finished(run_python(SCRIPT, server.url, work, home))]
    (first, *few, last), saved = json.loads(line)
    assert first == "answered"
    for reason, error, _ in few:
        assert reason in ("answered", "failed") and "\n" not in error
    assert few[0][0] == "failed" or "could not be started" in few[0][2][0]
    assert few[-1][0] == "answered" and "hi" in few[-1][2][0]
    assert last == ["answered", "Done.", ""]
    assert saved, "what could not be stored then is stored now"


@pytest.mark.slow
def test_56_two_hundred_turns_leave_nothing_open(story):
    """Reads, writes, commands, failures and breaks: none of them costs a descriptor."""
    read = ("read_file", {"path": "a.txt"})
    write = ("write_file", {"path": "a.txt", "content": "x"})
    kinds = [
        [calls(write, read), says("Done.")],
        [calls(("terminal", {"command": "true"})), says("Done.")],
        [failure(500), says("Done.")],
        [Reply([event(chunk({"content": "Half"})), disconnect]), says("Done.")],
        [says("Done.")],
    ]
    for replies in kinds:
        story.ask(*replies)
    before = descriptors()
    for n in range(TURNS):
        story.server.replies[:] = kinds[n % len(kinds)]
        story.server.exchanges.clear()
        assert story.hermes.ask("go").reason == "answered"
    assert descriptors() <= before
