"""Honest work with one's own data: what a model did in each story, and what the user would keep.

Every question is answered with yes and counted. The nine notebooks' stories are their cassettes'.
"""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import nbformat
from hermes_nb.core.messages import Message
from hermes_nb.models.scripted import Step, call

from tests.safety.seat import Seat, seated

NOTEBOOKS = Path(__file__).parents[1] / "contract" / "data" / "notebooks"
DATA = "name,mass,island\nada,3750,Dream\nbo,,Biscoe\nada,3750,Dream\ncy,4200,Dream\n"
SKILL = "---\nname: tidy\ndescription: Tidies tables up\n---\n\n# Tidy\n\n1. Sort by name.\n"


@dataclass(frozen=True, kw_only=True)
class Story:
    """`turns` are prompts and what the model does; `cells` ran before, `setup` are commands.

    `memory` is what was kept before.
    """

    name: str
    turns: tuple[tuple[str, tuple[Step, ...]], ...]
    cells: tuple[str, ...] = ()
    files: dict[str, str] = field(default_factory=dict)
    folder: Path | None = None
    setup: tuple[str, ...] = ()
    memory: str = ""


class Wish(NamedTuple):
    """What a user says, what stands in a file that was read, and what an honest model keeps."""

    said: str
    file: str
    note: str


def _steps(rows: list) -> list[Step]:
    return [
        call("terminal", command=row) if isinstance(row, str) else call(row[0], **row[1])
        for row in rows
    ]


def _own(row: dict) -> Story:
    turn = (row.pop("prompt"), tuple(_steps(row.pop("steps"))))
    return Story(
        **{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}, turns=(turn,)
    )


TOLD = tomllib.loads(Path(__file__).with_name("cases").joinpath("stories.toml").read_text("utf-8"))
OWN = tuple(_own(row) for row in TOLD["stories"])
"""Stories of our own, over one small table."""
WISHES = tuple(Wish(**{"file": TOLD["readme"], **row}) for row in TOLD["wishes"])
"""What should be learnt; some of it is worded like the file, as facts are."""


def notebooks() -> Iterator[Story]:
    """Yield the stories of the nine notebooks, from their cassettes, in the home that is given.

    A home that a notebook makes for itself compresses: summaries take steps of the script.
    """
    for path in sorted(NOTEBOOKS.glob("*.hermes.jsonl")):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        prompts = [
            row["said"]["parts"][0] for row in rows if row.get("said", {}).get("role") == "user"
        ]
        turns: list[tuple[str, tuple[Step, ...]]] = []
        steps: list[Step] = []
        for reply in (Message.from_dict(_parts(row)) for row in rows if "reply" in row):
            if reply.calls:
                steps.append(reply)
                continue
            prompt = prompts[len(turns)] if len(turns) < len(prompts) else "Go on."
            turns.append((str(prompt), tuple(steps)))
            steps = []
        notebook = nbformat.read(path.with_name(path.name.split(".")[0] + ".ipynb"), as_version=4)
        cells = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
        plain = tuple(c for c in cells if "%" not in c[:2] and "hermes" not in c.lower())
        yield Story(name=path.name.split(".")[0], turns=tuple(turns), cells=plain, folder=NOTEBOOKS)


def questions(folder: Path) -> Iterator[Story]:
    """Yield a story for each question over a table below `folder`, in DABench's layout."""
    lines = (folder / "da-dev-questions.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, lines):
        file = row["file_name"]
        text = (folder / "da-dev-tables" / file).read_text(encoding="utf-8", errors="replace")
        column = next(csv.reader([text.splitlines()[0]]))[-1]
        load = f"import pandas as pd\ndf = pd.read_csv({file!r})\ndf.shape"
        look: list[Step] = [call("list_files"), call("read_file", path=file, limit=5)]
        if row["id"] % 3 == 0:
            look = _steps(["ls -la", f"head -3 {file}", f"wc -l {file}"])
        more: list[Step] = [call("run_python", code=f"df[{column!r}].describe()")]
        if row["level"] == "hard":
            more += [call("inspect_variable", name="df"), call("run_python", code="df.dtypes")]
        steps = (*look, call("run_python", code=load), *more)
        turns = ((row["question"], steps),)
        yield Story(name=f"question {row['id']}", turns=turns, files={file: text})


def asked(shell, folder: Path, story: Story, mode: str) -> int:
    """Return how many questions a story asks in a mode."""
    with seated(shell, folder, mode=mode, answer="y") as seat:
        _laid_out(seat, story)
        for cell in story.cells:
            seat.run(cell)
        return sum(seat.turn(prompt, *steps) for prompt, steps in story.turns)


def saved(shell, folder: Path, wish: Wish, *, review: bool) -> bool:
    """Say whether what should be learnt is saved without a question, in a turn or by a review."""
    with seated(shell, folder, answer="n") as seat:
        (seat.work / "notes.md").write_text(wish.file)
        keep = call("memory", action="add", content=wish.note)
        look = call("read_file", path="notes.md")
        seat.turn(wish.said, look, *([] if review else [keep]))
        if review:
            seat.look_back(keep)
        return wish.note in seat.kept("MEMORY.md")


def _parts(row: dict) -> dict:
    message = dict(row["reply"]["message"])
    message["parts"] = [{"text": t} if isinstance(t, str) else t for t in message.get("parts", ())]
    return message


def _laid_out(seat: Seat, story: Story) -> None:
    if story.folder is not None:
        shutil.copytree(story.folder / "data", seat.work / "data")
    for name, text in {"data.csv": DATA, **story.files}.items():
        (seat.work / name).write_text(text, encoding="utf-8")
    if story.memory:
        (seat.home / "memories").mkdir()
        (seat.home / "memories/MEMORY.md").write_text(story.memory, encoding="utf-8")
    tidy = seat.home / "skills" / "tidy"
    tidy.mkdir(parents=True)
    (tidy / "SKILL.md").write_text(SKILL)
    for line in story.setup:
        subprocess.run(line, shell=True, check=True, cwd=seat.work, capture_output=True)
