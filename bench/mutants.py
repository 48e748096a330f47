"""Whether the tests notice when a line of guard, loop, store, context or undo is broken.

Run with `make bench-mutants`. Each mutant of `mutants.toml` replaces one passage of a module (`old`
by `new`) in a copy of the repository; the tests named for its module run until the first one
fails. A mutant that all of them pass is one that they do not notice; a passage that is not there
any more, or there twice, is a fault of the list. Ends with 1 for either.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
LIST = Path(__file__).with_name("mutants.toml")
COPIED = ("hermes_nb", "tests", "bench", "skills", "notebooks", "docs", "pyproject.toml")
PYTEST = (sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:nbval", "-p", "no:cacheprovider")


def main() -> None:
    rooms = tomllib.loads(LIST.read_text(encoding="utf-8"))
    chosen = sys.argv[1:] or list(rooms)
    bad = 0
    with tempfile.TemporaryDirectory(dir=REPOSITORY.parent) as name:
        copy = Path(name, "copy")
        for each in COPIED:
            source = REPOSITORY / each
            (shutil.copytree if source.is_dir() else shutil.copy)(source, _made(copy) / each)
        for room in chosen:
            if status := passed(copy, rooms[room]["tests"]):
                sys.exit(f"{room}: the tests fail as it is (pytest ended with {status})")
            for mutant in rooms[room]["mutants"]:
                verdict = tried(copy, rooms[room]["tests"], mutant)
                bad += verdict != "noticed"
                print(f"{room:8}{verdict:16}{mutant['old'].strip().splitlines()[0]}", flush=True)
    sys.exit(bad > 0)


def tried(copy: Path, tests: list[str], mutant: dict[str, str]) -> str:
    path = copy / "hermes_nb" / mutant["file"]
    text = path.read_text(encoding="utf-8")
    if text.count(mutant["old"]) != 1:
        return f"there {text.count(mutant['old'])} times"
    path.write_text(text.replace(mutant["old"], mutant["new"]), encoding="utf-8")
    try:
        status = passed(copy, tests)
    finally:
        path.write_text(text, encoding="utf-8")
    return {0: "NOT NOTICED", 1: "noticed"}.get(status, f"pytest ended {status}")


def passed(copy: Path, tests: list[str]) -> int:
    """Return how pytest ends: 0 where all pass, 1 where one fails."""
    command = [*PYTEST, "-m", "not embedded", *tests]
    environment = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=copy, env=environment, capture_output=True, check=False)
    return done.returncode


def _made(folder: Path) -> Path:
    folder.mkdir(exist_ok=True)
    return folder


if __name__ == "__main__":
    main()
