"""Check that what is built can be installed by somebody who has nothing of this checkout.

`release_check.py [PYTHON …]` builds the sdist and the wheel, compares that wheel with one built
from the sdist, installs it into a clean virtual environment of each interpreter (by default that of
this script) and looks there for everything that has to be in it; see `installed_check.py`. It needs
`build` and `hatchling`. Exits with 1 at the first thing that is wrong, and says what.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
STORY = "01_first_turn"
"""The notebook that is replayed in the clean environment, with what it needs beyond our wheel."""
NEEDS = ("pandas", "pytest")
SEPARATE = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "JUPYTER_PATH", "JUPYTER_CONFIG_DIR")


def main(interpreters: list[str]) -> int:
    """Build once, check in every interpreter."""
    with tempfile.TemporaryDirectory(prefix="release-") as folder:
        work = Path(folder)
        wheel = build(work)
        for python in interpreters or [sys.executable]:
            check(python, wheel, work)
    return 0


def build(work: Path) -> Path:
    """Return the wheel of this tree, which is equal to the one that its sdist gives."""
    clock = Clock()
    make = (sys.executable, "-m", "build", "--no-isolation", "--outdir")
    run(*make, work / "dist", ROOT)  # the wheel by way of the sdist
    run(*make, work / "tree", "--wheel", ROOT)
    (wheel,) = (work / "dist").glob("*.whl")
    (direct,) = (work / "tree").glob("*.whl")
    by_sdist, by_tree = contents(wheel), contents(direct)
    if by_sdist != by_tree:
        odd = sorted(set(by_sdist.items()) ^ set(by_tree.items()))
        sys.exit(f"the sdist's wheel is another than the tree's: {[name for name, _ in odd]}")
    package = ROOT / "hermes_nb"
    sources = {str(path.relative_to(ROOT)) for path in package.rglob("*") if path.is_file()}
    if left_out := [name for name in sources - set(by_tree) if "__pycache__" not in name]:
        sys.exit(f"these files of the package are not in the wheel: {left_out}")
    if strays := [name for name in by_tree if "__pycache__" in name or name.endswith(".pyc")]:
        sys.exit(f"the wheel has what does not belong there: {strays}")
    size = wheel.stat().st_size / 1e6
    print(f"{wheel.name}: {len(by_tree)} files, {size:.1f} MB, the same by its sdist ({clock})")
    return direct


def contents(wheel: Path) -> dict[str, str]:
    """Return the digests of a wheel's files; RECORD lists the others, and is left out."""
    with zipfile.ZipFile(wheel) as archive:
        return {
            name: hashlib.sha256(archive.read(name)).hexdigest()
            for name in archive.namelist()
            if not name.endswith("/RECORD")
        }


def check(python: str, wheel: Path, work: Path) -> None:
    """Install the wheel into a clean environment of an interpreter, and look at it from there."""
    clock = Clock()
    folder = work / f"env-{len(list(work.glob('env-*')))}"
    run(python, "-m", "venv", folder)
    inside = folder / ("Scripts" if os.name == "nt" else "bin") / "python"
    pip = (inside, "-m", "pip", "--disable-pip-version-check", "-q")
    run(*pip, "install", "--no-compile", "-c", ROOT / "constraints.txt", wheel, *NEEDS)
    run(*pip, "check")
    place = work / f"place-{folder.name}"
    before = ROOT / "tests" / "contract" / "data"  # left by the version before
    for source, target in ((ROOT / "notebooks", place), (before / "notebooks", place / "earlier")):
        (target / "data").mkdir(parents=True)
        for name in (f"{STORY}.ipynb", f"{STORY}.hermes.jsonl", "data/penguins.csv"):
            shutil.copy(source / name, target / name)
    shutil.copytree(before / "home", place / "earlier" / "home")
    shutil.copy(HERE / "installed_check.py", place)
    run(inside, "-I", place / "installed_check.py", f"{STORY}.ipynb", cwd=place)
    print(f"{python}: installed and checked ({clock})")


class Clock:
    """How long something took, and how long the processors worked for it."""

    def __init__(self) -> None:
        self._started, self._used = time.monotonic(), sum(os.times()[:4])

    def __str__(self) -> str:
        """Return both in seconds."""
        used = sum(os.times()[:4]) - self._used
        return f"{time.monotonic() - self._started:.0f} s, {used:.0f} s of CPU"


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command that knows nothing of this checkout; show what it said if it failed."""
    env = {key: value for key, value in os.environ.items() if key not in SEPARATE}
    env |= {"HERMES_HOME": str((cwd or Path(tempfile.gettempdir())) / "no-home")}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=env, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{done.stdout}\n{done.stderr}")
    if cwd is not None:
        print(done.stdout, end="")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
