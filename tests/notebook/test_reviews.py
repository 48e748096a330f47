"""Reviews in a real kernel: they come by themselves, beside the cells, and are told afterwards."""

from __future__ import annotations

import os
import time

import pytest

from tests.kernels import kernel
from tests.patience import SOON

pytestmark = pytest.mark.kernel

SCRIPT = """
import threading
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.notebook.magics import use_model

model = ScriptedModel([
    "First.",
    "Second.",
    call("memory", action="add", target="user", content="Answers in German, please."),
    "Saved one thing.",
    "Third.",
])
use_model(model)
"""
WAIT = """
import time
until = time.monotonic() + 60
while len(model.requests) < 4 and time.monotonic() < until:
    time.sleep(0.05)
time.sleep(0.3)
print(len(model.requests), "review" in model.requests[2].messages[-1].text.lower())
"""


@pytest.fixture
def running(tmp_path):
    env = {
        **os.environ,
        "HERMES_HOME": str(tmp_path / "home"),
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "HERMES_NB_MEMORY_NUDGE_INTERVAL": "2",
        "HERMES_NB_NOTEBOOK": str(tmp_path / "n.ipynb"),
    }
    with kernel(env, cwd=str(tmp_path)) as running:
        assert running.run("%load_ext hermes_nb").status == "ok"
        assert running.run(SCRIPT).status == "ok"
        yield running


def test_a_review_comes_after_so_many_turns_and_is_told_at_the_next(running):
    assert running.run("%hermes one", allow_stdin=True).status == "ok"
    assert "Second." in running.run("%hermes two", allow_stdin=True).markdown
    began = time.monotonic()
    assert running.run("1 + 1").text == "2"
    assert time.monotonic() - began < SOON
    assert running.run(WAIT).text.split() == ["4", "True"]
    third = running.run("%hermes three", allow_stdin=True)
    assert "Learned since: memory: add user: Answers in German, please." in third.markdown
    told = running.run("%hermes memory").markdown
    assert "Answers in German, please." in told
    assert "review" in told
    assert "undone" in running.run("%hermes memory undo").markdown.lower()


def test_without_anybody_there_none_comes(running):
    for prompt in ("one", "two"):
        assert running.run(f"%hermes {prompt}").status == "ok"
    assert running.run("import time; time.sleep(1); print(len(model.requests))").text.strip() == "2"
