"""The working directory is deleted under a session: said, and no traceback; another one works."""

from __future__ import annotations

import shutil

import pytest

from tests.faults.cells import calls, says


@pytest.fixture
def gone(cells, tmp_path):
    """Put the kernel into a directory, and back in the end."""
    work = tmp_path / "work"
    work.mkdir()
    assert cells.run(f"%cd -q {work}").status == "ok"
    cells.run("%hermes config vision auto")  # tools are made for the directory of the moment
    yield work
    assert cells.run(f"%cd -q {cells.folder}").status == "ok"
    cells.run("%hermes config vision auto")


@pytest.mark.kernel
def test_55_before_a_turn(cells, gone, tmp_path):
    cells.ask(says("Hello."))
    cells.run("%hermes new")
    cells.run("%hermes config vision auto")
    gone.rmdir()
    result = cells.ask(says("never"))
    assert result.status == "error"
    (line,) = result.error["traceback"]
    assert "the working directory has been deleted" in line and "%cd" in line
    assert cells.server.exchanges == []
    for command in ("%hermes status", "%hermes tools", "%hermes doctor", "%hermes help"):
        answer = cells.run(command)
        assert answer.status == "ok" or len(answer.error["traceback"]) == 1, command


@pytest.mark.kernel
def test_55_in_a_turn(cells, gone):
    result = cells.ask(
        calls(("run_python", {"code": f"import shutil; shutil.rmtree({str(gone)!r})"})),
        calls(
            ("terminal", {"command": "ls"}),
            ("write_file", {"path": "a.txt", "content": "x"}),
            ("read_file", {"path": "a.txt"}),
            ("list_files", {}),
            ("search_files", {"pattern": "x"}),
            ("run_python", {"code": "print(6 * 7)"}),
        ),
        says("It is gone."),
        options="--approve all",
    )
    assert result.status == "ok", result.error
    told = cells.results[1:]
    assert len(told) == 6
    assert "42" in told[5], "code runs all the same"
    assert not any("Traceback" in each for each in told[:5])
    assert "delete" in told[0] or "no longer" in told[0] or "missing" in told[0]


def test_55_of_a_script(story, monkeypatch):
    monkeypatch.chdir(story.work)
    story.ask(says("Hello."))
    shutil.rmtree(story.work)
    turn = story.ask(
        calls(("terminal", {"command": "pwd"}), ("list_files", {})),
        calls(("write_file", {"path": "a.txt", "content": "x"})),
        says("It is gone."),
    )
    assert turn.text == "It is gone."
    assert not any("Traceback" in each for each in story.results)
    monkeypatch.undo()
    story.work.mkdir()
    story.goes_on()
