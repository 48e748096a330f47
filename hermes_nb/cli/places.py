"""Where IPython looks for configuration, by whom it is for: one user, one environment, everybody.

IPython reads `NAME.json` of the profile, of the environment and of the system, the nearest one
first, and runs the files in `startup` of all three.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hermes_nb.cli.jsontext import parsed
from hermes_nb.core.errors import ConfigError

Level = Literal["user", "sys-prefix", "system"]
_ASK = "import importlib.util as u, sys; sys.exit(u.find_spec('hermes_nb') is None)"
_PATIENCE = 60.0
"""Seconds that a kernel's interpreter gets to start."""


@dataclass(frozen=True, slots=True)
class Place:
    """A directory with configuration of IPython, and whom it is for."""

    directory: Path
    audience: str

    @property
    def startup(self) -> Path:
        """The directory whose files every kernel and terminal runs as it starts."""
        return self.directory / "startup"


def place_for(level: Level | None) -> Place:
    """Return the place of a level; None is what Jupyter itself would prefer here."""
    if level is None:
        from jupyter_core.paths import prefer_environment_over_user

        level = "sys-prefix" if prefer_environment_over_user() else "user"
    if level == "user":
        from IPython.paths import get_ipython_dir

        return Place(Path(get_ipython_dir()) / "profile_default", "your kernels and terminals")
    if level == "sys-prefix":
        return Place(Path(sys.prefix) / "etc" / "ipython", f"the environment {sys.prefix}")
    from IPython.core.application import SYSTEM_CONFIG_DIRS

    if not SYSTEM_CONFIG_DIRS:
        message = "IPython has no directory for everybody on this system; use --sys-prefix"
        raise ConfigError(message)
    return Place(Path(SYSTEM_CONFIG_DIRS[0]), "everybody on this machine")


def kernelspec_file(name: str) -> Path:
    """Return the `kernel.json` of a kernelspec; raise `ConfigError` where there is none."""
    from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel

    manager = KernelSpecManager()
    try:
        spec = manager.get_kernel_spec(name)
    except (NoSuchKernel, json.JSONDecodeError) as error:
        known = ", ".join(sorted(manager.find_kernel_specs())) or "none"
        message = f"there is no usable kernelspec {name!r}; those here: {known}"
        raise ConfigError(message) from error
    return Path(spec.resource_dir) / "kernel.json"


def check_kernel(file: Path) -> None:
    """Raise `ConfigError` unless a kernelspec is IPython's, in a Python that has hermes_nb."""
    argv = [str(word) for word in parsed(file.read_text(encoding="utf-8")).get("argv", [])]
    if not any(word in ("ipykernel_launcher", "ipykernel") for word in argv):
        message = f"{file} does not start IPython's kernel, so Hermes cannot live in it"
        raise ConfigError(message)
    python = sys.executable if argv[0] in ("python", "python3") else argv[0]
    try:
        done = subprocess.run([python, "-c", _ASK], timeout=_PATIENCE, check=False)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired) as error:
        message = f"{file} names an interpreter that does not start: {error}"
        raise ConfigError(message) from error
    if done.returncode:
        message = f"{python} has no hermes_nb: run `{python} -m pip install hermes_nb` first"
        raise ConfigError(message)
