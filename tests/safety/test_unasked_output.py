"""What commands print that ran unasked is redacted before it is shown, stored or sent."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hermes_nb.core.events import ToolProgress
from hermes_nb.models.scripted import call
from hermes_nb.safety.redact import STUB
from hermes_nb.tools.process_output import HEAD, TAIL, WHOLE

from tests.contract.safety.people import Person, hermes, results

TOKEN = "ghp_" + "aB3dE5fG7hJ9kL1mN3pQ5rS7tU9vW1xY3zA5"
ADDRESS = f"https://me:{TOKEN}@example.org/x.git"
LINE = 100


@pytest.fixture
def work(tmp_path):
    """Return a repository whose remote's address has a token in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    subprocess.run(["git", "init", "-q", "."], cwd=folder, check=True)
    subprocess.run(["git", "remote", "add", "origin", ADDRESS], cwd=folder, check=True)
    return folder


def unasked(work, *commands):
    """Run commands where every question is answered with no; return results and progress."""
    steps = [call("terminal", command=command, timeout=30) for command in commands]
    person = Person("deny")
    with hermes(work, steps, approve=person) as agent:
        turn = agent.ask("look")
        sent = "".join(message.text for message in agent.messages)
    assert not person.asked
    progress = "".join(e.text for e in turn.events if isinstance(e, ToolProgress))
    stored = b"".join(p.read_bytes() for p in (work.parent / "home").rglob("*") if p.is_file())
    for shown in (sent, progress, stored.decode("utf-8", "replace")):
        assert TOKEN not in shown
        assert TOKEN[:20] not in shown
    return results(turn)


def test_tokens_of_other_processes_repositories_and_variables_are_not_shown(work, monkeypatch):
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)", "--token", TOKEN]
    with subprocess.Popen(sleeper) as running:
        try:
            found = unasked(
                work,
                "ps aux",
                "git remote -v",
                "cat .git/config",
                "bash -c 'cat .git/config; echo done'",
            )
        finally:
            running.kill()
    assert [STUB in text for text in found] == [True] * 4, "\n".join(found)
    assert "done" in found[-1]


@pytest.mark.parametrize("where", ["before the gap", "behind the gap", "between two reads"])
def test_a_token_that_is_cut_by_a_gap_or_a_chunk_is_not_shown_in_part(work, where):
    at = {"before the gap": HEAD, "behind the gap": -TAIL, "between two reads": 65_536}[where]
    size = 70_000 if where == "between two reads" else WHOLE + 200_000
    text = bytearray(b"row of plain words\n" * (size // 19))
    start = (at if at > 0 else len(text) + at) - 20
    text[start : start + len(TOKEN) + 2] = f" {TOKEN} ".encode()
    (work / "log.txt").write_bytes(text)
    (found,) = unasked(work, "cat log.txt")
    assert "row of plain words" in found
