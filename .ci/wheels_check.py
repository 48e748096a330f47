"""See that every dependency can be had as a wheel, for each Python we name and each common system.

Somebody without a compiler can then install hermes_nb. The installer resolves the requirements of
`pyproject.toml`, with the extra `local` where its system has it, and downloads nothing. Markers
are judged by the system that this runs on, which is how pip does it.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

PROJECT = tomllib.loads(
    (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
)["project"]
CLASSIFIER = re.compile(r"Programming Language :: Python :: (3\.\d+)$")
SYSTEMS = {
    "Linux, x86-64": ("manylinux_2_28_x86_64", "manylinux2014_x86_64", "manylinux_2_17_x86_64"),
    "Linux, ARM": ("manylinux_2_28_aarch64", "manylinux2014_aarch64", "manylinux_2_17_aarch64"),
    "macOS, ARM": ("macosx_14_0_arm64", "macosx_11_0_arm64", "macosx_11_0_universal2"),
    "Windows": ("win_amd64",),
}


def main() -> int:
    """Resolve for each pair and say how many wheels it takes; 1 where one cannot be had."""
    pythons = [match[1] for each in PROJECT["classifiers"] if (match := CLASSIFIER.match(each))]
    failed = 0
    for python in pythons:
        for system, tags in SYSTEMS.items():
            told, well = resolved(python, tags, PROJECT["dependencies"])
            failed += not well
            extra, _ = resolved(python, tags, PROJECT["optional-dependencies"]["local"])
            print(f"Python {python}, {system}: {told}; the extra local: {extra}", flush=True)
    return 1 if failed else 0


def resolved(python: str, tags: tuple[str, ...], requirements: list[str]) -> tuple[str, bool]:
    """Return what the installer says of the requirements, and whether it found wheels for all."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        command += ["--dry-run", "--ignore-installed", "--only-binary=:all:", "--target", folder]
        command += ["--python-version", python, "--report", str(report)]
        command += [word for tag in tags for word in ("--platform", tag)]
        done = subprocess.run(
            [*command, *requirements], capture_output=True, text=True, check=False
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")]
            return lines[-1] if lines else done.stderr[-300:], False
        count = len(json.loads(report.read_text(encoding="utf-8"))["install"])
        return f"{count} wheels", True


if __name__ == "__main__":
    sys.exit(main())
