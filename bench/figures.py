"""What the benchmarks found, a line for each figure, and whether it is within its limit.

A benchmark prints such lines by `figure`, beside whatever else it prints. Run with `make bench`,
this file runs the benchmarks of `RUNS` one after the other and repeats their figures as a table.
`--against v0.2.0`, or another commit, runs each with the package of that version too, right behind:
the benchmarks and the dependencies are those of today, and what they cannot measure there is `-`.
"""

from __future__ import annotations

import argparse
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import platformdirs

HERE = Path(__file__).parent
RUNS: tuple[tuple[str, ...], ...] = (
    ("load.py",),
    ("start.py",),
    ("loop.py",),
    ("memory.py",),
    ("context.py", "figures"),
    ("recall.py",),
    ("bill.py",),
    ("cells.py",),
    ("prompt.py", "cpu"),
    ("maps.py",),
)
"""Benchmarks and what they are called with; all of them take less than a quarter of an hour."""
SECONDS = 300
"""How long one benchmark may take."""
NOISE = 0.15
"""The share by which a figure may differ from the earlier version's without being told."""
_LINE = re.compile(r"= (.+?): (-?[\d.]+)(?: (.+?))? \(at (most|least) (-?[\d.]+)\)")


def figure(
    name: str,
    value: float,
    unit: str = "",
    *,
    most: float | None = None,
    least: float | None = None,
) -> bool:
    """Print a figure, which has `most` or `least` as its limit; say whether it is within it."""
    low = least is not None
    limit = least if least is not None else most
    assert limit is not None
    print(
        f"= {name}: {value:.4g} {unit}".rstrip() + f" (at {'least' if low else 'most'} {limit:g})"
    )
    return value >= limit if low else value <= limit


def checkout(version: str) -> Path:
    """Return a copy of the repository at a commit, with the benchmarks and tests of today."""
    place = platformdirs.user_cache_path("hermes_nb") / "bench" / version.replace("/", "-")
    command = ["git", "-C", str(HERE.parent), "archive", version, "hermes_nb"]
    done = subprocess.run(command, check=True, capture_output=True)
    shutil.rmtree(place, ignore_errors=True)
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as package:
        package.extractall(place, filter="data")
    for name in ("bench", "tests", "skills"):
        shutil.copytree(HERE.parent / name, place / name)
    return place


def figures_of(root: Path, script: str, *arguments: str) -> tuple[list[tuple[str, ...]], str]:
    """Run a benchmark; return name, value, unit, kind and limit of each figure, and the fault."""
    command = [sys.executable, str(root / "bench" / script), *arguments]
    environment = os.environ | {"PYTHONPATH": str(root)}
    try:
        done = subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=SECONDS, env=environment
        )
    except subprocess.TimeoutExpired:
        return [], f"not done in {SECONDS} s"
    return _LINE.findall(done.stdout), (done.stderr.strip().splitlines() or [""])[-1]


def main() -> int:
    """Run the benchmarks and print their figures; return 1 if one is over its limit or missing."""
    parser = argparse.ArgumentParser(description="the figures that have a limit")
    parser.add_argument("--against", metavar="VERSION", help="a tag or commit to compare with")
    version = parser.parse_args().against
    earlier = checkout(version) if version else None
    started, missed = time.monotonic(), 0
    for script, *arguments in RUNS:
        found, problem = figures_of(HERE.parent, script, *arguments)
        before = figures_of(earlier, script, *arguments)[0] if earlier else []
        known = {name.partition(" (")[0]: float(value) for name, value, *_ in before}
        for name, value, unit, kind, limit in found:
            sign = 1 if kind == "least" else -1
            missed += not (within := sign * (float(value) - float(limit)) >= 0)
            verdict = "met" if within else "MISSED"
            if earlier:
                old = known.get(name.partition(" (")[0])
                verdict += f", {version}: {'-' if old is None else format(old, '.4g')}"
                if old and abs(gain := sign * (float(value) / old - 1)) > NOISE:
                    verdict += ", better" if gain > 0 else ", WORSE"
            shown = f"{value} {unit}".strip()
            print(f"{name:56} {shown:>14}  at {kind:5} {limit:>8}  {verdict}")
        if not found:
            missed += 1
            print(f"{script:56} no figures: {problem}")
        sys.stdout.flush()
    print(f"{missed} missed, {time.monotonic() - started:.0f} s")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
