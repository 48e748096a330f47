"""The package without its extras: what is left when rooms of `hermes_nb/extras` are deleted.

Run with `make core`. It works on copies of the repository, each in an environment whose only
hermes_nb is that copy. First each extra is deleted alone: everything else is imported, all entry
points that are left are loaded; the command line, `%load_ext`, the doctor and a turn work. Then all
are deleted, with their tests: turns enter the same modules as with them, and the core's tests pass.

Arguments choose tests, as pytest's; without any, all but those of browsers and the documentation.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
EXTRAS = Path("hermes_nb/extras")
LOOK = r"""
import contextlib, io, pkgutil, sys
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
import hermes_nb
gone = tuple(f"hermes_nb.extras.{name}" for name in sys.argv[1:])
assert Path(hermes_nb.__file__).is_relative_to(Path.cwd()), hermes_nb.__file__
assert not any(Path(name.replace(".", "/")).exists() for name in gone)
groups = [group for group in entry_points().groups if group.startswith("hermes_nb.")]
points = [point for group in groups for point in entry_points(group=group)]
assert points and not any(point.module.startswith(gone) for point in points), points
for point in points:
    point.load()
for module in pkgutil.walk_packages(hermes_nb.__path__, "hermes_nb."):
    try:
        module.name.endswith(".__main__") or import_module(module.name)
    except ModuleNotFoundError as error:  # a library that the tests do without
        if error.name.startswith("hermes_nb"):
            raise
from hermes_nb import last_turn, use_model
from hermes_nb.models.scripted import ScriptedModel, call
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
with contextlib.redirect_stdout(io.StringIO()) as shown:
    shell.run_cell("%load_ext hermes_nb").raise_error()
    shell.run_cell("%hermes doctor").raise_error()
    use_model(ScriptedModel([call("list_files"), "Done."]))
    shell.run_cell("%%hermes\nWhat is here?").raise_error()
assert "Python" in shown.getvalue(), shown.getvalue()
assert last_turn().text == "Done."
"""
WALKS = "import json, sys; sys.path += ['bench']; import house; print(json.dumps(house.walks()))"


class House:
    """A copy of the repository without some extras, in an environment with no other hermes_nb."""

    def __init__(self, folder: Path, without: Sequence[str] = ()) -> None:
        self.copy, self.without = folder / "copy", without
        self._copy_files()
        venv.create(folder / "venv")
        (folder / "venv" / "share").symlink_to(Path(sys.prefix, "share"))
        self.python = folder / "venv" / "bin" / "python"
        bases = dict.fromkeys(("base", "platbase"), str(folder / "venv"))
        site = Path(sysconfig.get_path("purelib", vars=bases))
        # What a line of a .pth file names is searched, and no .pth file in it is read.
        shared = {sysconfig.get_path("purelib"): None, sysconfig.get_path("platlib"): None}
        (site / "core.pth").write_text("\n".join([str(self.copy), *shared]))
        about = site / "hermes_nb-0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: hermes_nb\nVersion: 0\n")
        (about / "entry_points.txt").write_text(self._entry_points())
        self._outside = {**os.environ, "HERMES_HOME": str(folder / "home")}

    def _copy_files(self) -> None:
        """Copy what git knows or would add, and delete the rooms that are to be missing."""
        listed = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        found = subprocess.run(listed, cwd=REPOSITORY, capture_output=True, text=True, check=True)
        for name in filter(None, found.stdout.split("\0")):
            if (REPOSITORY / name).is_file():
                (self.copy / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(REPOSITORY / name, self.copy / name)
        for parent in (EXTRAS, Path("tests/extras")):
            for missing in [""] if [*self.without] == extras() else self.without:
                shutil.rmtree(self.copy / parent / missing)

    def _entry_points(self) -> str:
        """Return the entry points of the project but those into the missing rooms."""
        project = tomllib.loads((self.copy / "pyproject.toml").read_text("utf-8"))["project"]
        missing = tuple(f"hermes_nb.extras.{name}." for name in self.without)
        groups = {"console_scripts": project["scripts"], **project["entry-points"]}
        lines = []
        for group, points in groups.items():
            left = [f"{name} = {at}" for name, at in points.items() if not at.startswith(missing)]
            lines += [f"[{group}]", *left]
        return "\n".join(lines)

    def run(self, *words: str, out: int | None = subprocess.PIPE) -> str:
        """Run Python in the copy and return what it writes; raise where it fails."""
        with subprocess.Popen(
            [self.python, *words], cwd=self.copy, env=self._outside, stdout=out, text=True
        ) as running:
            written = running.communicate()[0] or ""
        if running.returncode:
            raise SystemExit(f"{written}\nfailed without {self.without}: {words}")
        return written

    def look(self) -> None:
        """See that everything that is left works."""
        self.run("-c", LOOK, *self.without)
        assert "doctor" in self.run("-m", "hermes_nb.cli", "--help")


def extras() -> list[str]:
    """Return the names of the rooms."""
    return sorted(path.parent.name for path in (REPOSITORY / EXTRAS).glob("*/__init__.py"))


def look_without(extra: str) -> None:
    """Delete one extra and look at the rest."""
    with tempfile.TemporaryDirectory() as folder:
        House(Path(folder), [extra]).look()


def main() -> None:
    """Delete each extra, then all of them."""
    with tempfile.TemporaryDirectory() as name, ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(look_without, extras()))
        print(f"without one of {', '.join(extras())}: ok", flush=True)
        core = House(Path(name) / "core", extras())
        core.look()
        houses = (core, House(Path(name) / "all"))
        less, more = (json.loads(each.run("-c", WALKS).splitlines()[-1]) for each in houses)
        differ = {kind: {*more[kind][0]} ^ {*less[kind][0]} for kind in more}
        if any(differ.values()):
            raise SystemExit(f"modules entered with extras, or without them, alone: {differ}")
        print("without any: ok, and turns enter the same modules", flush=True)
        tests = sys.argv[1:] or ["tests", "--ignore=tests/e2e", "--ignore=tests/docs"]
        core.run("-m", "pytest", "-q", "-p", "no:nbval", *tests, out=None)


if __name__ == "__main__":
    main()
