"""Reviews in a real kernel: they come by themselves, beside the cells, and are told afterwards."""

from __future__ import annotations

import time

import pytest

from tests.faults.cells import served_kernel
from tests.loopback import Loopback, calls, says
from tests.patience import SOON

pytestmark = pytest.mark.kernel

SAVED = {"action": "add", "target": "user", "content": "Answers in German, please."}
REPLIES = (
    *(says("First."), says("Second.")),
    *(calls(("memory", SAVED)), says("Saved one thing."), says("Third.")),
)
REVIEWED = """
from IPython.core.getipython import get_ipython
get_ipython().magics_manager.registry["HermesMagics"].agent.reviews.wait(60)
"""


def reviewing(server, folder, **more):
    """Return a kernel whose turns are looked at after every second one."""
    return served_kernel(server, folder, HERMES_NB_MEMORY_NUDGE_INTERVAL="2", **more)


def test_a_review_comes_after_so_many_turns_is_told_at_the_next_and_is_replayed(tmp_path):
    """It runs in a thread and a conversation of its own, and on the same cassette."""
    with Loopback(*REPLIES) as server:
        for mode in ("record", "replay"):
            folder = tmp_path / mode
            folder.mkdir()
            tape = {"HERMES_NB_CASSETTE": mode, "HERMES_NB_CASSETTE_FILE": f"{tmp_path}/n.jsonl"}
            with reviewing(server, folder, **tape) as running:
                assert running.run("%hermes one", allow_stdin=True).status == "ok"
                assert "Second." in running.run("%hermes two", allow_stdin=True).markdown
                began = time.monotonic()
                assert running.run("1 + 1").text == "2"
                assert time.monotonic() - began < SOON
                running.run(REVIEWED)
                third = running.run("%hermes three", allow_stdin=True)
                assert "review saved: memory: add user: Answers in German" in third.markdown
                told = running.run("%hermes memory").markdown
                assert SAVED["content"] in told and "review" in told
                file = folder / "home" / "memories" / "USER.md"
                assert file.read_text(encoding="utf-8").startswith("Answers")
                assert "undone" in running.run("%hermes memory undo").markdown.lower()
            assert len(server.bodies) == 5


def test_without_anybody_there_none_comes(tmp_path):
    with Loopback(*REPLIES) as server, reviewing(server, tmp_path) as running:
        for prompt in ("one", "two"):
            assert running.run(f"%hermes {prompt}").status == "ok"
        running.run("import time; time.sleep(1)")
        assert len(server.bodies) == 2


def test_a_session_gets_a_title_from_the_model_for_such_work(tmp_path):
    title = says('"Tides at the **pier**"')
    with Loopback(says("Low water is at six."), title, says("Seven.")) as server:
        beside = {"AUXILIARY_MODEL": "small", "AUXILIARY_BASE_URL": server.url}
        names = {f"HERMES_NB_{name}": value for name, value in beside.items()}
        with served_kernel(server, tmp_path, **names) as running:
            running.run("%%hermes\nlow water? {'key': 'sk-abcdefghijklmnop1'}", allow_stdin=True)
            until = time.monotonic() + SOON
            while "Tides at the" not in (told := running.run("%hermes sessions").markdown):
                assert time.monotonic() < until, told
                time.sleep(0.1)
            running.run("%hermes rename Mine")
            running.run("%hermes and tomorrow?", allow_stdin=True)
            assert "Mine" in running.run("%hermes sessions").markdown
        asked = server.bodies[1]
        assert asked["model"] == "small"
        assert "sk-abcdefghijklmnop1" not in str(asked)
        assert len(server.bodies) == 3
