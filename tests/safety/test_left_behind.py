"""What a command leaves in a workspace, and what there runs in a known program's place."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from hermes_nb.models.scripted import call
from hermes_nb.safety import sandbox
from hermes_nb.safety.permissions import Level

from tests.contract.safety.people import Person, hermes, results

LEVELS = [name for name in ("bubblewrap", "landlock") if not sandbox._tried(name)]
BOTH = pytest.mark.parametrize("use", LEVELS)
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no sandbox elsewhere")


@pytest.fixture
def work(tmp_path):
    path = tmp_path / "work"
    path.mkdir()
    return path


@pytest.fixture
def run(work, monkeypatch):
    def call_it(command, *answers, use=(LEVELS or ["none"])[0]):
        monkeypatch.setattr(sandbox, "level", lambda: Level(use))
        person = Person(*(answers or ["once"]))
        with hermes(work, call("terminal", command=command, timeout=60), approve=person) as agent:
            return results(agent.ask("go"))[0], person.asked

    return call_it


HARMLESS = ".gitignore .pytest_cache/v/lastfailed .coverage d/.ipynb_checkpoints/a.ipynb"
NEW = ".newagent/rules.md d/.new .tool .hidden/bin/x .github/hooks/x.json sitecustomize/__init__.py"
MAKE = "for f in {}; do mkdir -p $(dirname $f); echo '{{}}' > $f; done"


@BOTH
@pytest.mark.parametrize("answer", ["once", "deny"])
def test_new_hidden_entries_are_asked_about(work, run, use, answer):
    _, asked = run(MAKE.format(f"{HARMLESS} d/plain {NEW}"), "once", answer, use=use)
    assert all((work / name).exists() for name in (*HARMLESS.split(), "d/plain"))
    there = [name for name in NEW.split() if (work / name).exists()]
    assert there == (NEW.split() if answer == "once" else [])
    assert len(asked) == 2
    assert all(name in asked[1].shown for name in NEW.split())
    assert not list(work.glob(".hermes-held-*"))


@BOTH
def test_harmless_hidden_entries_bring_no_question(work, run, use):
    _, asked = run(MAKE.format(HARMLESS), use=use)
    assert len(asked) == 1


@BOTH
def test_hidden_entries_that_move_with_their_folder_stay(work, run, use):
    for name in ("a/.dvc/config", "a/.tool"):
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).write_text("mine", encoding="utf-8")
    _, asked = run("mv a b", "once", "deny", use=use)
    assert len(asked) == 1
    assert [(work / name).read_text("utf-8") for name in ("b/.dvc/config", "b/.tool")] == [
        "mine"
    ] * 2


def test_what_is_long_or_has_modes_is_given_back_as_it_was(work, run):
    command = (
        "mkdir .t .t/closed; head -c 6000000 /dev/zero > .t/long; ln -s long .t/link;"
        "echo x > .t/run; chmod 755 .t/run; chmod 000 .t/closed"
    )
    run(command, "once")
    assert (work / ".t/long").stat().st_size == 6_000_000
    assert (work / ".t/link").readlink() == Path("long")
    assert (work / ".t/run").stat().st_mode & 0o777 == 0o755
    assert (work / ".t/closed").stat().st_mode & 0o777 == 0


def test_a_long_file_that_cannot_be_put_back_is_told(work, run, monkeypatch):
    (work / "conftest.py").write_text("#" * 5_000_000, encoding="utf-8")
    (work.parent / "home").mkdir()
    (work.parent / "home/config.yaml").write_text("sandbox:\n  use: 'off'\n", encoding="utf-8")
    told, _ = run("echo x = 1 >> conftest.py", "once", "deny", use="none")
    assert "conftest.py could not be checked or restored" in told


@BOTH
def test_a_file_with_holes_that_nobody_could_read_is_taken_away(work, run, use):
    _, asked = run("truncate -s 4T conftest.py x.ipynb", "once", "deny", use=use)
    assert (len(asked), [*work.iterdir()]) == (2, [])
    assert f"{4 << 40:,} bytes" in asked[1].shown


@BOTH
@pytest.mark.parametrize("folder", [".", "a"])
def test_a_link_that_leads_in_a_circle_hides_nothing(work, run, use, folder):
    for name in (".", "a"):
        (work / name).mkdir(exist_ok=True)
        (work / name / "circle").symlink_to("circle")
    run(f"echo x > {folder}/conftest.py; ln -s b {folder}/b", "once", "deny", use=use)
    left = {each.name for each in (work / folder).iterdir()} - {"a"}
    assert left == {"b", "circle"}


@BOTH
def test_a_link_that_runs_later_is_put_back(work, run, use):
    (work / "mine.py").touch()
    (work / "conftest.py").symlink_to("mine.py")
    run("rm conftest.py; echo evil > conftest.py", "once", "deny", use=use)
    assert (work / "conftest.py").readlink() == Path("mine.py")


@pytest.mark.parametrize("name", NEW.split())
def test_the_file_tools_leave_none_of_them_unasked(work, name):
    steps = [call("write_file", path=each, content="x\n") for each in (name, "d/.gitignore")]
    with hermes(work, *steps, approve="edits") as agent:
        agent.ask("go")
    assert not (work / name).exists()
    assert (work / "d/.gitignore").exists()


@BOTH
def test_python_leaves_no_compiled_code(work, run, use):
    (work / "own.py").touch()
    run(f'{sys.executable} -c \'import own; open("out.txt", "w")\'', "once", use=use)
    assert sorted(path.name for path in work.iterdir()) == ["out.txt", "own.py"]


@pytest.mark.skipif("landlock" not in LEVELS, reason="Landlock does not work here")
def test_landlock_writes_into_no_pipe_of_the_workspace(work, run):
    os.mkfifo(work / "pipe")
    heard = os.open(work / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    told, asked = run("echo x > pipe; echo y > new.txt", "once", "deny", use="landlock")
    assert os.read(heard, 9) == b""
    os.close(heard)
    assert "is a pipe or a device" in told
    assert "outside of the sandbox" in asked[1].why
    assert not (work / "new.txt").exists()


SHADOW = "open({!r}, 'w').close()\n"


@pytest.mark.parametrize(
    "command",
    [
        "python -m pip install --no-index nothing",
        "python3 -m pip install --no-index nothing 2>&1 | tail -3",
        "cd . && python -m pip list --outdated --no-index",
        "python -m pip list",
    ],
)
def test_no_module_of_the_workspace_runs_in_place_of_pip(work, run, command):
    (work / "pip.py").write_text(SHADOW.format(str(work / "PWN")), encoding="utf-8")
    (work / "json.py").write_text(SHADOW.format(str(work / "PWN")), encoding="utf-8")
    run(command, "once")
    assert not (work / "PWN").exists()


def test_a_module_of_the_workspace_is_named(work, run):
    (work / "pip.py").write_text("x = 1\n", encoding="utf-8")
    (work / "venv").mkdir()
    for command, name in {
        "python -m pip install x && python mine.py": "pip",
        "python3 -u -m venv --clear here > log": "venv",
        "python3 -Bm pip install x": "pip",
        "python3 -mpip install x": "pip",
        "python3 -W ignore -m pip install x": "pip",
    }.items():
        _, asked = run(command, "deny")
        assert asked[-1].why.startswith(f"it runs {name!r} from the working directory")
    _, asked = run("python setup.py install", "deny")
    assert asked[-1].why.startswith("it runs Python code")


def test_code_that_is_loaded_into_the_shell_is_named(run):
    _, asked = run("enable -f ./x.so x", "deny")
    assert asked[-1].why.startswith("it loads code from ./x.so")
