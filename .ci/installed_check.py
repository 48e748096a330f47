"""Look at an installed hermes_nb from inside its environment; `release_check.py` runs this there.

Everything is found through what an installer leaves behind: metadata, `sys.prefix`, the `jupyter`
command. Nothing of a checkout is looked at.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import pkgutil
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution, entry_points
from pathlib import Path

import hermes_nb

PACKAGE = Path(hermes_nb.__file__).parent
SCRIPTS = Path(sysconfig.get_path("scripts"))
LEAST_SKILLS = 10


EXTRAS = ("acp", "aiohttp", "mcp", "nio", "psycopg", "telegram", "uvicorn")
"""What adapters, the MCP server and the store on a server import, each brought by an extra."""


def main(notebook: str) -> int:
    """Check one thing after the other; the first that is wrong ends it with a message."""
    checks = (files, licences, commands, modules, labextension, doctor)
    told = [each() for each in checks]
    told += [replay(notebook), earlier("earlier", notebook)]
    print("\n".join(f"  {line}" for line in told))
    return 0


def need(given: object, message: str) -> None:
    """End with a message unless something is there."""
    if not given:
        sys.exit(message)


def files() -> str:
    """Check what lies beside the modules."""
    need("site-packages" in PACKAGE.parts, f"{PACKAGE} is not an installed package")
    need((PACKAGE / "py.typed").is_file(), "py.typed is missing")
    skills = sorted(path.parent.name for path in PACKAGE.glob("shipped_skills/**/SKILL.md"))
    need(len(skills) >= LEAST_SKILLS, f"only these skills: {skills}")
    return f"py.typed, {len(skills)} skills"


def licences() -> str:
    """Check that our licence and the weights' notice are where licences go."""
    names = {
        path.name for path in distribution("hermes_nb").files or () if "licenses" in path.parts
    }
    need({"LICENSE", "NOTICE-weights.txt"} <= names, f"licences: {sorted(names)}")
    return f"licences: {', '.join(sorted(names))}"


def commands() -> str:
    """Check the entry points and that the version is the same wherever it is asked for."""
    (plugin,) = entry_points(group="pytest11", name="hermes_nb")
    plugin.load()
    version = distribution("hermes_nb").version
    said = run("jupyter", "hermes", "--version").strip()
    need(said == f"hermes_nb {version}" == f"hermes_nb {hermes_nb.__version__}", f"said {said!r}")
    return f"`jupyter hermes` of version {version}, the pytest plugin"


def modules() -> str:
    """Import every module there is; those alone that are asked for by name may need an extra."""
    names = [
        each.name
        for each in pkgutil.walk_packages([str(PACKAGE)], "hermes_nb.", onerror=sys.exit)
        if not each.name.endswith(".__main__") and ".shipped_skills" not in each.name
    ]
    without = []
    for name in names:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError as error:
            need(error.name in EXTRAS, f"{name} needs {error.name}")
            without.append(name)
    return f"{len(names) - len(without)} modules import without any extra, {len(without)} need one"


def labextension() -> str:
    """Check that the front end's half is where JupyterLab and Notebook 7 look for it."""
    folder = Path(sys.prefix) / "share" / "jupyter" / "labextensions" / "hermes-nb"
    package = json.loads((folder / "package.json").read_text(encoding="utf-8"))
    need(package["version"] == hermes_nb.__version__, f"labextension {package['version']}")
    script, _, _ = package["jupyterlab"]["_build"]["load"].partition("?")
    need((folder / script).is_file(), "no script in it")
    ours = Path(hermes_nb.__file__).parent / "notebook" / "labextension"
    files = {each.relative_to(ours) for each in ours.rglob("*.js*")}
    missing = sorted(str(each) for each in files if not (folder / each).is_file())
    need(not missing, f"files are missing: {missing}")
    need((folder / "install.json").is_file(), "no install.json, so it cannot say how it goes")
    if importlib.util.find_spec("jupyterlab") is None:
        return "labextension: its files are there"
    listed = run("jupyter", "labextension", "list")
    need("hermes-nb" in listed and "enabled" in listed, f"not listed:\n{listed}")
    return "labextension: JupyterLab lists it"


def doctor() -> str:
    """Check that the installation finds nothing wrong with itself, in replay mode."""
    report = json.loads(run("jupyter", "hermes", "doctor", "--json", HERMES_NB_CASSETTE="replay"))
    need(report["ok"], f"doctor: {report}")
    return f"doctor: {len(report['checks'])} checks"


def replay(notebook: str) -> str:
    """Run a notebook from its cassette, through the command."""
    options = ("--approve", "all", "--cassette", "replay", "--output", "out.ipynb")
    run("jupyter", "hermes", "run", notebook, *options)
    need(Path("out.ipynb").is_file(), "no notebook came out")
    return f"{notebook} ran from its cassette"


def earlier(folder: str, notebook: str) -> str:
    """Go on with what the version before left: a home with sessions, a notebook's cassette."""
    home = {"HERMES_HOME": str(Path(folder, "home").absolute())}
    sessions = [
        line.split()[0] for line in run("jupyter", "hermes", "sessions", **home).splitlines()
    ]
    need(sessions, "no session of the version before is listed")
    for each in sessions:
        need(run("jupyter", "hermes", "export", each, **home), f"{each} has no messages")
    replay(str(Path(folder, notebook)))
    return f"{len(sessions)} sessions and a cassette of the version before"


def run(command: str, *words: str, **env: str) -> str:
    """Run a command of this environment and return what it prints on both channels."""
    path = f"{SCRIPTS}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [str(SCRIPTS / command), *words],
        env={**os.environ, "PATH": path, **env},
        text=True, capture_output=True, check=False,
    )  # fmt: skip
    need(done.returncode == 0, f"{command} {' '.join(words)}:\n{done.stdout}\n{done.stderr}")
    return done.stdout if done.stdout else done.stderr


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
