"""Git that only reads runs nothing that a repository's configuration names."""

from __future__ import annotations

import pytest

from tests.contract.safety.holes import AUTHOR, EVIL_SETTINGS, GIT, git, make_repository
from tests.faults.unasked import nobody_to_ask, results_of


def evil(place):
    """Return the settings that would leave a file in `place`."""
    return [(key, value.format(place)) for key, value in EVIL_SETTINGS.items()]


@pytest.mark.parametrize("bare", [False, True], ids=["repository", "nested bare repository"])
def test_67_nothing_of_it_runs(server, home, tmp_path, bare):
    work = tmp_path / "work"
    settings = [pair for pair in evil(work) if pair[0] not in ("core.worktree", "include.path")]
    make_repository(work / "vendor", *settings, bare=bare)
    for name in ("hooks/post-index-change", "hooks/reference-transaction", "evil.sh"):
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(f"#!/bin/sh\ntouch {work}/PWN\n", encoding="utf-8")
        (work / name).chmod(0o755)
    commands = [each.replace("git ", "git -C vendor ", 1) for each in GIT[:12]]
    commands += ["cd vendor && git status", "cd vendor && git diff"]
    with nobody_to_ask(server, home, work) as story:
        results_of(story, commands)
        results_of(story, ["ls vendor", "git -C vendor log -p --all", "git -C vendor fetch o"])
    assert not (work / "PWN").exists()


@pytest.mark.parametrize("key", ["core.fsmonitor", "diff.external", "filter.x.clean"])
def test_67_each_alone(server, home, tmp_path, key):
    work = tmp_path / "work"
    make_repository(work, (key, EVIL_SETTINGS[key].format(work)))
    with nobody_to_ask(server, home, work) as story:
        results_of(story, ["git status", "git diff", "git log -p", "git show"])
    assert not (work / "PWN").exists()


def test_67_an_honest_repository_is_looked_at_unasked(server, home, tmp_path):
    work = tmp_path / "work"
    make_repository(work, ("remote.origin.url", "https://host/x.git"))
    git(work, *AUTHOR, "commit", "-qam", "third")
    with nobody_to_ask(server, home, work) as story:
        log, shown = results_of(story, ["git log --oneline", "git show --stat"])
    assert "first" in log
    assert "f.txt | 2 +-" in shown
