"""Options in a real kernel: a figure of the user's, a rehearsal, an answer in a variable."""

from __future__ import annotations

import re

import pytest

from tests.faults.cells import environment
from tests.kernels import kernel
from tests.loopback import Loopback, stream, text_chunks

pytestmark = pytest.mark.kernel

DRAW = """
import matplotlib.pyplot as plt
fig, ax = plt.subplots(figsize=(4, 2), dpi=100)
ax.plot([1, 2, 3])
plt.close(fig)
"""


@pytest.fixture(scope="module")
def server():
    with Loopback(stream(text_chunks("A line that rises."))) as running:
        yield running


@pytest.fixture(scope="module")
def shared(server, tmp_path_factory):
    folder = tmp_path_factory.mktemp("work")
    env = environment(server, folder, HERMES_NB_VISION="on")
    with kernel(env, cwd=str(folder)) as running:
        assert running.run("%load_ext hermes_nb").status == "ok"
        yield running


def test_a_figure_is_shown_to_the_model_and_its_answer_bound(shared, server):
    assert shared.run(DRAW).status == "ok"
    result = shared.run("%%hermes --image ax --into said --quiet\nWhat does it show?")
    assert result.status == "ok", result.error
    parts = server.bodies[-1]["messages"][-1]["content"]
    pictures = [part["image_url"]["url"] for part in parts if part["type"] == "image_url"]
    assert len(pictures) == 1
    assert pictures[0].startswith("data:image/png;base64,iVBOR")
    assert re.search(r"1\. ax \(image/png \d+x\d+\)", str(parts))
    assert shared.run("print(said)").text.strip() == "A line that rises."
    assert "rises" not in result.markdown
    assert "1 request" in result.markdown


def test_a_rehearsal_shows_the_bytes_and_sends_none(shared, server):
    count = len(server.bodies)
    result = shared.run("%%hermes --dry-run --image fig --into plan\nAnd now?")
    assert result.status == "ok", result.error
    assert len(server.bodies) == count
    assert "Nothing was sent" in result.markdown
    assert "[picture, " in result.markdown
    assert shared.run("x = plan").status == "ok"
    shared.run("del plan, x")
    assert shared.run("%%hermes --image fig\nAnd now?").status == "ok"
    messages = server.bodies[-1]["messages"][-3:]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert "image_url" in str(messages[0]) and "image_url" in str(messages[2])


def test_a_model_without_eyes_gets_a_note_where_the_picture_was(shared, server):
    shared.run("%hermes config vision off")
    assert shared.run("%hermes Once more in words").status == "ok"
    body, count = server.bodies[-1], len(server.bodies)
    assert "image_url" not in str(body)
    assert "1 picture left out here" in str(body["messages"])
    result = shared.run("%%hermes --image fig\nGlimpse")
    assert result.status == "error"
    told = ("not known to accept images", "claude", "config vision on")
    assert all(part in str(result.error) for part in told)
    assert len(server.bodies) == count
    shared.run("%hermes config vision on")
    assert shared.run("%%hermes --image fig\nSee").status == "ok"
    assert "image_url" in str(server.bodies[-1]) and "Glimpse" not in str(server.bodies[-1])
