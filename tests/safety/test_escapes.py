"""Nobody gets out: every attempt of `escapes.py`, at each level, as root and as another user."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from hermes_nb.safety import sandbox, seccomp

ORDINARY = 12_345
"""A user that nobody is."""
PACKAGE = Path(sandbox.__file__).parent.parent
SCRIPT = Path(__file__).with_name("escapes.py")
RUNGS = [("bubblewrap", 99), ("landlock", 99), ("landlock", 1), ("none", 0)]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="there is no sandbox elsewhere"),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="the attempts have its call numbers"),
]


@pytest.fixture(scope="module")
def place():
    """Yield a folder with what the attempts need of the package, which other users can read."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "hermes_nb/safety").mkdir(parents=True)
        (folder / "hermes_nb/core").mkdir()
        for part in ("safety", "core"):
            for file in (PACKAGE / part).glob("*.*"):
                shutil.copy(file, folder / "hermes_nb" / part)
        (folder / "hermes_nb/__init__.py").touch()
        shutil.copy(SCRIPT, folder)
        (folder / "cases").mkdir()
        shutil.copy(SCRIPT.parent / "cases/escapes.toml", folder / "cases")
        for each in (folder, *folder.rglob("*")):
            each.chmod(0o755)
        yield folder


def attempt(place: Path, level: str, abi: int, *, root: bool) -> dict:
    """Run the script as one user; as another one with the system's Python, which all can start."""
    own = Path(tempfile.mkdtemp(prefix="attempts-"))
    drop = {}
    if os.getuid() == 0 and not root:
        os.chown(own, ORDINARY, ORDINARY)
        drop = {"user": ORDINARY, "group": ORDINARY, "extra_groups": []}
    python = "/usr/bin/python3" if drop else sys.executable
    try:
        done = subprocess.run(
            [python, str(place / "escapes.py"), level, str(abi), str(own)],
            env={"PATH": os.environ["PATH"], "PYTHONPATH": str(place), "TMPDIR": str(own)},
            cwd="/",
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
            **drop,
        )
    finally:
        shutil.rmtree(own, ignore_errors=True)
    assert done.returncode == 0, done.stderr[-2_000:]
    return json.loads(done.stdout)


def possible(level: str, *, root: bool) -> bool:
    """Say whether a level can be tried as a user; the control is never tried as root."""
    if root:
        return os.getuid() == 0 and level != "none" and not sandbox._tried(level)
    if os.getuid() == 0 and not Path("/usr/bin/python3").exists():
        return False
    return level == "none" or not sandbox._tried(level)


@pytest.fixture(scope="module")
def results(place):
    """Start all rungs, two at a time, and yield what comes of them."""
    users = (False, True)
    with ThreadPoolExecutor(2) as pool:
        yield {
            (level, abi, root): pool.submit(attempt, place, level, abi, root=root)
            for level, abi in RUNGS
            for root in users
            if possible(level, root=root) and (abi != 1 or not root)
        }


def result(results: dict[tuple, Future], *key) -> dict:
    if key not in results:
        pytest.skip("not to be tried here")
    return results[key].result()


@pytest.mark.parametrize("root", [False, True], ids=["user", "root"])
@pytest.mark.parametrize(("level", "abi"), RUNGS[:3])
def test_nobody_gets_out(results, level, abi, root):
    told = result(results, level, abi, root)
    assert told["escaped"] == {}
    assert told["tried"] >= 60


def test_the_same_attempts_succeed_unconfined(results):
    told = result(results, "none", 0, False)
    failed = set(told["names"]) - {name.partition(": ")[2] for name in told["escaped"]}
    assert failed == set()
    assert told["tried"] >= 45


def test_the_filter_knows_both_machines():
    for abi in (None, 1, 6):
        program = seccomp.filter_program(domains=[2, 10], abi=abi)
        assert len(program) % 8 == 0 and len(program) // 8 < 4096
