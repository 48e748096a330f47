"""A kernel of the ipykernel 6 line, beside the one that the package is tested with first.

It is a folder with three packages that come before the test environment's own; nothing else of
that environment differs. It is made once, in the user's cache, and named after what is in it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import platformdirs
import pytest

from tests.e2e.harness import REPOSITORY, Server

PINS = REPOSITORY / "constraints-ipykernel6.txt"
NAME = "ipykernel6"


def packages() -> Path:
    """Return the folder, filled by pip if it is not there yet."""
    mark = hashlib.sha256(PINS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    cache = Path(platformdirs.user_cache_dir("hermes_nb")) / "e2e"
    folder = cache / f"{NAME}-{mark}"
    if folder.exists():
        return folder
    cache.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=cache, prefix="making-"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    command = [*pip, "--no-deps", "--target", making, "-r", PINS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        shutil.rmtree(making)
        pytest.fail(f"no ipykernel 6 for the browser tests, pip said:\n{done.stderr[-2000:]}")
    try:
        making.rename(folder)
    except OSError:  # another run was faster
        shutil.rmtree(making)
    return folder


def install(server: Server) -> str:
    """Let a server offer that kernel; return its name."""
    folder = server.folder / "share" / "kernels" / NAME
    folder.mkdir(parents=True, exist_ok=True)
    spec = {
        "argv": [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": "Python 3 (ipykernel 6)",
        "language": "python",
        "env": {"PYTHONPATH": os.pathsep.join([str(packages()), str(REPOSITORY)])},
    }
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    return NAME
