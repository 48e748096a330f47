"""What could not be looked at is not safe, and what a command leaves is judged, not how it did it.

Modes bind an ordinary user alone, so that root plays one here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hermes_nb.models.scripted import call
from hermes_nb.safety import protected, sandbox
from hermes_nb.safety.permissions import Level, NoSandboxError, SandboxProfile
from hermes_nb.safety.protected import survey
from hermes_nb.safety.sandbox import prepare

from tests.contract.safety.people import Person, hermes, results
from tests.contract.users import ALICE, Prefix, run_ordinary

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no sandbox elsewhere")
LEVELS = [name for name in ("bubblewrap", "landlock") if not sandbox._tried(name)]
BOTH = pytest.mark.parametrize("use", LEVELS)
ALL = pytest.mark.parametrize("use", [*LEVELS, "none"])
SECRET = "hunter2-of-the-closed"
TURN = """
import json, os, subprocess, sys
from pathlib import Path
from hermes_nb import Hermes
from hermes_nb.core.protocols import Approval
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.safety import guard, sandbox
from hermes_nb.safety.permissions import Level

setup, command, level, *answers = sys.argv[1:]
work, home = Path.home() / "work", Path.home() / "hermes"
work.mkdir(exist_ok=True)
subprocess.run(setup, shell=True, check=True, cwd=work)
sandbox.level = guard.level = lambda: Level(level)
asked = []

class Person:
    async def ask(self, request):
        asked.append([request.why, request.shown])
        return Approval(answers[min(len(asked), len(answers)) - 1])

model = ScriptedModel([call("terminal", command=command, timeout=20), "done"])
with Hermes(model, cwd=work, home=home, tools=["terminal"], approve=Person()) as agent:
    agent.ask("go")
    told = agent.messages[-2].text
look = ["find", ".", "-printf", "%m %P\\\\n"]
found = subprocess.run(look, cwd=work, stdout=-1, stderr=-3, text=True)
subprocess.run(["chmod", "-R", "u+rwx", "."], cwd=work, check=False)
files = [each for each in work.rglob("*") if each.is_file()]
files = {str(each.relative_to(work)): each.read_text() for each in files}
modes = found.stdout.split("\\n")
print(json.dumps({"told": told, "asked": asked, "files": files, "modes": modes}))
"""


@pytest.fixture
def user():
    """Take a turn as an ordinary user, and return what was said, asked and left."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        prefix = Prefix(folder) if os.geteuid() == 0 else None

        def turn(setup: str, command: str, use: str, *answers: str) -> dict:
            given = (setup, command, use, *answers)
            done = run_ordinary(folder, TURN, *given, prefix=prefix)
            assert done.returncode == 0, done.stderr[-2_000:]
            return json.loads(done.stdout.splitlines()[-1])

        turn.work = (prefix.home(ALICE) if prefix else folder) / "work"
        yield turn


# 89: A folder that cannot be listed or read is unsafe: asked about, taken back or reported.
CLOSED = f"mkdir a; echo {SECRET} > a/.env; ln a/.env plain.txt; chmod {{}} a"
PRINTS = r"""for each in 'a/\056env' 'plai*'; do cat $(printf "$each"); done"""


@pytest.mark.slow
@ALL
@pytest.mark.parametrize("mode", ["311", "100", "500"])
def test_89_a_secret_in_a_closed_folder_is_not_shown_unasked(user, use, mode):
    if mode == "500":  # it may be listed, and so its secret is hidden as any other
        assert SECRET not in user(CLOSED.format(mode), PRINTS, use, "deny")["told"]
        return
    found = user(CLOSED.format(mode), PRINTS, use, "deny")
    assert SECRET not in found["told"]
    assert any(line == f"{mode} a" for line in found["modes"])


PLANTS = """
mkdir -p new/{a,b} repo/.git; echo x > new/plain.txt
echo evil > new/a/AGENTS.md; echo evil > new/b/.cursorrules
(umask 0466; mkdir -p repo/.git/hooks; echo evil > repo/.git/hooks/pre-commit)
(umask 0466; mkdir new/.t; echo x > new/.t/x)
chmod 311 new/a; chmod 000 new/b
"""


@pytest.mark.slow
@ALL
@pytest.mark.parametrize("answer", ["deny", "once"])
def test_89_what_a_command_plants_in_folders_that_it_closes_is_asked_about(user, use, answer):
    found = user("true", PLANTS, use, "once", answer)
    planted = {"new/a/AGENTS.md", "new/b/.cursorrules", "repo/.git/hooks/pre-commit"}
    kept = planted & found["files"].keys()
    assert kept == (set() if answer == "deny" else planted)
    assert "new/plain.txt" in found["files"]
    assert found["asked"][-1][1].count("+evil") == 3
    if use != "landlock":  # which lets no modes be changed
        assert {"311 new/a", "0 new/b"} <= set(found["modes"])
    if answer == "once":
        assert {"311 new/.t"} <= set(found["modes"])


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="a folder of somebody else's")
@BOTH
def test_89_a_folder_of_others_is_out_of_reach_or_reported(user, use):
    user.work.mkdir()
    (user.work / "drop").mkdir()
    (user.work / "drop").chmod(0o733)
    os.chown(user.work, ALICE, ALICE)
    found = user("true", "echo evil > drop/AGENTS.md", use, "once", "deny")
    assert "drop/AGENTS.md" not in found["files"]
    found = user("true", "echo evil > drop/AGENTS.md", "none", "once", "deny")
    assert "drop could not be checked" in found["told"]


def test_89_a_folder_that_goes_while_it_is_looked_for_is_looked_for_again(tmp_path, monkeypatch):
    work = tmp_path / "work"
    (work / "a/b").mkdir(parents=True)
    lists, gone = protected._list, []

    def moves(place, *rest, **how):
        found = lists(place, *rest, **how)
        if place == str(work / "a") and not gone:
            gone.append((work / "a/b").rename(work / "c"))
            (work / "c/.env").write_text("KEY=1")
        return found

    monkeypatch.setattr(protected, "_list", moves)
    found = survey(work, home=tmp_path / "home")
    assert (found.complete, found.files) == (True, (str(work / "c/.env"),))


def test_89_a_folder_that_is_swapped_each_time_is_not_safe(tmp_path, monkeypatch):
    work, away = tmp_path / "work", tmp_path / "away"
    (work / "a").mkdir(parents=True)
    lists = protected._list

    def swaps(place, *rest, **how):
        assert not Path(place).is_symlink()
        if away.exists():
            (work / "a").unlink()
            away.rename(work / "a")
        found = lists(place, *rest, **how)
        (work / "a").rename(away)
        (work / "a").symlink_to(tmp_path)
        os.utime(work, ns=(1, 1))
        return found

    monkeypatch.setattr(protected, "_list", swaps)
    places = {"workspace": work, "directory": work, "home": tmp_path / "home"}
    with pytest.raises(NoSandboxError, match="could not be searched completely for secrets"):
        prepare(["true"], SandboxProfile.READ, use=LEVELS[0], **places)


@pytest.mark.slow
def test_89_trees_of_closed_folders(tmp_path_factory):
    script = Path(__file__).parents[1] / "safety/unlistable.py"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o777)
        prefix = Prefix(folder) if os.geteuid() == 0 else None
        for use in LEVELS:
            done = run_ordinary(
                folder, script.read_text("utf-8"), name, "1", "3", use, prefix=prefix
            )
            assert done.returncode == 0, done.stderr[-2_000:]
            assert json.loads(done.stdout) == {"tried": 3, "sprung": []}


# 90: The home as working directory: what hides itself there is asked about.
START_UP = """.xinitrc .xprofile .xsession .pam_environment .config/fish/config.fish .kshrc .inputrc
.config/systemd/user/x.service .config/autostart/x.desktop .local/bin/ls .tmux.conf .screenrc .emacs
.emacs.d/init.el .config/nvim/init.lua .psqlrc .sqliterc .pythonrc .perldb .cargo/config.toml
.npmrc .yarnrc .config/pip/pip.conf .pdbrc.py .gnuplot .mailcap .lesskey .forward
.config/git/hooks/x .bash_aliases .local/share/applications/x.desktop
.config/mimeapps.list bin/ls Library/LaunchAgents/x.plist AppData/Roaming/x.bat""".split()


@pytest.fixture
def home(tmp_path, monkeypatch):
    path = tmp_path / "me"
    (path / ".config").mkdir(parents=True)
    (path / ".inputrc").write_text("mine\n", encoding="utf-8")
    (path / "data.txt").write_text("x\n", encoding="utf-8")
    monkeypatch.setenv("HOME", str(path))
    return path


@pytest.mark.parametrize("above", [False, True])
def test_90_a_tool_writes_no_hidden_file_of_the_home_unasked(home, above):
    folder = home.parent if above else home
    names = [f"me/{name}" if above else name for name in START_UP]
    steps = [[call("write_file", path=name, content="evil\n") for name in names]]
    with hermes(folder, *steps, approve="edits") as agent:
        agent.ask("go")
    there = [n for n in START_UP if (home / n).exists() and "evil" in (home / n).read_text("utf-8")]
    assert there == []
    with hermes(
        folder, call("write_file", path=names[0][:-11] + "new.txt", content="x"), approve="edits"
    ) as agent:
        agent.ask("go")


@ALL
def test_90_a_command_leaves_no_hidden_file_of_the_home_unasked(home, monkeypatch, use):
    monkeypatch.setattr(sandbox, "level", lambda: Level(use))
    (home.parent / "home").mkdir()
    if use == "none":
        (home.parent / "home/config.yaml").write_text("sandbox:\n  use: 'off'\n")
    names = [n for n in START_UP if "/" not in n and n != ".npmrc"]
    names += [".local/bin/ls", ".emacs.d/init.el"]
    each = "mkdir -p $(dirname $f); echo evil > $f"
    command = f"for f in {' '.join(names)}; do {each}; done; echo 1 > kept"
    person = Person("once", "deny")
    with hermes(home, call("terminal", command=command), approve=person) as agent:
        agent.ask("go")
    assert [n for n in names if (home / n).exists() and "evil" in (home / n).read_text()] == []
    assert (home / ".inputrc").read_text("utf-8") == "mine\n"
    assert (home / "kept").exists() == (use != "landlock"), "Landlock asks to run it outside"


# 91: What a command leaves is judged: a notebook with an agent in it, compiled code.
def notebook(*sources):
    return json.dumps({"cells": [{"cell_type": "code", "source": [each]} for each in sources]})


AGENT = "%%hermes --approve all\ngo"


@pytest.fixture
def work(tmp_path):
    path = tmp_path / "work"
    path.mkdir()
    (path / "old.ipynb").write_text(notebook("x = 1"), encoding="utf-8")
    (path / "mine.ipynb").write_text(notebook(AGENT), encoding="utf-8")
    (path / "agent.json").write_text(notebook("y = 2", AGENT), encoding="utf-8")
    return path


@pytest.fixture
def run(work, monkeypatch):
    def call_it(command, use, *answers):
        monkeypatch.setattr(sandbox, "level", lambda: Level(use))
        if use == "none":
            (work.parent / "home").mkdir(exist_ok=True)
            (work.parent / "home/config.yaml").write_text("sandbox:\n  use: 'off'\n")
        person = Person(*answers)
        with hermes(work, call("terminal", command=command, timeout=20), approve=person) as agent:
            return results(agent.ask("go"))[0], person.asked

    return call_it


@ALL
def test_91_a_notebook_that_would_start_an_agent_is_taken_back(work, run, use):
    command = "cp agent.json new.ipynb; cat agent.json > old.ipynb; ln -s agent.json link.ipynb"
    told, asked = run(command, use, "once", "deny")
    assert sorted(path.name for path in work.glob("*.ipynb")) == ["mine.ipynb", "old.ipynb"]
    assert (work / "old.ipynb").read_text("utf-8") == notebook("x = 1")
    assert "--approve all" in asked[1].shown
    assert "old.ipynb" in told


@ALL
def test_91_a_notebook_of_an_older_format_is_taken_back_too(work, run, use):
    cell = {"cell_type": "code", "input": AGENT, "source": "1", "outputs": []}
    older = {"nbformat": 3, "nbformat_minor": 0, "worksheets": [{"cells": [cell]}], "metadata": {}}
    (work / "older.json").write_text(json.dumps(older), encoding="utf-8")
    first = {"nbformat": 1, "cells": [{"cell_type": "code", "code": ">>> hermes-go"}]}
    (work / "first.json").write_text(json.dumps(first), encoding="utf-8")
    run("cp older.json older.ipynb; cp first.json first.ipynb", use, "once", "deny")
    assert sorted(path.name for path in work.glob("*.ipynb")) == ["mine.ipynb", "old.ipynb"]


@BOTH
def test_91_a_link_to_what_becomes_a_notebook_with_an_agent_is_taken_away(work, run, use):
    (work / "text.txt").write_text("{}", encoding="utf-8")
    (work / "link.ipynb").symlink_to("text.txt")
    run("cat agent.json > text.txt", use, "once", "deny")
    assert not (work / "link.ipynb").is_symlink()


def test_91_what_the_user_agrees_to_is_there(work, run):
    run("mkdir d; cp agent.json d/new.ipynb; cat agent.json > old.ipynb", LEVELS[0], "once")
    for name in ("d/new.ipynb", "old.ipynb"):
        assert (work / name).read_text("utf-8") == notebook("y = 2", AGENT)


def test_91_a_notebook_whose_agent_the_user_wrote_may_be_changed(work, run):
    shown = json.dumps(json.loads(notebook(AGENT)) | {"metadata": {"changed": True}})
    (work / "next.json").write_text(shown, encoding="utf-8")
    _, asked = run("cat next.json > mine.ipynb; cp old.ipynb other.ipynb", LEVELS[0], "once")
    assert len(asked) == 1
    assert json.loads((work / "mine.ipynb").read_text("utf-8"))["metadata"]


POISON = """
import importlib.util, marshal, os, sys
def poison(place):
    os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
    code = compile("open('PWN', 'w').close()", "mine.py", "exec")
    found = os.stat("mine.py")
    head = importlib.util.MAGIC_NUMBER + b"\\\\0" * 4
    head += int(found.st_mtime).to_bytes(4, "little") + found.st_size.to_bytes(4, "little")
    open(place, "wb").write(head + marshal.dumps(code))
for each in (importlib.util.cache_from_source("mine.py"), "only.pyc"):
    poison(each)
"""


@ALL
@pytest.mark.parametrize("compiled", [False, True])
def test_91_compiled_code_that_a_command_leaves_does_not_run(work, run, use, compiled):
    (work / "mine.py").write_text("print('mine')\n", encoding="utf-8")
    imports = [sys.executable, "-c", "import mine"]
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    if compiled:
        subprocess.run(imports, cwd=work, env=own, check=True)
    (work / "make.py").write_text(POISON, encoding="utf-8")
    _, asked = run(f"{sys.executable} make.py > log.txt", use, "once", "deny")
    assert len(asked) == 1, "what Python makes again is dropped without a word"
    told = subprocess.run(imports, cwd=work, env=own, check=True, capture_output=True, text=True)
    assert told.stdout == "mine\n"
    assert not (work / "PWN").exists() and not (work / "only.pyc").exists()
