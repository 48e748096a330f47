"""A finished turn says what it did to the variables, and what it was refused."""

from __future__ import annotations

import pytest
from hermes_nb.models.scripted import call
from hermes_nb.notebook.execute.variable_changes import VariableChange, brief_change

from tests.safety.seat import seated


def test_a_turn_lists_the_variables_that_it_changed(shell, tmp_path):
    with seated(shell, tmp_path, mode="all", answer=None) as seat:
        seat.run("rows = [1, 2, 3]\ntmp = 1\npassword = 'hunter22'\nsame = 'a'\nkept = [1]")
        code = "rows = rows[:2]\nmodel = {}\ndel tmp\npassword = 'hunter23'\nkept[0] = 2"
        seat.turn("go", call("run_python", code=code))
        (line,) = [each for each in seat.agent.last.plain().split("\n") if each[:1] == "±"]
        told = {"rows 3 items → 2 items", "+ model", "− tmp", "kept changed"}
        assert {*line[2:].split(" · ")} == told
        assert "hunter22" not in line
        seat.turn("again", call("run_python", code="len(rows)"))
        assert "±" not in seat.agent.last.plain()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        ("DataFrame, 612 x 6\nkg int64", "DataFrame, 591 x 6", "x 612×6 → 591×6"),
        ("int 1", "int 2", "x 1 → 2"),
        ("int 1", "str 'a'", "x int 1 → str 'a'"),
        ("list, 3 items", "Fit", "x list, 3 items → Fit"),
        ("dict, 1 item\na: 1", "dict, 1 item\na: 2", "x changed"),
    ],
)
def test_a_change_in_a_few_words(before, after, told):
    assert brief_change(VariableChange(name="x", before=before, after=after)) == told


def test_a_turn_that_was_refused_something_has_no_tick(shell, tmp_path):
    with seated(shell, tmp_path, answer="n") as seat:
        seat.turn("go", call("run_python", code="made = 1"))
        assert "! Not run: made = 1 (denied) · " in seat.agent.last.plain()
