"""What the sandbox costs a command, and whether anything gets out: `make bench-sandbox`.

Limit: 30 ms more than the bare command, for each level and profile. The best of several rounds
counts: a busy machine makes everything slower, never faster. The escapes are those of the tests,
as this user. `TREES` trees a level with folders that cannot be listed are for an ordinary user.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from hermes_nb.safety import sandbox
from hermes_nb.safety.permissions import SandboxProfile

sys.path.append(str(Path(__file__).parents[1]))

from tests.contract.users import Prefix, run_ordinary

ROUNDS = 40
LIMIT_MS = 30.0
COMMANDS = (["/bin/true"], [sys.executable, "-c", "1"])
KINDS = (
    ("bubblewrap", SandboxProfile.READ),
    ("bubblewrap", SandboxProfile.GIT),
    ("landlock", SandboxProfile.READ),
)
TESTS = Path(__file__).parents[1] / "tests/safety"
ESCAPES, UNLISTABLE = TESTS / "escapes.py", TESTS / "unlistable.py"
TREES = 150


def cost(command: list[str], workspace: Path) -> dict[str, float]:
    """Return milliseconds by level and profile, with what preparing takes."""
    times: dict[str, list[float]] = defaultdict(list)
    kinds = [kind for kind in KINDS if not sandbox._tried(kind[0])]
    for _ in range(ROUNDS):
        started = time.perf_counter()
        subprocess.run(command, cwd=workspace, capture_output=True, check=True)
        times["bare"].append(time.perf_counter() - started)
        for use, profile in kinds:
            places = {"workspace": workspace, "directory": workspace, "home": Path.home()}
            started = time.perf_counter()
            launch = sandbox.prepare(command, profile, **places, use=use)
            subprocess.run(
                launch.command,
                cwd=workspace,
                env=launch.environment,
                pass_fds=launch.descriptors,
                capture_output=True,
                check=True,
            )
            launch.close()
            name = f"{use} {'read' if profile is SandboxProfile.READ else 'git'}"
            times[name].append(time.perf_counter() - started)
    return {name: 1e3 * min(values) for name, values in times.items()}


def trees(use: str) -> list[str]:
    """Return what came about in trees with folders that cannot be listed."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        folder.chmod(0o777)
        prefix = Prefix(folder) if os.getuid() == 0 else None
        words = (name, "1000", str(TREES), use)
        done = run_ordinary(folder, UNLISTABLE.read_text("utf-8"), *words, prefix=prefix)
    if done.returncode:
        return [done.stderr[-500:]]
    told = json.loads(done.stdout)
    print(f"  {use}: {told['tried']} trees, {len(told['sprung'])} effects")
    return [f"{use}, tree {each}" for each in told["sprung"]]


def main() -> int:
    found = sandbox.level()
    print(f"level here: {found.name} {found.why}; user {os.getuid()}")
    missed = []
    with tempfile.TemporaryDirectory() as folder:
        for command in COMMANDS:
            figures = cost(command, Path(folder).resolve())
            for name, ms in figures.items():
                more = ms - figures["bare"]
                print(f"  {Path(command[0]).name:12} {name:18} {ms:6.1f} ms  +{more:.1f}")
                missed += [f"{name} costs {more:.1f} ms"] if more > LIMIT_MS else []
    for use in ("bubblewrap", "landlock"):
        if sandbox._tried(use):
            continue
        done = subprocess.run(
            [sys.executable, str(ESCAPES), use, "99"], capture_output=True, check=True
        )
        told = json.loads(done.stdout)
        print(f"  {use}: {told['tried']} attempts, {len(told['escaped'])} escaped")
        missed += [f"{use}: {name}" for name in told["escaped"]] + trees(use)
    print("\n".join(missed) or "within its limits")
    return bool(missed)


if __name__ == "__main__":
    sys.exit(main())
