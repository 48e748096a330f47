"""The pytest fixture for users, in a pytest of its own; it drives the facade without a kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.loopback import Loopback, stream, text_chunks

pytestmark = pytest.mark.slow

TESTS = """
import pytest
from hermes_nb import Hermes
from hermes_nb.models.cassette import CassetteMiss

@pytest.mark.parametrize("who", ["Ann", "Bob"])
def test_greets(hermes_cassette, who, tmp_path):
    with Hermes(home=tmp_path, cwd=tmp_path) as hermes:
        turn = hermes.ask(f"Greet {who}")
    assert turn.text == "Hello!", turn.error
    assert hermes_cassette.path.parent.name == "test_story"
"""


def run(folder, **env):
    done = subprocess.run(
        [
            sys.executable,
            *("-m", "pytest", "-q", "-p", "no:cacheprovider"),
            "test_story.py",
        ],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


def test_each_test_has_its_cassette(tmp_path, monkeypatch):
    monkeypatch.delenv("HERMES_NB_CASSETTE", raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "test_story.py").write_text(TESTS)
    (folder / "pytest.ini").write_text("[pytest]\n")
    with Loopback(stream(text_chunks("Hello!"))) as server:
        env = {"HERMES_NB_BASE_URL": server.url, "HERMES_NB_MODEL": "m"}
        assert "2 passed" in run(folder, HERMES_NB_CASSETTE="record", **env)
    files = sorted(path.name for path in (folder / "cassettes" / "test_story").glob("*.jsonl"))
    assert files == ["test_greets-Ann.jsonl", "test_greets-Bob.jsonl"]
    assert "2 passed" in run(folder)
    (folder / "test_story.py").write_text(TESTS.replace("Greet", "Insult"))
    assert "is another one" in run(folder)
