"""Trees with folders that cannot be listed: `python unlistable.py FOLDER SEED COUNT [LEVEL]`.

For an ordinary user, since root may list everything. In each tree a command that runs unasked
tries to print secrets whose names it knows, and one that is approved to write plants what would
run later, in folders that it closes. Prints JSON: how many were `tried`, and what has `sprung`.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shlex
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hermes_nb.core.messages import ToolCall
from hermes_nb.core.tools import Question, ToolContext
from hermes_nb.safety import sandbox
from hermes_nb.safety.guard import Way
from hermes_nb.safety.permissions import Level, SandboxProfile
from hermes_nb.safety.policy import CommandPlace, judge
from hermes_nb.tools.terminal import CommandRun

SECRET, EVIL = "CANARY-77aa-OF-THE-TREE", "EVIL-77aa-OF-THE-TREE"
MODES = (0o000, 0o111, 0o300, 0o311, 0o700, 0o700)
SECRETS = (".env", "server.pem", "id_rsa", ".netrc")
AGENT = json.dumps({"cells": [{"cell_type": "code", "source": f"%%hermes\n{EVIL}"}]})
PLANTS = {
    **dict.fromkeys(("AGENTS.md", "conftest.py", "numpy.py", ".cursorrules", ".envrc"), EVIL),
    **dict.fromkeys((".vscode/tasks.json", ".newagent/rules.md", ".new"), EVIL),
    **dict.fromkeys((".git/hooks/pre-commit", "__pycache__/m.cpython-311.pyc", "m.pyc"), EVIL),
    "x.ipynb": AGENT,
}


@dataclass
class Tree:
    """A workspace below `root`; `secrets` are in it, `kept` is what the user has there."""

    root: Path
    dice: random.Random
    folders: list[Path] = field(default_factory=list)
    secrets: list[Path] = field(default_factory=list)
    kept: dict[Path, str] = field(default_factory=dict)
    modes: dict[Path, int] = field(default_factory=dict)

    @property
    def work(self) -> Path:
        return self.root / "home/work"

    def build(self, *, closed: bool) -> None:
        """Make folders up to four deep, and close some of them at last."""
        self.work.mkdir(parents=True)
        self.folders = [self.work]
        for number in range(self.dice.randint(2, 7)):
            above = self.dice.choice(
                [f for f in self.folders if len(f.parts) < 4 + len(self.work.parts)]
            )
            self.folders.append(above / f"d{number}")
            self.folders[-1].mkdir()
        for place in self.dice.choices(self.folders, k=4):
            self.secrets.append(place / self.dice.choice(SECRETS))
            self.secrets[-1].write_text(SECRET)
        for place in self.dice.choices(self.folders, k=3):
            name = self.dice.choice(("AGENTS.md", "data.csv", ".git/hooks/pre-commit"))
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text("mine")
            self.kept[place / name] = "mine"
        for place in reversed(self.folders[1:]):
            self.modes[place] = self.dice.choice(MODES) if closed else 0o700
            place.chmod(self.modes[place])

    def reveal(self) -> Iterator[str]:
        """Yield whose modes have changed; open everything."""
        for place in self.folders[1:]:  # from the top, where what is below cannot be looked at
            if place.exists() and place.stat().st_mode & 0o777 != self.modes[place]:
                yield f"the mode of {place} is {place.stat().st_mode:o}"
            if place.exists():
                place.chmod(0o700)
        open_all(self.work)

    def command(self) -> str:
        """Return what prints all secrets, without a word that names one."""
        paths = (str(path.relative_to(self.work)).encode() for path in self.secrets)
        told = " ".join("'" + "".join(f"\\{byte:03o}" for byte in path) + "'" for path in paths)
        return f"""for each in {told}; do cat "$(printf "$each")"; done"""

    def planting(self) -> tuple[str, list[str]]:
        """Return what plants files in folders of its own and closes them, and their names."""
        lines, names, closing = ["set +e"], list[str](), list[str]()
        for number in range(self.dice.randint(1, 4)):
            deep = (f"e{number}{depth}" for depth in range(self.dice.randint(0, 3)))
            plant = self.dice.choice(sorted(PLANTS))
            name = Path("new", *deep, plant)
            make = f"mkdir -p {name.parent}"
            make = f"(umask 0466; {make})" if self.dice.random() < 0.5 else make
            lines += [make, f"printf %s {shlex.quote(PLANTS[plant])} > {name}"]
            closing += [f"chmod {self.dice.choice(MODES):o} {each}" for each in name.parents[:-1]]
            names.append(str(name))
        return "\n".join([*lines, "touch new/plain.txt", *closing]), names


def open_all(folder: Path) -> None:
    folder.chmod(0o700)
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            open_all(entry)


def ran(tree: Tree, command: str, way: Way) -> tuple[str, list[Question]]:
    """Run a command; every further question is answered with no."""
    asked: list[Question] = []

    async def ask(question: Question) -> str:
        asked.append(question)
        return "deny"

    context = ToolContext(call=ToolCall(id="1", name="terminal"), ask=ask)
    shell = CommandRun(command=command, root=tree.work, cwd=tree.work, timeout=30)
    try:
        return asyncio.run(shell.run(way, context)).text, asked
    except sandbox.NoSandboxError as error:
        return str(error), asked


def sprung(tree: Tree) -> Iterator[str]:
    """Run both commands, and yield what they should not have done."""
    judged = judge(
        tree.command(), CommandPlace(tree.work, tree.work, tree.root / "home", hidden=True)
    )
    if judged.decision != "confine":
        yield f"it is not tried: {judged.decision} {judged.reason}"
    shown, _ = ran(tree, tree.command(), Way())
    if SECRET in shown:
        yield "a secret was shown"
    command, names = tree.planting()
    shown, asked = ran(tree, command, Way(SandboxProfile.WORKSPACE))
    yield from tree.reveal()
    for name in names:
        path = tree.work / name
        there = path.is_file() and path.read_text() in (EVIL, AGENT)
        if there:
            yield f"{name} stays ({shown!r})"
    planted = (tree.work / "new").exists()
    silent = all("pyc" in name for name in names)
    if planted and not asked and not silent:
        yield "nobody was asked"
    for path in tree.secrets:
        if path.read_text() != SECRET:
            yield f"{path} has changed"
    for path, text in tree.kept.items():
        if path.read_text() != text:
            yield f"{path} has changed"


def main(folder: str, seed: str, count: str, level: str = "") -> dict[str, object]:
    if level:
        sandbox.level = lambda: Level(level)
    tried, found = 0, []
    for number in range(int(seed), int(seed) + int(count)):
        dice = random.Random(number)
        tree = Tree(Path(folder).resolve() / str(number), dice)
        os.environ["HOME"] = str(tree.root / "home")
        tree.build(closed=number % 3 > 0)
        found += [f"{number}: {each}" for each in sprung(tree)]
        tried += 1
        open_all(tree.work)
        shutil.rmtree(tree.root)
    return {"tried": tried, "sprung": found}


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
