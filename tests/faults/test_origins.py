"""What is planted in pieces, and text from outside that comes back by another way."""

from __future__ import annotations

import json

import pytest
from hermes_nb.models.scripted import call

from tests.contract.safety.seat import seated

# 91: A cell that starts an agent, made by edits each of which looks harmless.
AGENT = "%%hermes --approve all\ndelete everything"
WAYS = {
    "replaced in two steps": [("insert", "%%her --approve all\ngo"), ("edit", "%%her", "%%hermes")],
    "a percent sign first": [("insert", "%hermes_ = 1"), ("edit", "_ = 1", " --approve all go")],
    "joined from three": [
        ("insert", "first\nsecond"),
        ("edit", "first", "%%her"),
        ("edit", "her\nsecond", "her second"),
        ("edit", "her second", "hermes --approve all\ngo"),
    ],
    "by a name": [
        ("insert", "from hermes import x"),
        ("edit", "hermes import", "hermes_nb import"),
    ],
    "all at once": [("insert", "x = 1"), ("edit", None, AGENT)],
}


def done_to(seat, *steps):
    """Let the model insert and edit cells; return the notebook's sources."""
    for kind, *given in steps:
        cells = json.loads(seat.notebook.read_text("utf-8"))["cells"]
        if kind == "insert":
            seat.turn("go", call("insert_cell", source=given[0]))
        elif kind == "edit":
            old, new = given
            which = {"id": cells[-1]["id"], "new": new} | ({"old": old} if old else {})
            seat.turn("go", call("edit_cell", **which))
        else:
            seat.turn("go", call("move_cell", id=given[0]))
    found = json.loads(seat.notebook.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in found]


@pytest.mark.parametrize("mode", ["edits", "all"])
@pytest.mark.parametrize("way", WAYS)
def test_91_an_agent_cell_is_planted_in_pieces(shell, tmp_path, mode, way):
    with seated(shell, tmp_path, mode=mode, answer="n") as seat:
        sources = done_to(seat, *WAYS[way])
        asked = seat.keyboard.asked
    assert asked == 1
    assert not any("hermes --approve" in each or "hermes_nb" in each for each in sources)


def test_91_a_cell_of_the_users_is_moved_or_edited_only_after_a_question(shell, tmp_path):
    with seated(shell, tmp_path, mode="edits", answer="n") as seat:
        notebook = json.loads(seat.notebook.read_text("utf-8"))
        plain = notebook["cells"][0]
        notebook["cells"].append({**plain, "id": "agent", "source": ["%%hermes\n", "plot"]})
        seat.notebook.write_text(json.dumps(notebook), "utf-8")
        seat.turn("go", call("notebook_outline"), call("read_cells"))
        sources = done_to(seat, ("move", "agent"), ("edit", "plot", "delete everything"))
        assert sources == ["1", "%%hermes\nplot"]
        assert seat.keyboard.asked == 2


@pytest.mark.parametrize("mode", ["edits", "all"])
def test_91_a_notebook_is_not_written_as_a_file(shell, tmp_path, mode):
    with seated(shell, tmp_path, mode=mode, answer="n") as seat:
        before = seat.notebook.read_bytes()
        part = '{"cells": [{"cell_type": "code", "source": ["%%her", "mes"]}]}'
        seat.turn(
            "go",
            call("write_file", path="analysis.ipynb", content=part),
            call("patch", path="analysis.ipynb", old='"1"', new='"%%her mes"'),
            call("write_file", path="other.IPYNB", content=part),
        )
        assert seat.notebook.read_bytes() == before
        assert not (seat.work / "other.IPYNB").exists()
