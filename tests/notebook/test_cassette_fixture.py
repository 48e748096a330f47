"""The pytest fixture for users, in a pytest of its own; it drives the facade without a kernel."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest
from hermes_nb.pytest_plugin import SANITIZE
from hypothesis import given
from hypothesis import strategies as st
from nbval.plugin import get_sanitize_patterns

from tests.loopback import Loopback, stream, text_chunks

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
    options = ("-q", "-p", "no:cacheprovider", "-p", "no:nbval", "test_story.py")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout + done.stderr


@pytest.mark.slow
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
    (folder / "test_story.py").write_text(TESTS.replace("Greet", "Insult"))
    told = run(folder)
    assert "fits this request: message" in told and "differs; recorded:" in told, told


PATTERNS = get_sanitize_patterns(SANITIZE.read_text(encoding="utf-8"))


def sanitised(text):
    for pattern, instead in PATTERNS:
        text = re.sub(pattern, instead, text)
    return text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("done\n✓ 0.1 s · m · 1 request", "done\n✓ 27.5 s · m · 1 request"),
        ("<sub>✓ 0.1 s · m</sub>", "<sub>✓ 1.0 s · m</sub>"),
        ("✗ **memory** `add` · error · 0.0 s", "✗ **memory** `add` · error · 3.2 s"),
        ("| just now | `20261122-025222-5b41e6` |", "| 2 minutes ago | `20270101-000000-000000` |"),
        ("**Turn 4** (04:54) is undone", "**Turn 4** (23:59) is undone"),
        ("Writing /tmp/tmpab12cd_9/kit.py", "Writing /var/folders/x1/T/tmpzz99zz99/kit.py"),
        ("`/a/b/n.hermes.jsonl`", "`<cwd>/n.hermes.jsonl`"),
        ("folder /a/skills/code/x]", "folder /lib/hermes_nb/shipped_skills/code/x]"),
        ("You · 2026-11-22 05:16", "You · 2027-01-01 12:00"),
        ("cell a1 (index 4) ran in 3.7 s, outputs", "cell a1 (index 4) ran in 0.1 s, outputs"),
        ("**&#91;1&#93;** edited +1 −1", "**&#91;4&#93;** edited +1 −1"),
        ("✓ run_cell [1]: df.plot()", "✓ run_cell [12]: df.plot()"),
        ("`a.ipynb` [3] “df.plot()” restored", "`a.ipynb` [4] “df.plot()” restored"),
    ],
)
def test_nbval_overlooks_what_hermes_says_of_time_and_place(one, other):
    assert one != other
    assert sanitised(one) == sanitised(other)


@pytest.mark.parametrize(
    "text",
    [
        "mean 217.2 mm over 0.5 s, 344 x 7\n12.5 s",
        "2026-05-04 is a Monday; 12:30 is noon",
        "Turn 4 of 5, at 04:54",
        "skills/code/x and a/b/c.jsonl",
        "it ran in 3.7 s; x[3]: 4, y[3] was edited",
    ],
)
def test_nbval_overlooks_nothing_else(text):
    assert sanitised(text) == text


@given(st.text(max_size=200))
def test_overlooking_twice_is_overlooking_once(text):
    assert sanitised(sanitised(text)) == sanitised(text)
