"""Eight processes that change one skill at once: every change is there, or was refused."""

from __future__ import annotations

import json

import pytest
from hermes_nb.skills.document import problems
from hermes_nb.skills.library import Library

from tests.faults.stores import ROUNDS, finished, run_python

PATCHER = """
import json, sys
from hermes_nb.skills.library import Library
library = Library([sys.argv[1]])
writer = sys.argv[2]
for i in range(10):
    new = f"<end>\\n- {writer} wrote {i}."
    outcome = library.manage("patch", "counted", old_string="<end>", new_string=new)
    print(json.dumps([outcome.applied, f"- {writer} wrote {i}.", outcome.message]), flush=True)
"""
CREATOR = """
import sys
from hermes_nb.skills.library import Library
content = "---\\nname: raced\\ndescription: Only one.\\n---\\n# By " + sys.argv[2] + "\\n"
outcome = Library([sys.argv[1]]).manage("create", "raced", content=content, category=sys.argv[2])
print(sys.argv[2] if outcome.applied else outcome.message)
"""


@pytest.mark.slow
def test_09_no_patch_is_lost(tmp_path):
    root = tmp_path / "skills"
    library = Library([root])
    for _ in range(ROUNDS):
        content = "---\nname: counted\ndescription: Counts.\n---\n# Log\n<end>\n"
        assert library.manage("create", "counted", content=content)
        processes = [run_python(PATCHER, root, f"writer{n}") for n in range(8)]
        answers = [json.loads(line) for each in processes for line in finished(each)]
        assert len(answers) == 80
        assert all(applied for applied, *_ in answers), [a for a in answers if not a[0]]
        text = library.view("counted").text
        assert problems(text, name="counted") == []
        for _, line, _ in answers:
            assert text.count(line) == 1
        assert library.usage()["counted"].patches % 80 == 0
        assert library.manage("delete", "counted")


@pytest.mark.slow
def test_09_only_one_creates_a_skill(tmp_path):
    root = tmp_path / "skills"
    processes = [run_python(CREATOR, root, f"c{n}") for n in range(8)]
    answers = [line for each in processes for line in finished(each)]
    (winner,) = [answer for answer in answers if len(answer) == 2]
    assert sum("exists in home skills" in answer for answer in answers) == 7
    assert [path.parent.parent.name for path in root.rglob("SKILL.md")] == [winner]
    assert [path.name for path in root.iterdir() if path.name != ".hermes_nb"] == [winner]
