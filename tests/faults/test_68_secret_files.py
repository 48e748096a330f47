"""Secret files stay unread, whatever a command calls them, and by whatever link."""

from __future__ import annotations

import pytest

from tests.contract.safety.holes import SECRET, SECRETS, git, make_holes, make_repository
from tests.faults.unasked import nobody_to_ask, refused, results_of


@pytest.mark.parametrize("start", range(0, len(SECRETS), 16))
def test_68_no_secret_is_told(server, home, tmp_path, start):
    work = make_holes(tmp_path)
    with nobody_to_ask(server, home, work) as story:
        results = results_of(story, SECRETS[start : start + 16])
    assert not [each for each in results if SECRET in each]


def test_68_nor_what_git_still_knows(server, home, tmp_path):
    work = tmp_path / "work"
    make_repository(work)
    blob = git(work, "rev-parse", "HEAD~1:.env").strip()
    commands = ["git show HEAD~1:.env", f"git show {blob}", f"git cat-file -p {blob[:8]}"]
    commands += ["git log -L1,1:.env HEAD~1", "git blame HEAD~1 -- .env", "git grep KEY -- .env"]
    with nobody_to_ask(server, home, work) as story:
        results = results_of(story, commands)
    assert not [each for each in results if SECRET in each]


def test_68_names_are_no_secret(server, home, tmp_path):
    work = make_holes(tmp_path)
    with nobody_to_ask(server, home, work) as story:
        listed, read, secret = results_of(story, ["ls -a", "cat notes.txt", "cat .env"])
    assert ".env" in listed
    assert "alpha" in read
    assert refused(secret)
