"""Runs copies of the example notebooks under nbval, where only this machine can be reached."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.name for path in (ROOT / "notebooks").glob("[0-9][0-9]_*.ipynb"))

# Loaded by every Python process that has its folder in PYTHONPATH, so by kernels too.
ISOLATION = """
import socket, sys

sys.modules["rfc3987_syntax"] = None  # as in tests/conftest.py
_connect, _lookup = socket.socket.connect, socket.getaddrinfo


def _local(host):
    return host in ("localhost", "::1", "", None) or str(host).startswith("127.")


def connect(self, address):
    if self.family in (socket.AF_INET, socket.AF_INET6) and not _local(address[0]):
        raise OSError(f"the network is blocked here: {address!r}")
    return _connect(self, address)


def getaddrinfo(host, *args, **options):
    if not _local(host):
        raise OSError(f"the network is blocked here: {host!r}")
    return _lookup(host, *args, **options)


socket.socket.connect, socket.getaddrinfo = connect, getaddrinfo
"""


@dataclass(frozen=True)
class Outcome:
    """What a run came to: notebooks by what became of them, everything pytest said, CPU seconds."""

    passed: set[str]
    failed: dict[str, str]
    output: str
    seconds: float


def copied(folder: Path) -> Path:
    """Return a copy of the notebooks with their data and cassettes."""
    ignored = shutil.ignore_patterns(".*", "__pycache__")
    return shutil.copytree(ROOT / "notebooks", folder / "notebooks", ignore=ignored)


def reworded(folder: Path) -> Path:
    """Return a copy of the package: all tools described otherwise, one more, other guidance."""
    package = folder / "package"
    ignored = shutil.ignore_patterns("__pycache__")
    for part in ("hermes_nb", "skills"):
        shutil.copytree(ROOT / part, package / part, ignore=ignored)
    code = package / "hermes_nb"
    files, schema = code / "tools" / "files.py", code / "tools" / "schema.py"
    changed(schema, 'return " ".join(first)', 'return " ".join([*first, "!"])')
    changed(files, "import os\n", "import os\nfrom dataclasses import replace\n")
    changed(
        files,
        "return Toolset(make(space) for make in makers)",
        'more = replace(_list_files(space), name="more")\n'
        "    return Toolset([*(make(space) for make in makers), more])",
    )
    changed(code / "prompt" / "builder.py", "tags is data.", "tags is data only.")
    return package


def changed(path: Path, old: str, new: str) -> None:
    """Change the one place of a file that says so."""
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, (path, old)
    path.write_text(text.replace(old, new), encoding="utf-8")


def isolated(folder: Path, *packages: Path) -> dict[str, str]:
    """Return an environment without keys, network or a home that was ever used."""
    site = folder / "site"
    site.mkdir(exist_ok=True)
    (site / "sitecustomize.py").write_text(ISOLATION, encoding="utf-8")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("HERMES_", "OPENAI_"))}
    return kept | {
        "HERMES_HOME": str(folder / f"home-{os.urandom(4).hex()}"),
        "IPYTHONDIR": str(folder / "ipython"),
        "PYTHONPATH": os.pathsep.join(map(str, [site, *packages])),
    }


def nbval(folder: Path, names: Sequence[str], env: dict[str, str], *options: str) -> Outcome:
    """Run notebooks of a folder, in that order, as CI would; `options` are more of pytest's."""
    before = _children()
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--nbval", "--hermes-replay", "-q", "-rA"),
            *("-p", "no:cacheprovider", "-W", "ignore", "--color=no", *options, *names),
        ],
        cwd=folder,
        env=env,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    failed: dict[str, str] = {}
    for name in names:
        if re.search(rf"^(?:FAILED|ERROR) {re.escape(name)}::", said, re.MULTILINE):
            start = said.find(f" {name}::Cell")
            failed[name] = said[start : start + 6_000]
    ran = {name for name in names if f"PASSED {name}::" in said}
    return Outcome(ran - failed.keys(), failed, said, _children() - before)


def _children() -> float:
    """Return the CPU seconds of this process's children that have ended, and of theirs."""
    times = os.times()
    return times.children_user + times.children_system if hasattr(os, "times") else time.monotonic()
