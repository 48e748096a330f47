"""CPU of a hint: what looking for one costs a tool call, on a generated monorepo.

Run with `make bench-hints`. Limits: 1 ms on the first visit of a directory, also with a hint file
that is scanned, 0.1 ms on every later one. The best of several rounds counts: a busy machine makes
everything slower, never faster.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hermes_nb.prompt.hints import HintTracker

PACKAGES = 100
DEEP = "src/main/core/impl"
ROUNDS = 7
FIRST_MS, LATER_MS = 1.0, 0.1
RULES = "Run the tests of this package with `make test`; keep its public names.\n" * 20

CALLS: dict[str, Callable[[int], dict[str, str]]] = {
    "read_file": lambda n: {"path": f"packages/p{n}/{DEEP}/module.py"},
    "cd and cat": lambda n: {"command": f"cd packages/p{n} && cat {DEEP}/module.py"},
    "pytest": lambda n: {
        "command": f"cd packages/p{n} && python -m pytest -q {DEEP} --tb=short 2>&1 | tail -n 20"
    },
}


def build(root: Path) -> None:
    """Make packages; every other one has something to say."""
    for n in range(PACKAGES):
        package = root / "packages" / f"p{n}"
        (package / DEEP).mkdir(parents=True)
        (package / DEEP / "module.py").write_text("x = 1\n", encoding="utf-8")
        if n % 2:
            (package / "AGENTS.md").write_text(f"# p{n}\n\n{RULES}", encoding="utf-8")


def cost(tracker: HintTracker, make: Callable[[int], dict[str, str]], numbers: range) -> float:
    """Return the CPU milliseconds of one call on average."""
    calls = [make(n) for n in numbers]
    started = time.process_time()
    for arguments in calls:
        tracker.after("tool", arguments)
    return (time.process_time() - started) / len(calls) * 1e3


def main() -> int:
    """Print the table; return 1 if a limit is not kept."""
    bare, telling = range(0, PACKAGES, 2), range(1, PACKAGES, 2)
    failed = False
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        build(root)
        print(f"hint files of {len(RULES):,} characters")
        print(f"{'ms CPU a call':14} {'first':>8} {'with hint':>10} {'later':>8}")
        for name, make in CALLS.items():
            rounds = []
            for _ in range(ROUNDS):
                tracker = HintTracker(root)
                first, hint = cost(tracker, make, bare), cost(tracker, make, telling)
                rounds.append((first, hint, cost(tracker, make, range(PACKAGES))))
            first, hint, later = (min(column) for column in zip(*rounds, strict=True))
            failed |= max(first, hint) > FIRST_MS or later > LATER_MS
            print(f"{name:14} {first:8.3f} {hint:10.3f} {later:8.3f}")
    print(f"limits: first {FIRST_MS} ms, later {LATER_MS} ms: {'missed' if failed else 'kept'}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
