"""Whether a story replays: in other time zones, with other hash seeds, without docstrings, again.

Run with `make bench-replay`. One story is recorded, and replayed under `python -OO` so many times
for each zone and seed, in the same directory: files are there already, the notebook is saved and
the cassette grows in between. With `--notebooks` every example runs once for each, in a kernel.
Limit: no miss.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from hermes_nb import Hermes
from hermes_nb.models.cassette import Cassette
from hermes_nb.models.scripted import ScriptedModel, call
from hermes_nb.testing import run_notebook

ZONES = ("UTC0", "<+14>-14", "<-03>3")
SEEDS = ("0", "4711")
EXAMPLES = Path(__file__).parents[1] / "notebooks"
SHOWN = "print({'elm', 'oak', 'ash'}, time.strftime('%H:%M:%S %Z'))"
STORY: dict[str, list] = {
    "What is here?": [[call("list_files", depth=2, hidden=True), call("list_files")], "Three."],
    "Where is oak?": [
        [call("search_files", pattern="oak"), call("search_files", pattern="", glob="*")],
        call("search_files", pattern="yew", context=1),
        "In trees.csv, but no yew.",
    ],
    "Note that.": [
        call("write_file", path="notes/a.md", content="oak\n"),
        call("write_file", path="notes/a.md", content="oak and ash\n"),
        call("memory", action="add", content="Plants oaks."),
        "Noted.",
    ],
    "What is the time?": [
        call("terminal", command=f'date; ls -ld trees.csv; python3 -c "import time; {SHOWN}"'),
        call("session_search", query="oak"),
        "Late.",
    ],
}


def play(folder: Path, model: ScriptedModel | None) -> list[str]:
    """Play the story on the cassette beside its notebook; return what went otherwise."""
    wrong = []
    cassette = Cassette(model, folder / "n.hermes.jsonl", "record" if model else "replay")
    with (
        tempfile.TemporaryDirectory() as home,
        Hermes(cassette, home=home, cwd=folder, approve="all") as hermes,
    ):
        for asked, (*_, answer) in STORY.items():
            turn = hermes.ask(asked)
            if turn.text != answer:
                wrong.append(str(turn.error or turn.text))
    for name in ("n.ipynb", "n.hermes.jsonl"):
        with (folder / name).open("a", encoding="utf-8") as file:
            file.write("\n")  # oak
    with (folder / "n.ipynb").open("a", encoding="utf-8") as file:
        file.write("oak, elm\n")
    return wrong


def replay(folder: Path, runs: int, *, notebooks: bool) -> int:
    """Replay in this process; print what was missed and return how often."""
    wrong = [each for _ in range(runs) for each in play(folder, None)]
    for example in sorted(EXAMPLES.glob("[0-9]*.ipynb")) if notebooks else ():
        try:
            run_notebook(example)
        except Exception as error:  # noqa: BLE001 - told and counted
            wrong.append(f"{example.name}: {error}")
    print(*dict.fromkeys(wrong), sep="\n", end="" if not wrong else "\n")
    return len(wrong)


def main() -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--runs", type=int, default=20)
    options.add_argument("--notebooks", action="store_true")
    options.add_argument("--folder", type=Path)
    chosen = options.parse_args()
    if chosen.folder is not None:
        return min(replay(chosen.folder, chosen.runs, notebooks=chosen.notebooks), 1)
    missed = 0
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "n.ipynb").write_text("{}\n", encoding="utf-8")
        (folder / ".gitignore").write_text("notes\n", encoding="utf-8")  # what a run leaves
        (folder / "trees.csv").write_text("tree\noak\nash\n", encoding="utf-8")
        steps = [step for steps in STORY.values() for step in steps]
        missed += len(play(folder, ScriptedModel(steps)))
        for zone in ZONES:
            for seed in SEEDS:
                command = [sys.executable, "-OO", __file__, "--folder", made]
                command += ["--runs", str(chosen.runs)] + ["--notebooks"] * chosen.notebooks
                setting = {"TZ": zone, "PYTHONHASHSEED": seed, "PYTHONOPTIMIZE": "2"}
                done = subprocess.run(command, env={**os.environ, **setting}, check=False)
                missed += done.returncode != 0
                print(f"{zone:8}  seed {seed:4}  {'missed' if done.returncode else 'replayed'}")
    print(
        f"{chosen.runs} runs x {len(ZONES)} zones x {len(SEEDS)} seeds, -OO: {missed} with a miss"
    )
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
