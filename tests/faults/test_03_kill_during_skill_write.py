"""A process killed while it writes skills leaves whole skills, old or new, and nothing else."""

from __future__ import annotations

import random

import pytest
from hermes_nb.core.files import TEMPORARY
from hermes_nb.skills.document import problems
from hermes_nb.skills.library import Library

from tests.faults.stores import KILLS, killed, run_python

WRITER = """
import sys
from hermes_nb.skills.library import Library
library = Library([sys.argv[1]])
base = sys.argv[2]
library.index()
print("ready", flush=True)

def must(outcome):
    assert outcome.applied, outcome.message

for i in range(100_000):
    name = f"{base}-{i}"
    head = f"---\\nname: {name}\\ndescription: Counts.\\n---\\n"
    must(library.manage("create", name, content=head + "# 0\\n" + "pad\\n" * 900, category=base))
    must(library.manage("patch", name, old_string="# 0", new_string=f"# {i}\\n" + "x" * 500))
    must(library.manage("write_file", name, file_path="references/a.md", file_content="y" * 3000))
    if i % 3 == 1:
        must(library.manage("delete", name))
    if i % 3 == 2:
        must(library.manage("undo", name))
    print(name, flush=True)
"""


def folders(root):
    """Return the folders that should be skills: those at the ends of the tree."""
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        support = {"references", "scripts", "templates", "assets"} & set(parts)
        if path.is_dir() and ".hermes_nb" not in parts and not support:
            children = [each for each in path.iterdir() if each.is_dir()]
            if not children or children[0].name == "references":
                yield path


@pytest.mark.slow
def test_03_kill_during_skill_write(tmp_path):
    root = tmp_path / "skills"
    for round_ in range(KILLS):
        process = run_python(WRITER, root, f"w{round_}")
        _, *acknowledged = killed(process, random.Random(round_).uniform(0, 0.6))
        library = Library([root])
        assert library.skipped() == []
        there = {skill.name for skill in library.list()}
        for folder in folders(root):
            # An emptied category may still be there: its last skill was just taken away.
            if folder.name == f"w{round_}" and not list(folder.iterdir()):
                continue
            content = (folder / "SKILL.md").read_text(encoding="utf-8")
            assert problems(content, name=folder.name) == []
        for name in acknowledged:
            deleted = int(name.rpartition("-")[2]) % 3 == 1
            assert (name in there) is not deleted
        # The next writer finds no lock held, and sweeps what was left half done.
        head = f"---\nname: after{round_}\ndescription: Comes after.\n---\n"
        assert library.manage("create", f"after{round_}", content=head + "# A\n")
        for skill in [*library.list(f"w{round_}"), library.get(f"after{round_}")]:
            outcome = library.manage(
                "write_file", skill.name, file_path="assets/a", file_content="z"
            )
            assert outcome.applied, outcome.message
            assert library.manage("patch", skill.name, old_string="# ", new_string="## ")
        assert not (root / ".hermes_nb/building").exists()
        left = [
            path
            for path in root.rglob(f"*{TEMPORARY}")
            if path.parent.parent != root / ".hermes_nb"
        ]
        assert [path for path in left if ".hermes_nb" not in path.parts] == []
