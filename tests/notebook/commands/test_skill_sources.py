"""Skills of somebody else: looked at, taken over as they were, compared, dropped."""

from __future__ import annotations

import builtins
import os
import subprocess
import sys

import pytest
from hermes_nb.core.errors import ConfigError
from hermes_nb.skills.document import SkillError, read_document
from hermes_nb.skills.library import Library
from hermes_nb.skills.sources import difference, source_of, taken
from hypothesis import given
from hypothesis import strategies as st

from tests.skills.support import HARM, put, text

GIT = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1"}


def git(folder, *words):
    names = [
        "-c",
        "user.name=A",
        "-c",
        "user.email=a@example.org",
        "-c",
        "core.hooksPath=/dev/null",
    ]
    done = subprocess.run(
        ["git", *names, *words], cwd=folder, env={**os.environ, **GIT}, check=True,
        capture_output=True, text=True,
    )  # fmt: skip
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path):
    """Return a real repository with two skills, one of them harmful."""
    place = tmp_path / "greenhouse.git"
    put(place / "skills", "watering", text("watering", "Waters the plants."),
        files={"scripts/tap.py": "print('on')\n"})  # fmt: skip
    put(place / "skills", "helper", HARM)
    git(place, "init", "-q")
    (place / ".git" / "hooks" / "post-checkout").write_text("#!/bin/sh\ntouch /tmp/hooked\n")
    git(place, "add", "-A")
    git(place, "commit", "-qm", "one")
    return place


@pytest.fixture
def says(monkeypatch):
    """Return a function that has questions answered, and the questions."""
    asked = []

    def start(*answers):
        left = list(answers)
        monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
        monkeypatch.setattr(builtins, "input", lambda line: asked.append(line) or left.pop(0))
        return asked

    return start


def test_a_repository_is_looked_at_taken_over_and_followed(desk, repository, says, home):
    asked = says("n", "y", "y", "y")
    address = f"file://{repository}"
    assert "nothing was saved" in desk(f"skills add {address}")
    assert not (home / "skill_sources" / "greenhouse").exists()
    assert "1 skill" in asked[0]
    shown = desk.said[-1]
    assert git(repository, "rev-parse", "HEAD")[:12] in shown
    assert "left out" in shown and "Waters the plants." in shown and "print('on')" in shown
    assert "1 skill" in desk(f"skills add {address}")
    kept = home / "skill_sources" / "greenhouse"
    assert sorted(path.name for path in kept.rglob("*") if path.is_file()) == ["SKILL.md", "tap.py"]
    listed = desk("skills")
    assert "greenhouse/watering" in listed and "external" in listed and "helper" not in listed
    assert "is unchanged" in desk("skills update")

    (repository / "skills" / "watering" / "scripts" / "tap.py").write_text("print('off')\n")
    put(repository / "skills", "shading", text("shading", "Shades the plants from the noon sun."))
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "two")
    assert (kept / "watering" / "scripts" / "tap.py").read_text() == "print('on')\n"
    assert "2 skills" in desk("skills update greenhouse")
    assert "-print('on')\n+print('off')" in desk.said[-1]
    assert "+++ b/shading/SKILL.md" in desk.said[-1]
    assert (kept / "watering" / "scripts" / "tap.py").read_text() == "print('off')\n"
    assert "Dropped" in desk("skills drop greenhouse")
    assert "watering" not in desk("skills")


def test_a_folder_of_one_skill_and_a_folder_in_a_source(desk, tmp_path, says):
    says("y", "y")
    put(tmp_path, "pruning", text("pruning", "Prunes."))
    put(tmp_path / "far/a/b/c/d", "mulching", text("mulching", "Mulches."))
    assert "1 skill" in desk(f"skills add {tmp_path / 'pruning'}")
    with pytest.raises(ConfigError, match="down to three levels"):
        desk(f"skills add {tmp_path / 'far'}")
    assert "1 skill" in desk(f"skills add '{tmp_path / 'far'}' a/b/c")
    assert "pruning/pruning" in desk("skills") and "far/mulching" in desk("skills")


def test_nobody_there_is_a_no_and_an_agents_code_may_not(desk, repository):
    with pytest.raises(ConfigError, match="not interactive"):
        desk(f"skills add {repository}")
    with desk.agent.permission.held(), pytest.raises(ConfigError, match="an agent runs cannot"):
        desk(f"skills add {repository}")


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("ssh://example.org/x", "must start with"), ("git@example.org:x", "must start with"),
        ("ext::sh -c touch% /tmp/x", "neither a"), ("https://me:pass@example.org/x", "password"),
        ("/nowhere/at/all", "neither a"), ("--upload-pack=x", "neither a"),
    ],
)  # fmt: skip
def test_what_is_no_source(place, why):
    with pytest.raises(SkillError, match=why):
        source_of(place)


def test_a_folder_does_not_lead_out(tmp_path):
    with pytest.raises(SkillError, match="is outside the source"):
        source_of(str(tmp_path), "../x")


def test_a_repository_that_is_none(desk, tmp_path, says):
    says("y")
    with pytest.raises(ConfigError, match="git cannot fetch file:"):
        desk(f"skills add file://{tmp_path}/nowhere.git")


def test_links_and_foreign_files_are_not_taken(tmp_path):
    folder = put(tmp_path / "s", "one", text("one", "One."), files={"notes.txt": "x"})
    (folder / "references").symlink_to("/etc")
    (tmp_path / "s" / "two").symlink_to("/etc")
    files, _ = taken(tmp_path / "s")
    assert list(files) == ["one/SKILL.md"]


trees = st.dictionaries(st.sampled_from(["a/x", "a/y", "b/x"]), st.binary(max_size=30))


@given(trees, trees)
def test_a_difference_names_every_file_that_differs(before, after):
    shown = difference(before, after)
    for path in before.keys() | after.keys():
        assert (path in shown) is (before.get(path) != after.get(path))
    assert difference(after, after) == ""


NEEDS = """required_environment_variables:
  - name: GREENHOUSE_TOKEN
    prompt: token
  - GREENHOUSE_URL
  - "not a name"
prerequisites:
  env_vars: [GREENHOUSE_OLD]
"""


def test_what_a_skill_needs_of_the_environment_is_named_before_use(tmp_path, monkeypatch):
    put(tmp_path, "asking", text("asking", extra=NEEDS))
    document = read_document(text("asking", extra=NEEDS))
    assert document.environment == ("GREENHOUSE_TOKEN", "GREENHOUSE_URL", "GREENHOUSE_OLD")
    monkeypatch.setenv("GREENHOUSE_URL", "http://localhost")
    library = Library([tmp_path])
    (mark,) = library.view("asking").marks
    assert "GREENHOUSE_TOKEN, GREENHOUSE_OLD in the environment" in mark
    for name in document.environment:
        monkeypatch.setenv(name, "x")
    assert library.view("asking").marks == ()
