"""What the benchmarks found, a line for each figure, and whether it is within its limit.

A benchmark prints such lines by `figure`, beside whatever else it prints. Run with `make bench`,
this file runs the benchmarks of `RUNS` one after the other and repeats their figures as a table.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
RUNS: tuple[tuple[str, ...], ...] = (
    ("load.py",),
    ("start.py",),
    ("loop.py",),
    ("memory.py",),
    ("context.py", "figures"),
    ("recall.py",),
)
"""Benchmarks and what they are called with; all of them take less than a quarter of an hour."""
SECONDS = 300
"""How long one benchmark may take."""
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


def main() -> int:
    """Run the benchmarks and print their figures; return 1 if one is over its limit or missing."""
    started, missed = time.monotonic(), 0
    for script, *arguments in RUNS:
        command = [sys.executable, str(HERE / script), *arguments]
        try:
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, timeout=SECONDS
            )
            said, problem = done.stdout, (done.stderr.strip().splitlines() or [""])[-1]
        except subprocess.TimeoutExpired:
            said, problem = "", f"not done in {SECONDS} s"
        found = _LINE.findall(said)
        for name, value, unit, kind, limit in found:
            least = kind == "least"
            within = float(value) >= float(limit) if least else float(value) <= float(limit)
            missed += not within
            shown = f"{value} {unit}".strip()
            verdict = "met" if within else "MISSED"
            print(f"{name:56} {shown:>14}  at {kind:5} {limit:>8}  {verdict}")
        if not found:
            missed += 1
            print(f"{script:56} no figures: {problem}")
        sys.stdout.flush()
    print(f"{missed} missed, {time.monotonic() - started:.0f} s")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
