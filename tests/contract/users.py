"""Hermes as a hub installs it, for Unix users of their own: root's prefix, users' homes.

Nothing of the machine's is touched: the prefix has a copy of the package and the policy file, and a
user is a number that no file of this machine belongs to.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import hermes_nb
import pytest

ALICE, BOB = 61_001, 61_002
VERSION = f"python{sys.version_info.major}.{sys.version_info.minor}"


class Prefix:
    """An environment of root's, with a policy, in which users run Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site = folder / "lib" / VERSION / "site-packages"
        package = Path(hermes_nb.__file__).parent
        shutil.copytree(package, self.site / "hermes_nb")
        self.policy = folder / "etc" / "jupyter" / "hermes_policy.json"
        self.policy.parent.mkdir(parents=True)
        self.python = _python_for_all()

    def settle(self, **keys: object) -> None:
        """Put a policy in force."""
        self.policy.write_text(json.dumps({"HermesPolicy": keys}))

    def home(self, user: int) -> Path:
        """Return a user's home, made at the first call."""
        home = self.folder / "home" / str(user)
        if not home.exists():
            home.mkdir(parents=True)
            os.chown(home, user, user)
            home.chmod(0o700)
        return home

    def environment(self, user: int) -> dict[str, str]:
        """Return the variables of a user's processes."""
        libraries = [p for p in sys.path if p.endswith("site-packages")]
        return {
            "HOME": str(self.home(user)),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": os.pathsep.join([str(self.site), *libraries]),
        }

    def run(self, user: int, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Run Python with these words as a user, in that user's home."""
        env = self.environment(user) | variables
        return _run_as(user, self.python, *words, cwd=self.home(user), env=env)


def as_user(user: int) -> list[str]:
    """Return what `setpriv` needs to start a program as a user.

    `env` starts the program: `setpriv` itself still has what root may do.
    """
    return [f"--reuid={user}", f"--regid={user}", "--clear-groups", "env"]


def _run_as(
    user: int, *words: str, cwd: Path, env: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    command = ["setpriv", *as_user(user), *words]
    return subprocess.run(command, env=env, cwd=cwd, text=True, capture_output=True, check=False)


def _python_for_all() -> str:
    """Return a Python of this version that other users may run; skip where there is none."""
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("users of their own take root and setpriv")
    libraries = [p for p in sys.path if p.endswith("site-packages")]
    for python in (sys.executable, f"/usr/bin/{VERSION}"):
        env = {"PYTHONPATH": os.pathsep.join(libraries), "HOME": "/", "PATH": os.environ["PATH"]}
        code = "import IPython, traitlets, yaml"
        if _run_as(ALICE, python, "-c", code, cwd=Path("/"), env=env).returncode == 0:
            return python
    pytest.skip("no Python here that another user may run")


def run_ordinary(
    folder: Path, script: str, *words: str, prefix: Prefix | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a script as a user whom modes of files bind: as this one, or as Alice for root."""
    if os.geteuid() == 0:
        return (prefix or Prefix(folder)).run(ALICE, "-c", script, *words)
    env = os.environ | {"HOME": str(folder)}
    command = [sys.executable, "-c", script, *words]
    return subprocess.run(command, cwd=folder, env=env, text=True, capture_output=True, check=False)
